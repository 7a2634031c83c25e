"""Carries out what `ReadQueue` decides: hands reads to the backend, and tells submitters what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Protocol

from waste.errors import ClosedError, WasteError
from waste.io.backends.base import Backend, Completion, ReadOp
from waste.io.extents import Placement
from waste.io.files import FileSet
from waste.sched.handle import Callback, ReadHandle
from waste.sched.priority import Kind, Priority
from waste.sched.queue import QueueStatistics, ReadQueue, Request

ASKED, RETURNED = "reads asked for", "reads returned"
"""What a batch is about, for a `Watcher`."""


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Since the start. `queue` counts reads and bytes, and has the peaks in flight.

    completed, failed: reads the device returned. batches: wake-ups they came in.
    loop_s: seconds of the event loop's time, bookkeeping of everyone who submits in a `batch()` included. io_wait_s:
    seconds that callers reported with `add_wait`.
    """

    queue: QueueStatistics
    completed: int
    failed: int
    batches: int
    loop_s: float
    io_wait_s: float

    @property
    def bytes_read(self) -> Mapping[Kind, int]:
        """Aligned bytes asked from the device, by kind."""
        return self.queue.bytes_read

    @property
    def reads(self) -> Mapping[Priority, int]:
        """Reads asked from the device, by the priority they were issued at."""
        return self.queue.reads


class Watcher(Protocol):
    """Told what happens, as it does, on the loop's thread, in seconds of `perf_counter`."""

    def read(self, kind: Kind, priority: Priority, size: int, began: float, ended: float) -> None:
        """A read of `size` bytes that the device was asked for at this priority has come back, good or bad."""

    def loop(self, what: str, began: float, ended: float) -> None:
        """The loop was busy in a `batch()`, the scheduler's own or somebody else's."""

    def waited(self, seconds: float) -> None:
        """A walk has just been standing still for want of bytes."""


class ReadScheduler:
    """Every read goes through here. All methods are for the event loop's thread; none of them blocks.

    Lifetime: `start` once, `close` at the end. Close rings and caches first: they take back what they queued.
    """

    def __init__(self, backend: Backend, queue: ReadQueue) -> None:
        self._backend = backend
        self._queue = queue
        self._handles: dict[Hashable, list[ReadHandle]] = {}
        self._batch = _Batch(self)
        self._is_started = False
        self._is_closed = False
        self.is_changed = False  # for `_Batch`: whether the queue may have something to issue
        self._completed = self._failed = self._batches = 0
        self._io_wait_s = 0.0
        self.watch: Watcher | None = None
        self._watched: dict[int, tuple[Kind, Priority, int, float]] = {}

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    async def start(self, files: FileSet) -> None:
        """Open `files` and take reads from now on. Raises what `Backend.start` does."""
        await self._backend.start(files, self._deliver)
        self._is_started = True

    def submit(
        self,
        key: Hashable,
        *,
        kind: Kind,
        placement: Placement,
        buffer: memoryview,
        priority: Priority,
        on_issued: Callback | None = None,
        on_done: Callback | None = None,
    ) -> ReadHandle:
        """Queue a read, or join the one of the same key that is under way (see `ReadQueue.submit`).

        on_issued: called with the handle when the device is first asked, if it was not before; it must not
        submit reads. on_done: as `ReadHandle.add_done_callback`.

        Raises ClosedError before `start` and after `close`, ValueError if the buffer is too small or there is
        nothing to read.
        """
        if self._is_closed or not self._is_started:
            raise ClosedError(f"the read scheduler {'was closed' if self._is_closed else 'is not running'}")
        with self._batch:
            request = self._queue.submit(key, kind=kind, placement=placement, buffer=buffer, priority=priority)
            handle = ReadHandle(self, request, on_issued, on_done)
            self._handles.setdefault(key, []).append(handle)
            self.is_changed = True
        return handle

    def batch(self) -> _Batch:
        """`with scheduler.batch():` reads submitted inside go to the device together when it ends."""
        return self._batch

    def afterwards(self, call: Callable[[], None]) -> None:
        """Call this once the batch under way has issued its reads: it is no work of the scheduler's. Now, without one.

        Its errors go to the loop's handler.
        """
        self._batch.afterwards(call)

    def promote(self, handle: ReadHandle, priority: Priority) -> None:
        """See `ReadHandle.promote`."""
        if not handle.is_done:
            with self._batch:
                self._queue.promote(handle.key, priority)
                self.is_changed = True

    def drop_if_unwanted(self, handle: ReadHandle) -> bool:
        """See `ReadHandle.cancel`."""
        if handle.is_done:
            return handle.is_dropped
        handles = self._handles[handle.key]
        if not all(other.is_cancelled for other in handles) or not self._queue.drop(handle.key):
            return False
        del self._handles[handle.key]
        self.is_changed = True
        with self._batch:
            for other in handles:
                other.mark_done(None, self.report, is_dropped=True)
        return True

    def add_wait(self, seconds: float) -> None:
        """Count time in which a walk stood still for want of bytes."""
        self._io_wait_s += seconds
        if self.watch is not None:
            self.watch.waited(seconds)

    async def close(self) -> None:
        """Issue nothing more, wake every waiter with ClosedError, and wait until the device has returned.

        Queued reads are done at once, reads in flight when the device returns them. Safe to call twice and
        after a failed start; if it is cancelled, call it again to wait.
        """
        if not self._is_closed:
            self._is_closed = True
            error = ClosedError("the read scheduler was closed")
            with self._batch:
                for request in self._queue.stop(error):
                    self._finish(request, error)
            for handles in self._handles.values():
                for handle in handles:
                    handle.wake()
        await self._backend.close()

    def statistics(self) -> SchedulerStatistics:
        """See `SchedulerStatistics`."""
        return SchedulerStatistics(
            queue=self._queue.statistics(),
            completed=self._completed,
            failed=self._failed,
            batches=self._batches,
            loop_s=self._batch.seconds,
            io_wait_s=self._io_wait_s,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the queue's laws hold and every request has a handle that is not done."""
        self._queue.check_integrity()
        if any(not handles or any(h.is_done for h in handles) for handles in self._handles.values()):
            raise RuntimeError("the read scheduler broke: a finished read still has handles")

    def issue(self) -> None:
        """For the end of a batch: give the backend what the queue lets go."""
        # A backend that returns reads while they are being submitted makes room for more: go on until none.
        while self.is_changed and not self._is_closed:
            self.is_changed = False
            ops, started = self._queue.take()
            if not ops:
                return
            for request in started:
                for handle in self._handles[request.key]:
                    handle.mark_issued(self.report)
            if self.watch is not None:
                self._note(ops)
            self._backend.submit(ops)

    def _note(self, ops: Sequence[ReadOp]) -> None:
        now = perf_counter()
        for op in ops:
            request = self._queue.request_of(op.token)
            self._watched[op.token] = request.kind, request.priority, op.length, now

    def _deliver(self, completions: list[Completion]) -> None:
        with self._batch:
            self._batch.what = RETURNED
            self._batches += 1
            self.is_changed = True
            for completion in completions:
                self._completed += 1
                self._failed += completion.error is not None
                # What was asked for before anybody watched is not in there.
                if (noted := self._watched.pop(completion.token, None)) is not None and self.watch is not None:
                    self.watch.read(*noted, perf_counter())
                request = self._queue.complete(completion.token, completion.error)
                if request is not None:
                    self._finish(request, request.error)

    def _finish(self, request: Request, error: WasteError | None) -> None:
        for handle in self._handles.pop(request.key):
            handle.mark_done(error, self.report)

    def report(self, error: BaseException) -> None:
        """A callback failed: everyone else must still hear of their reads, so it goes to the loop's handler."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a callback of the read scheduler failed", "exception": error}
        )


class _Batch:
    """Issues when the outermost `with` ends, and adds up the time spent inside."""

    __slots__ = ("_began", "_calls", "_depth", "_scheduler", "seconds", "what")

    def __init__(self, scheduler: ReadScheduler) -> None:
        self._scheduler = scheduler
        self._depth = 0
        self._began = 0.0
        self._calls: list[Callable[[], None]] = []
        self.seconds = 0.0
        self.what = ASKED

    def afterwards(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if self._depth == 0:
            self._call()

    def _call(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception as error:
                self._scheduler.report(error)

    def __enter__(self) -> None:
        if self._depth == 0:
            self._began = perf_counter()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._depth == 1 and self._scheduler.is_changed:
                self._scheduler.issue()
        finally:
            self._depth -= 1
            if self._depth == 0:
                ended = perf_counter()
                self.seconds += ended - self._began
                if self._scheduler.watch is not None:
                    self._scheduler.watch.loop(self.what, self._began, ended)
                self.what = ASKED
                if self._calls:
                    self._call()

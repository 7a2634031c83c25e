"""The `threads` backend: a few reader threads, one blocking positional read each.

Reads wait in one queue in the order they were submitted. A reader that finishes leaves its completion in a
deque and wakes the event loop only if no wake-up is under way, so a burst of reads costs the loop one callback.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from waste.errors import BudgetError, ClosedError, ReadError, WasteError
from waste.io.backends import register
from waste.io.backends.base import BackendStatistics, Completion, Deliver, ReadOp
from waste.io.backends.ledger import Ledger
from waste.io.extents import MAX_READ_BYTES
from waste.io.files import FileSet

Read = Callable[[FileSet, ReadOp], int]
ReadInto = Callable[[int, memoryview, int], int]


def read_fully(files: FileSet, op: ReadOp, *, read_into: ReadInto | None = None) -> int:
    """Read until `op.need` bytes have arrived, in steps of at most 1 GiB; returns the bytes that did.

    read_into: what takes one step, `files.read_into` if None.

    Raises ReadError if the file ends before, and OSError as the system does.
    """
    read_into = read_into or files.read_into
    done = 0
    while done < op.need:
        # A direct read may go on only at a block boundary, so a block that came in part is read again.
        begin = done - done % files.alignment if files.is_direct(op.file) else done
        end = min(op.length, begin + MAX_READ_BYTES)
        came = read_into(op.file, op.buffer[begin:end], op.offset + begin)
        if begin + came <= done:
            raise ReadError(
                f"{files.paths[op.file]}: only {done:,} of {op.need:,} bytes at {op.offset:,}; "
                "was the file cut short or replaced since it was opened?"
            )
        done = begin + came
    return done


def carry_out(read: Read, files: FileSet, op: ReadOp) -> tuple[ReadError | None, int]:
    """Read; whatever goes wrong comes back as a ReadError, so that no reader ever dies of it."""
    try:
        return None, read(files, op)
    except ReadError as error:
        # Tracebacks hold the frames that hold the buffer.
        return error.with_traceback(None), 0
    except WasteError as error:
        return ReadError(str(error)), 0
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        failure = ReadError(
            f"{files.paths[op.file]}: reading {op.need:,} bytes at {op.offset:,} failed: {reason or repr(error)}"
        )
        failure.__cause__ = error.with_traceback(None)
        return failure, 0


class ThreadsBackend:
    """Positional reads on `queue_depth` daemon threads. `read` carries out one read on a reader's thread."""

    def __init__(self, queue_depth: int, *, read: Read = read_fully) -> None:
        self._queue_depth = queue_depth
        self._read = read
        self._queue: SimpleQueue[ReadOp | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ledger = Ledger()
        self._wake_pending = False
        self._files: FileSet | None = None
        self._closing = False
        self._readers_left = 0
        self._lock = threading.Lock()  # guards `_readers_left`

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        """See `Backend.start`. The files are opened on a reader's thread."""
        if self._files is not None or self._closing:
            raise ClosedError("a read backend starts once")
        self._files = files
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._readers_gone = asyncio.Event()
        opened: asyncio.Future[None] = self._loop.create_future()
        try:
            self._start_reader(lambda: self._open_and_serve(files, opened))
            for _ in range(1, self._queue_depth):
                self._start_reader(lambda: self._serve(files))
            await opened
        except BaseException:
            self._begin_closing()
            raise

    def submit(self, ops: Sequence[ReadOp]) -> None:
        """See `Backend.submit`."""
        if self._files is None or self._closing:
            raise ClosedError("the read backend is not running")
        self._ledger.submit(ops, self._files)
        for op in ops:
            self._queue.put(op)

    async def close(self) -> None:
        """See `Backend.close`."""
        self._begin_closing()
        if self._files is None:
            return
        await self._readers_gone.wait()
        # The readers have nothing left to do but return; a join would block the loop for that moment.
        while any(thread.is_alive() for thread in self._threads):  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._wake()

    def statistics(self) -> BackendStatistics:
        """See `BackendStatistics`."""
        return self._ledger.statistics(direct_obtained=self._files is not None and self._files.direct_obtained)

    # On the event loop's thread.

    def _start_reader(self, target: Callable[[], None]) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=target, name=f"waste-read-{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise BudgetError(
                f"the system refused reader thread {number + 1} of {self._queue_depth} ({error}); lower io.queue_depth"
            ) from error
        self._threads.append(thread)

    def _begin_closing(self) -> None:
        """Take back the reads no reader has begun, and tell every reader to stop."""
        if self._closing:
            return
        self._closing = True
        if self._files is None:
            return
        with suppress(Empty):
            while (op := self._queue.get_nowait()) is not None:
                self._return(op.token, ReadError("the read backend was closed before this read began"), 0)
        self._readers_left = len(self._threads)
        for _ in self._threads:
            self._queue.put(None)
        if not self._threads:
            self._readers_gone.set()

    def _wake(self) -> None:
        """Deliver everything that has returned. The flag goes first: what returns from now on wakes anew."""
        self._wake_pending = False
        self._ledger.deliver(self._deliver)

    # On the readers' threads.

    def _open_and_serve(self, files: FileSet, opened: asyncio.Future[None]) -> None:
        error: Exception | None = None
        try:
            files.open()
        except Exception as caught:
            error = caught
        self._call_on_loop(lambda: _settle(opened, error))
        self._serve(files)

    def _serve(self, files: FileSet) -> None:
        while (op := self._queue.get()) is not None:
            token = op.token
            error, bytes_read = carry_out(self._read, files, op)
            del op  # an idle reader keeps no buffer alive
            self._return(token, error, bytes_read)
        with self._lock:
            self._readers_left -= 1
            is_last = self._readers_left == 0
        if is_last:
            # Here and not on the loop, which may be gone: no descriptor closes while a reader might use it.
            files.close()
            self._call_on_loop(self._readers_gone.set)

    def _return(self, token: int, error: ReadError | None, bytes_read: int) -> None:
        self._ledger.add(Completion(token, error), bytes_read)
        # Two readers may both see False and both wake the loop: harmless, unlike a lock here.
        if not self._wake_pending:
            self._wake_pending = True
            self._call_on_loop(self._wake)

    def _call_on_loop(self, callback: Callable[[], object]) -> None:
        # The loop was closed under us: there is nobody left to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)


def _settle(opened: asyncio.Future[None], error: Exception | None) -> None:
    if opened.done():
        return  # `start` was cancelled
    if error is None:
        opened.set_result(None)
    else:
        opened.set_exception(error)


register("threads", ThreadsBackend)

"""The experts of one layer and step on the compute threads: each is multiplied as its record lands."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from waste.errors import ReadError, WasteError
from waste.io.extents import Placement
from waste.kernels.workers import Job, Stage
from waste.model.compute import Started
from waste.model.experts import ExpertMath, ExpertWork, Rows, ThreadBuffers, expert_key
from waste.model.scratch import FloatArray
from waste.model.step import Step
from waste.model.trunk import Buffer
from waste.sched.cache import ExpertCache
from waste.sched.lease import Lease

FAMILY = "experts"
AMPLE = 4
"""Slots for each record of a lease from which on nobody else wants them back before the lease ends."""

Record = tuple[Hashable, Buffer, Placement]


class ExpertRun:
    """Asks for the records of `work` and has them computed as they come, those that are there at once.

    Runs beside the backlog of the walk, see `Beside`: wherever the walk itself may be meanwhile. Errors say which
    expert of which layer could not be read or used. answers: see `ExpertMath.answer`.
    """

    def __init__(
        self,
        step: Step,
        layer: int,
        math: ExpertMath,
        cache: ExpertCache,
        work: Sequence[ExpertWork],
        x: FloatArray,
        buffers: ThreadBuffers,
        answers: FloatArray,
    ) -> None:
        self._step = step
        self._layer = layer
        self._math = math
        self._work = {expert_key(layer, item.expert): item for item in work}
        self._x = x
        self._buffers = buffers
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._free_rows = list(range(len(buffers.shared_gate)))
        self._error: WasteError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.started: list[Started] = []
        self._lease = cache.lease(list(self._work))
        self._returns = None if cache.slots >= AMPLE * len(self._work) else _Returns(self._release)
        self._lease.on_news(self._hand_out)
        try:
            self._hand_out()
        except BaseException:
            self.close()
            raise

    async def all_started(self) -> None:
        """Return when every record has been handed to the compute threads. Raises ReadError."""
        if not self._is_all_started:
            self._waiter = self._loop.create_future()
            with self._step.walk.waiting():
                await self._waiter
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """See `Beside`."""
        self._is_stopped = True

    def close(self) -> None:
        """See `Beside`."""
        self.stop()
        self._lease.close()

    @property
    def _is_all_started(self) -> bool:
        return self._is_stopped or self._error is not None or not self._lease.pending

    def _hand_out(self) -> None:
        """What has come goes to the compute threads."""
        ready: list[Record] = []
        try:
            if not self._is_stopped:
                with expert_named(self._layer):
                    ready = self._lease.take()
        except WasteError as error:
            self._error = error
        shared = self._shared_last(ready)
        if ready:
            self.started.append(self._step.compute.start([Stage(FAMILY, [self._job(*record) for record in ready])]))
        if shared:
            self.started.append(self._step.compute.start(self._shared_stages(shared)))
        if self._is_all_started and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self, key: Hashable) -> None:
        if not self._lease.is_closed:
            self._lease.release(key)

    def _fail(self) -> None:
        """On a compute thread: a record cannot be used, and nobody needs the others any more."""
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._hand_out)

    def _give_back(self, key: Hashable) -> None:
        """On a compute thread: the record has been used."""
        if self._returns is not None:
            self._returns.put(key)

    def _shared_last(self, ready: list[Record]) -> list[Record]:
        """Takes from what is ready the few that would leave some threads idle while others do one alone."""
        threads = self._step.compute.threads
        if self._step.tokens > 1 or threads == 1 or not ready:
            return []
        count = len(ready) % threads or threads
        if count > len(self._free_rows):
            return []
        shared = ready[-count:]
        del ready[-count:]
        return shared

    def _shared_stages(self, records: list[Record]) -> list[Stage]:
        """Records that all threads work on together, each on a part of the rows."""
        rows = [self._free_rows.pop() for _ in records]

        def end() -> None:
            self._free_rows.extend(rows)
            for key, _, _ in records:
                self._give_back(key)

        shared = [self._shared(*record, row) for record, row in zip(records, rows, strict=True)]
        return [
            Stage(FAMILY, [job for inner, _ in shared for job in inner]),
            Stage(FAMILY, [job for _, outer in shared for job in outer], then=end),
        ]

    def _shared(self, key: Hashable, data: Buffer, placement: Placement, row: int) -> tuple[list[Job], list[Job]]:
        """A record's inner rows and its outer ones; `row` of the shared buffers holds what is in between."""
        step, item, math, b = self._step, self._work[key], self._math, self._buffers
        gate, up = b.shared_gate[row : row + 1], b.shared_up[row : row + 1]
        y = self._answers[item.first : item.first + 1]

        def inner(rows: Rows, worker: int) -> None:
            if rows[0] == 0:
                # The others need not wait: whatever a damaged record says, sizes and places are the layout's.
                try:
                    math.check(step.kernels, step.records, item.expert, data, placement, b.bad_scale[worker])
                except BaseException:
                    self._fail()
                    raise
            math.inner(step.kernels, step.records, data, placement, self._x, gate, up, rows)

        def outer(rows: Rows, worker: int) -> None:
            math.outer(step.kernels, step.records, data, placement, gate, y, rows)

        inner_rows, outer_rows = math.parts(step.compute.threads)
        return [partial(inner, rows) for rows in inner_rows], [partial(outer, rows) for rows in outer_rows]

    def _job(self, key: Hashable, data: Buffer, placement: Placement) -> Job:
        step, item = self._step, self._work[key]

        def answer(worker: int) -> None:
            try:
                self._math.answer(
                    step.kernels, step.records, item, data, placement, self._x, self._buffers, worker, self._answers
                )
            except BaseException:
                self._fail()
                raise
            self._give_back(key)

        return answer


async def wait_for_records(lease: Lease, layer: int) -> list[tuple[Hashable, Buffer, Placement]]:
    """`lease.wait()`; a ReadError says which expert of which layer could not be read."""
    with expert_named(layer):
        return await lease.wait()


@contextmanager
def expert_named(layer: int) -> Iterator[None]:
    """A ReadError of a lease inside says which expert of which layer could not be read."""
    try:
        yield
    except ReadError as error:
        expert = error.key[1] if isinstance(error.key, tuple) else "?"
        raise ReadError(f"layer {layer}, expert {expert}: {error}", key=error.key) from error


class _Returns:
    """Keys that compute threads are done with, told to the loop in one wake-up for as many as have gathered."""

    def __init__(self, on_return: Callable[[Hashable], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_return = on_return
        self._keys: deque[Hashable] = deque()
        self._is_waking = False

    def put(self, key: Hashable) -> None:
        """From any thread."""
        self._keys.append(key)
        # Two threads may both find it False and both wake the loop: harmless, unlike a lock here.
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_waking = False
        while self._keys:
            self._on_return(self._keys.popleft())

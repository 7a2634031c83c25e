"""The experts of one layer and step on the compute threads: each is multiplied as its record lands."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from waste.errors import ReadError, WasteError
from waste.io.extents import Placement
from waste.kernels.workers import Job, Stage
from waste.model.compute import Started
from waste.model.experts import ExpertBuffers, ExpertMath, ExpertWork, expert_key
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
    expert of which layer could not be read or used. answers: see `ExpertMath.answer_together`.
    """

    def __init__(
        self,
        step: Step,
        layer: int,
        math: ExpertMath,
        cache: ExpertCache,
        work: Sequence[ExpertWork],
        x: FloatArray,
        buffers: ExpertBuffers,
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
        self._tokens = (
            np.concatenate([item.tokens for item in work]) if step.tokens > 1 else np.zeros(len(work), np.int64)
        )
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
        if ready:
            self.started.append(self._step.compute.start([self._stage(ready)]))
        if self._is_all_started and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self, key: Hashable) -> None:
        if not self._lease.is_closed:
            self._lease.release(key)

    def _fail(self) -> None:
        """On a compute thread: a record cannot be used, and nobody needs the others any more."""
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._hand_out)

    def _stage(self, records: list[Record]) -> Stage:
        """The work on records that came together."""
        step, math = self._step, self._math
        members = [(self._work[key], data, placement) for key, data, placement in records]
        rest = (self._x, self._buffers)
        if math.is_uniform:
            group = math.group(members, self._tokens)

            def share(part: int, worker: int) -> None:
                math.answer_together(step.kernels, step.records, group, part, *rest, worker, self._answers)

            jobs = [partial(share, part) for part in range(step.compute.threads)]
        else:

            def alone(member: tuple[ExpertWork, Buffer, Placement], worker: int) -> None:
                math.answer_alone(step.kernels, step.records, member, *rest, worker, self._answers)

            jobs = [partial(alone, member) for member in members]
        return Stage(FAMILY, [partial(self._run, job) for job in jobs], then=partial(self._give_back, records))

    def _run(self, job: Job, worker: int) -> None:
        """On a compute thread. If a record cannot be used, nobody needs the others any more."""
        try:
            job(worker)
        except BaseException:
            self._fail()
            raise

    def _give_back(self, records: list[Record]) -> None:
        """On a compute thread: the records have been used."""
        if self._returns is not None:
            for key, _, _ in records:
                self._returns.put(key)


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

"""The experts of one layer and step on the compute threads: each is multiplied as its record lands."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial

from waste.errors import ReadError
from waste.io.extents import Placement
from waste.kernels.workers import Job, Stage
from waste.model.compute import Started
from waste.model.experts import ExpertMath, ExpertWork, Rows, ThreadBuffers, expert_key
from waste.model.scratch import FloatArray
from waste.model.step import Step
from waste.model.trunk import Buffer
from waste.sched.lease import Lease

FAMILY = "experts"
ROWS_TOGETHER = 64
"""Rows that one thread does: an index block of a container."""


class ExpertRun:
    """Computes what a lease brings, and gives each slot back when its expert has answered.

    slots: how many records can be held at once. answers: see `ExpertMath.answer`.
    """

    def __init__(
        self,
        step: Step,
        layer: int,
        math: ExpertMath,
        lease: Lease,
        slots: int,
        work: list[ExpertWork],
        x: FloatArray,
        buffers: ThreadBuffers,
        answers: FloatArray,
    ) -> None:
        self._step = step
        self._layer = layer
        self._math = math
        self._lease = lease
        self._slots = slots
        self._work = {expert_key(layer, item.expert): item for item in work}
        self._x = x
        self._buffers = buffers
        self._answers = answers
        self._returns = _Returns(lease.release)
        self._failed = False
        self._is_sharing = False

    async def run(self) -> None:
        """Returns when every expert has answered; raises ReadError or DamagedError, layer and expert named."""
        started: list[Started] = []
        handed = 0
        try:
            while self._lease.pending and not self._failed:
                if handed - self._returns.count == self._slots:
                    # Every slot is being computed with: none can be waited for before one of them is done.
                    await self._returns.wait()
                    continue
                with self._step.walk.waiting():
                    ready = await wait_for_records(self._lease, self._layer)
                handed += len(ready)
                if len(ready) % self._step.compute.threads == 1 and self._can_share:
                    started.append(self._step.compute.start(self._shared_stages(*ready.pop())))
                if ready:
                    started.append(self._step.compute.start([Stage(FAMILY, [self._job(*record) for record in ready])]))
        finally:
            await self._step.compute.finish(*started)

    @property
    def _can_share(self) -> bool:
        """Whether several threads may work on one expert: there is one token, and memory for one such expert."""
        return self._step.tokens == 1 and self._step.compute.threads > 1 and not self._is_sharing

    def _shared_stages(self, key: Hashable, data: Buffer, placement: Placement) -> list[Stage]:
        """A part of the rows for each thread, so that none is idle while another does the last one alone."""
        step, item, math, b = self._step, self._work[key], self._math, self._buffers
        gate, up, y = b.shared_gate, b.shared_up, self._answers[item.first : item.first + 1]
        self._is_sharing = True

        def check(worker: int) -> None:
            try:
                math.check(step.kernels, step.records, item.expert, data, placement, b.bad_scale[worker])
            except BaseException:
                self._failed = True
                self._returns.put(key)
                raise

        def inner(rows: Rows, worker: int) -> None:
            math.inner(step.kernels, step.records, data, placement, self._x, gate, up, rows)

        def outer(rows: Rows, worker: int) -> None:
            math.outer(step.kernels, step.records, data, placement, gate, y, rows)

        def end() -> None:
            self._is_sharing = False
            self._returns.put(key)

        inner_rows, outer_rows = (step.compute.split(rows, ROWS_TOGETHER) for rows in math.sizes)
        return [
            Stage(FAMILY, [check]),
            Stage(FAMILY, [partial(inner, rows) for rows in inner_rows]),
            Stage(FAMILY, [partial(outer, rows) for rows in outer_rows], then=end),
        ]

    def _job(self, key: Hashable, data: Buffer, placement: Placement) -> Job:
        step, item = self._step, self._work[key]

        def answer(worker: int) -> None:
            try:
                self._math.answer(
                    step.kernels, step.records, item, data, placement, self._x, self._buffers, worker, self._answers
                )
            except BaseException:
                self._failed = True
                raise
            finally:
                self._returns.put(key)

        return answer


async def wait_for_records(lease: Lease, layer: int) -> list[tuple[Hashable, Buffer, Placement]]:
    """`lease.wait()`; a ReadError says which expert of which layer could not be read."""
    try:
        return await lease.wait()
    except ReadError as error:
        expert = error.key[1] if isinstance(error.key, tuple) else "?"
        raise ReadError(f"layer {layer}, expert {expert}: {error}", key=error.key) from error


class _Returns:
    """Keys that compute threads are done with, told to the loop in one wake-up for as many as have gathered.

    count: how many have been told so far.
    """

    def __init__(self, on_return: Callable[[Hashable], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_return = on_return
        self._keys: deque[Hashable] = deque()
        self._is_waking = False
        self._waiter: asyncio.Future[None] | None = None
        self.count = 0

    def put(self, key: Hashable) -> None:
        """From any thread."""
        self._keys.append(key)
        # Two threads may both find it False and both wake the loop: harmless, unlike a lock here.
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._tell)

    async def wait(self) -> None:
        """Return when more have been told."""
        before = self.count
        while self.count == before:
            self._waiter = self._loop.create_future()
            await self._waiter

    def _tell(self) -> None:
        self._is_waking = False
        while self._keys:
            self.count += 1
            self._on_return(self._keys.popleft())
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""From the event loop to the compute threads and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

from waste.kernels.workers import Job, Stage, Workers

T = TypeVar("T")

OTHER = "other"
"""The family of work that belongs to no part of the model."""


class Started:
    """A batch under way. Hand it to `Compute.finish`: its arrays must outlive it.

    error: the first one, once it `is_ended`.
    """

    __slots__ = ("_batch", "_loop", "_waiter", "error", "is_ended")

    def __init__(self, workers: Workers, stages: Sequence[Stage], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.is_ended = False
        self._batch = workers.submit(stages, self._tell)

    def cancel(self) -> None:
        """Leave out the stages that have not begun."""
        self._batch.cancel()

    async def ended(self) -> None:
        """Return when the last job has ended. May be cancelled, which disturbs nothing; one task at a time."""
        if not self.is_ended:
            self._waiter = self._loop.create_future()
            await self._waiter

    def _tell(self, error: BaseException | None) -> None:
        self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        self.error, self.is_ended = error, True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Compute:
    """Runs stages of jobs on the engine's compute threads for the loop that created it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._loop = asyncio.get_running_loop()

    @property
    def threads(self) -> int:
        return self._workers.threads

    def start(self, stages: Sequence[Stage]) -> Started:
        """Begin: stages one after the other, the jobs of each side by side."""
        return Started(self._workers, stages, self._loop)

    async def finish(self, *started: Started) -> None:
        """Wait until all have ended; then raise the first error or the cancellation that came meanwhile.

        When cancelled, stages that have not begun are left out.
        """
        cancelled: asyncio.CancelledError | None = None
        for one in started:
            while not one.is_ended:
                try:
                    await one.ended()
                except asyncio.CancelledError as error:
                    cancelled = error
                    for other in started:
                        other.cancel()
        if cancelled is not None:
            raise cancelled
        for one in started:
            if one.error is not None:
                raise one.error

    async def run(self, stages: Sequence[Stage]) -> None:
        """Start and finish."""
        await self.finish(self.start(stages))

    async def call(self, work: Callable[[], T]) -> T:
        """What `work` returns, computed on one of the threads."""
        results: list[T] = []
        await self.run([Stage(OTHER, [lambda worker: results.append(work())])])
        return results[0]

    def split(self, total: int, step: int = 1, *, least: int = 1) -> list[tuple[int, int]]:
        """`total` items as one range a thread, cut at multiples of `step`, no more ranges than `least` items fill."""
        return split_range(total, max(1, min(self.threads, total // least)), step)


class Backlog:
    """Stages that wait to be handed over together, in order: a hand-off costs as much as a small kernel.

    `family` is what the time of stages added now is counted under; see `part`.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._stages: list[Stage] = []
        self._family = OTHER

    @contextmanager
    def part(self, family: str) -> Iterator[None]:
        """What is added inside belongs to this part of the model."""
        outer, self._family = self._family, family
        try:
            yield
        finally:
            self._family = outer

    def add(self, jobs: Sequence[Job], *, then: Callable[[], object] | None = None) -> None:
        """Run `jobs` side by side when everything added before has ended; see `Stage` for `then`."""
        self._stages.append(Stage(self._family, jobs, then))

    def start(self) -> Started:
        """Hand over what has been added, for whoever has other work to start beside it."""
        stages, self._stages = self._stages, []
        return self._compute.start(stages)

    async def run(self) -> None:
        """Hand over what has been added and wait until it is done."""
        if self._stages:
            stages, self._stages = self._stages, []
            await self._compute.run(stages)


def split_range(total: int, parts: int, step: int = 1) -> list[tuple[int, int]]:
    """[0, total) in at most `parts` ranges of nearly equal size, each but the last a multiple of `step` long."""
    units = -(-total // step)
    cuts = [min(total, units * part // parts * step) for part in range(parts + 1)]
    return [(first, last) for first, last in pairwise(cuts) if first < last]

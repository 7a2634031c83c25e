"""From the event loop to the compute threads and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from waste.kernels.workers import Batch, Stage, Workers

T = TypeVar("T")

PARTS = 2
"""Parts of a large job for each thread: who is held up leaves the rest to the others."""

OTHER = "other"
"""The family of work that belongs to no part of the model."""


class Started:
    """A `batch` under way. Hand it to `Compute.finish`: its arrays must outlive it.

    error: the first one, once it `is_ended`.
    """

    __slots__ = ("_loop", "_waiter", "batch", "error", "is_ended")

    def __init__(
        self, workers: Workers, stages: Sequence[Stage], loop: asyncio.AbstractEventLoop, after: Iterable[Started]
    ) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self.error: BaseException | None = None
        self.is_ended = False
        self.batch: Batch = workers.submit(stages, self._tell, after=[other.batch for other in after])

    @property
    def is_done(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_ended and self.error is None

    def cancel(self) -> None:
        """Leave out the stages that have not begun."""
        self.batch.cancel()

    async def ended(self) -> None:
        """Return when the last job has ended. May be cancelled, which disturbs nothing; one task at a time."""
        if not self.is_ended:
            await self.watch_end()

    def watch_end(self) -> asyncio.Future[None]:
        """Of one that has not ended: a future that is done when it has, if nobody gives it a result before.

        Raises RuntimeError if somebody has one.
        """
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("a batch can be waited for by one task at a time")
        self._waiter = self._loop.create_future()
        return self._waiter

    def _tell(self, error: BaseException | None) -> None:
        self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        self.error, self.is_ended = error, True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Mark:
    """A place in the work of a batch: its `put` is the `then` of a stage, or is called by a job.

    When the work has come there, `then` is called on the loop. error: what it raised. is_reached: the loop knows.
    """

    __slots__ = ("_is_called_off", "_loop", "_then", "_waiter", "error", "is_reached")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then
        self._waiter: asyncio.Future[None] | None = None
        self._is_called_off = False
        self.error: Exception | None = None
        self.is_reached = False

    def put(self) -> None:
        """From a compute thread."""
        self._loop.call_soon_threadsafe(self._reach)

    def call_off(self) -> None:
        """Call nothing if the work comes here after all."""
        self._is_called_off = True

    async def reached(self, started: Started) -> None:
        """Return when the work has come here, or when the batch that should bring it here has ended without."""
        while not self.is_reached and not started.is_ended:
            self._waiter = started.watch_end()
            await self._waiter

    def _reach(self) -> None:
        if self._is_called_off:
            return
        try:
            self._then()
        except Exception as error:
            self.error = error
        self.is_reached = True
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

    def start(self, stages: Sequence[Stage], *, after: Iterable[Started] = ()) -> Started:
        """Begin as soon as those it comes after have ended: stages one after the other, jobs of each side by side.

        If one of those is broken off by an error or a cancellation, no stage begins.
        """
        return Started(self._workers, stages, self._loop, after)

    def mark(self, then: Callable[[], None] = lambda: None) -> Mark:
        """A place to be put into the work."""
        return Mark(self._loop, then)

    async def finish(self, *started: Started) -> None:
        """Wait until all have ended; then raise the first error or the cancellation that came meanwhile.

        When cancelled, stages that have not begun are left out.
        """
        await self.end(*started)
        for one in started:
            if one.error is not None:
                raise one.error

    async def end(self, *started: Started) -> None:
        """As `finish`, but errors of jobs stay where they are."""
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
        return split_range(total, max(1, min(self.threads, total // max(1, least))), step)


def split_range(total: int, parts: int, step: int = 1) -> list[tuple[int, int]]:
    """[0, total) in at most `parts` ranges of nearly equal size, each but the last a multiple of `step` long."""
    ranges = (part_of(total, part, parts, step) for part in range(parts))
    return [(first, last) for first, last in ranges if first < last]


def part_of(total: int, part: int, parts: int, step: int) -> tuple[int, int]:
    """The range of [0, total) that is this one of so many parts; empty if there are more parts than steps."""
    steps = -(-total // step)
    return min(total, steps * part // parts * step), min(total, steps * (part + 1) // parts * step)

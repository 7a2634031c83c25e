"""From the event loop to the compute threads and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from waste.kernels.workers import Workers

T = TypeVar("T")
Job = Callable[[int], None]
"""Work for one compute thread; the argument is the thread's number, for memory of its own."""


class Compute:
    """Runs jobs on the engine's compute threads for the loop that created it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._loop = asyncio.get_running_loop()

    @property
    def threads(self) -> int:
        return self._workers.threads

    def start(
        self, jobs: Sequence[Job], on_end: Callable[[BaseException | None], None] | None = None
    ) -> asyncio.Future[None]:
        """Begin; the future ends when the last job has, with the first error if there was one.

        on_end: gets that error instead, or None, on the loop, before the future ends; it must not raise.

        Hand the future to `finish`: jobs cannot be taken back, and their arrays must outlive them.
        """
        future: asyncio.Future[None] = self._loop.create_future()

        def settle(error: BaseException | None) -> None:
            if on_end is not None:
                on_end(error)
            if error is None or on_end is not None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def done(error: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(settle, error)

        self._workers.submit(jobs, done)
        return future

    async def finish(self, *futures: asyncio.Future[None]) -> None:
        """Wait until all have ended, even if cancelled meanwhile; then raise the first error or the cancellation."""
        cancelled: asyncio.CancelledError | None = None
        pending = set(futures)
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
                pending = {future for future in pending if not future.done()}
        errors = [future.exception() for future in futures]
        if cancelled is not None:
            raise cancelled
        for failure in errors:
            if failure is not None:
                raise failure

    async def run(self, jobs: Sequence[Job]) -> None:
        """Start and finish."""
        await self.finish(self.start(jobs))

    async def call(self, work: Callable[[], T]) -> T:
        """What `work` returns, computed on one of the threads."""
        results: list[T] = []
        await self.run([lambda worker: results.append(work())])
        return results[0]

    def split(self, total: int, step: int = 1) -> list[tuple[int, int]]:
        """`total` items as one range a thread, cut at multiples of `step`; fewer if there is not enough."""
        return split_range(total, self.threads, step)


def split_range(total: int, parts: int, step: int = 1) -> list[tuple[int, int]]:
    """[0, total) in at most `parts` ranges of nearly equal size, each but the last a multiple of `step` long."""
    units = -(-total // step)
    cuts = [min(total, units * part // parts * step) for part in range(parts + 1)]
    return [(first, last) for first, last in pairwise(cuts) if first < last]

"""Work on a few threads, in any order, results in theirs; the first error or a call to stop ends it soon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TypeVar

from waste.convert.reading import ReadBuffer
from waste.kernels.workers import Job, Stage, Workers

T = TypeVar("T")
R = TypeVar("R")

_POLL_S = 0.1
"""How often the waiting thread looks for signals, which Python handles only between its waits."""


class StoppedError(Exception):
    """The conversion was asked to stop."""


class Jobs:
    """`count` threads, each with a buffer to read into. Use as a context manager."""

    def __init__(self, count: int) -> None:
        self._workers = Workers(count)
        self._buffers = [ReadBuffer() for _ in range(count)]
        self._stop = Event()

    @property
    def count(self) -> int:
        return len(self._buffers)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._workers.close()

    def stop(self) -> None:
        """From any thread: let `map` raise `StoppedError` as soon as it can."""
        self._stop.set()

    def check(self) -> None:
        """Raise Stopped if somebody asked for that; long jobs call it now and then."""
        if self._stop.is_set():
            raise StoppedError

    def map(self, function: Callable[[T, ReadBuffer], R], items: Sequence[T]) -> list[R]:
        """`function` of each item and a buffer that nobody else uses meanwhile. Raises the first error."""
        results: dict[int, R] = {}
        failed, ended = Event(), Event()
        errors: list[BaseException] = []

        def run(position: int, thread: int) -> None:
            if failed.is_set():
                return
            try:
                self.check()
                results[position] = function(items[position], self._buffers[thread])
            except BaseException:
                failed.set()
                raise

        def end(error: BaseException | None) -> None:
            if error is not None:
                errors.append(error)
            ended.set()

        jobs: list[Job] = [partial(run, position) for position in range(len(items))]
        self._workers.submit([Stage("convert", jobs)], end)
        while not ended.wait(_POLL_S):
            pass
        if errors:
            raise errors[0]
        return [results[position] for position in range(len(items))]

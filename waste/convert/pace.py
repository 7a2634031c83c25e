"""How fast a long piece of work goes, and how long it will take."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic

Progress = Callable[[str, int, int], None]
_MIB = 1 << 20
_WARM_UP_S = 1.0


class Pace:
    """Tells `progress` how many MiB of `total` bytes are done, with the rate and the time left in words.

    `advance` may be called on any thread. skip: bytes that were done before and say nothing about the rate.
    """

    def __init__(self, progress: Progress, total: int, *, clock: Callable[[], float] = monotonic) -> None:
        self._progress = progress
        self._total = total
        self._clock = clock
        self._began = clock()
        self._lock = Lock()
        self._done = 0
        self._skipped = 0
        self.what = ""
        self._kind = ""

    def begin(self, what: str, kind: str) -> None:
        """The next piece of work. Where its kind is another one than before, the rate so far says nothing about it."""
        with self._lock:
            self.what = what
            if kind != self._kind:
                self._kind = kind
                self._skipped += self._done
                self._done = 0
                self._began = self._clock()
        self.advance(0)

    def skip(self, count: int) -> None:
        with self._lock:
            self._skipped += count

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            done, what = self._skipped + self._done, self.what + self._words()
        self._progress(what, done // _MIB, -(-self._total // _MIB))

    def _words(self) -> str:
        seconds = self._clock() - self._began
        if seconds < _WARM_UP_S or not self._done:
            return ", MiB"
        rate = self._done / seconds
        left = max(0, self._total - self._skipped - self._done) / rate
        return f", {rate / _MIB:,.0f} MiB/s, {duration(left)} left, MiB"


def duration(seconds: float) -> str:
    """5400 is "1 h 30 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"

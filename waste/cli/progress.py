"""A progress bar on stderr, if that is a terminal, and only for what takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING

from waste.cli.output import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 0.4
"""What is over sooner shows no bar."""


class ProgressDisplay:
    """Call it as the engine does, (what, done, total), from any thread; `clear` it before text is written."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._timer: Timer | None = None
        self._latest: tuple[str, int, int] | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._bytes_read: Callable[[], int] = lambda: 0

    def __enter__(self) -> ProgressDisplay:
        if sys.stderr is not None and sys.stderr.isatty():
            self._timer = Timer(PATIENCE_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        with self._lock:
            self._latest = (what, done, total)
            if self._bar is not None:
                self._update(self._bar)

    def count_bytes(self, bytes_read: Callable[[], int]) -> None:
        """From now on say how much was read, too: a prompt's first tokens wait for all of the trunk."""
        self._bytes_read = bytes_read

    def clear(self) -> None:
        """Take the bar away, for good: the terminal is as if it had never been there."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _show(self) -> None:
        bar = _make_bar(lambda: self._bytes_read())
        with self._lock:
            if self._timer is None:  # cleared meanwhile
                return
            self._bar = bar
            bar.start()
            self._update(bar)

    def _update(self, bar: Progress) -> None:
        if self._latest is None:
            return
        what, done, total = self._latest
        if self._task is None:
            self._task = bar.add_task(what, total=total)
        bar.update(self._task, description=what, completed=done, total=total)


def _make_bar(bytes_read: Callable[[], int]) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class BytesRead(ProgressColumn):
        """Asked for at each refresh, so that it moves while a step waits for the disk."""

        def render(self, task: Task) -> Text:
            size = 0 if task.finished else bytes_read()
            return Text(f"{format_bytes(size)} read" if size else "")

    class TimeLeft(TimeRemainingColumn):
        """As far as can be said by the speed so far; nothing before there is one."""

        def render(self, task: Task) -> Text:
            known = task.time_remaining is not None and not task.finished
            return Text(f"{super().render(task)} left" if known else "")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeLeft(compact=True),
        BytesRead(),
        console=Console(stderr=True),
        transient=True,
    )

"""Ctrl-C and SIGTERM: a graceful end if it is quick, an end in any case.

While a model runs, the signal calls that off, and the engine closes as on any other cancellation. A watchdog ends the
process if this takes too long: a kernel is being compiled, or a disk has stopped answering. A second signal ends it
at once, and so does the first where there is nothing to close.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

GRACE_S = 0.5
"""For a graceful end, which takes a few milliseconds; on a busy machine a forced one still comes within a second."""


class Interruption:
    """The process's one: whether it was interrupted, by what, and whom to tell."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._cancel: Callable[[], None] | None = None
        self._wake: SimpleQueue[int] = SimpleQueue()

    def watch(self) -> None:
        """Take over the signals, from the main thread."""
        # The watchdog runs from the start: a handler that starts a thread may find the interpreter's locks taken.
        # SimpleQueue.put is made to be called from a handler.
        threading.Thread(target=self._end_late, name="waste-interrupt", daemon=True).start()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Also where a script's `&` had SIGINT ignored: who sends it to this process means it.
            signal.signal(number, self._on_signal)

    @property
    def exit_code(self) -> int:
        """What an interrupted process returns: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self._signal or signal.SIGINT)

    @contextmanager
    def calls(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Meanwhile the first signal calls `cancel`, from the main thread, instead of ending the process."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self._signal = self._signal is None, number
        if self._cancel is None or not is_first:
            os._exit(self.exit_code)
        self._wake.put(number)
        self._cancel()

    def _end_late(self) -> None:
        self._wake.get()
        time.sleep(GRACE_S)
        os._exit(self.exit_code)


INTERRUPTION = Interruption()

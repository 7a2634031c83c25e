"""A backend whose reads hang until they are released: the disk that stopped answering, for tests.

Opening files works as ever; every read then blocks on its reader's thread, as a dead device would.
"""

from __future__ import annotations

import threading

from waste.io.backends import register
from waste.io.backends.base import ReadOp
from waste.io.backends.threads import ThreadsBackend, read_fully
from waste.io.files import FileSet


class HangingBackend(ThreadsBackend):
    """`threads` behind a gate that begins shut. `hold` and `release` may be called from any thread."""

    def __init__(self, queue_depth: int) -> None:
        self._gate = threading.Event()
        self._counter_lock = threading.Lock()
        self._reads_hanging = 0
        super().__init__(queue_depth, read=self._read_behind_gate)

    @property
    def reads_hanging(self) -> int:
        """Reads that have begun and wait for `release`: what the device has in flight."""
        return self._reads_hanging

    def hold(self) -> None:
        """Let every read that begins from now on hang."""
        self._gate.clear()

    def release(self) -> None:
        """Let the hanging reads go on, and all later ones pass."""
        self._gate.set()

    def _read_behind_gate(self, files: FileSet, op: ReadOp) -> int:
        self._count(1)
        self._gate.wait()
        self._count(-1)
        return read_fully(files, op)

    def _count(self, step: int) -> None:
        with self._counter_lock:
            self._reads_hanging += step


register("hanging", HangingBackend)

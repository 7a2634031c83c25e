"""The folder that a synthetic model is written into: whole under its name, or not there."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from waste.convert.pace import Progress
from waste.errors import InputError, WasteError

SLACK_BYTES = 64 << 20
"""Room beside the weights: tables, and what a file system needs itself."""


class FolderWriter(ABC):
    """Writes one model into a new folder. Sizes are known before anything is written."""

    def __init__(self, *, is_sparse: bool) -> None:
        """is_sparse: weights are holes, all zero."""
        self.is_sparse = is_sparse
        self._is_stopped = False

    def stop(self) -> None:
        """Give up soon: `write` raises KeyboardInterrupt and leaves nothing. Safe from a signal handler."""
        self._is_stopped = True

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise KeyboardInterrupt

    @property
    @abstractmethod
    def total_bytes(self) -> int:
        """Bytes of all weights; what the files show, not what holes take."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """Bytes of the disk that weights take, holes left out."""

    @abstractmethod
    def _write_files(self, folder: Path, progress: Progress) -> None:
        """Write everything into `folder`. An OSError is the caller's to explain."""

    def write(self, out: Path, progress: Progress = lambda what, done, total: None) -> None:
        """Write to `out`. Raises InputError if it exists or the disk has no room, WasteError if writing fails."""
        if out.exists():
            raise InputError(f"{out} exists; choose another name or remove it")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{out} cannot be made: {error.strerror or error}") from error
        need = SLACK_BYTES + self.disk_bytes
        free = shutil.disk_usage(out.parent).free
        if free < need:
            advice = "make room" if self.is_sparse else "make room or use --sparse"
            raise InputError(f"{out} needs {need:,} bytes and the disk has {free:,} free; {advice}")
        partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
        try:
            partial.mkdir()
            self._write_files(partial, progress)
            self._check_stopped()
            partial.rename(out)
        except OSError as error:
            raise WasteError(f"writing {out}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

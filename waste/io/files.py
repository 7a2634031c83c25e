"""Open files for positional reads, past the page cache where the system allows it.

Direct reads bypass the page cache (O_DIRECT on Linux, F_NOCACHE on macOS). A filesystem may refuse them when a
file is opened or only when it is first read; either way the file is read through the cache from then on, and
`direct_obtained` says so.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from waste.errors import ClosedError, InputError, ModelError, ReadError, UnsupportedError, WasteError
from waste.io.arena import Arena

DirectMode = Literal["auto", "on", "off"]

# Offset, length and address of direct reads are multiples of this: the block size of every common device.
ALIGNMENT = 4096

# Windows would otherwise translate line ends.
_READ_ONLY = os.O_RDONLY | getattr(os, "O_BINARY", 0)

# Without preadv bytes come as an object of their own: a little at a time, for that is memory no plan counts.
COPY_BYTES = 1 << 20

_log = logging.getLogger("waste.io")


def file_error(path: Path, error: OSError) -> WasteError:
    """What an OSError about `path` is in our terms: the model's fault (missing, unreadable) or the device's."""
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return ModelError(f"{path}: {reason}")
    return ReadError(f"{path}: {reason}")


class FileSet:
    """Files by number, opened and closed together. Everything but `open` and `close` may run on any thread.

    direct: "auto" tries direct reads and falls back, "on" demands them, "off" does not try.
    warn: told once, from whichever thread notices, that reads go through the page cache against the wish.

    Raises InputError for another `direct`.
    """

    alignment = ALIGNMENT

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        direct: DirectMode = "auto",
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        if direct not in get_args(DirectMode):
            raise InputError(f"io.direct is {direct!r}; expected one of {', '.join(get_args(DirectMode))}")
        self.paths = tuple(paths)
        self._mode = direct
        self._warn = warn
        self._lock = threading.Lock()
        self._position_lock = threading.Lock()
        self._warned = False
        self._descriptors: list[int] = []
        self._direct: list[bool] = []
        self._closed = False

    @property
    def direct_obtained(self) -> bool:
        """True if every file is read past the page cache, or was until `close`; False before `open`."""
        return bool(self._direct) and all(self._direct)

    def is_direct(self, file: int) -> bool:
        """Whether this file is read past the page cache."""
        return self._direct[file]

    def use_page_cache(self, why: str) -> None:
        """Do not try direct reads after all; before `open`. Raises UnsupportedError if they are demanded."""
        if self._mode == "on":
            raise UnsupportedError(f"{why}, and io.direct is 'on'; set it to 'auto' or choose another io.backend")
        self._mode = "off"

    def descriptor(self, file: int) -> int:
        """The open file itself, for what `read_into` cannot do. Raises ClosedError before `open`, after `close`."""
        if not self._descriptors:
            raise ClosedError("the files are not open")
        return self._descriptors[file]

    def open(self) -> None:
        """Open every file and read a first block of those that are to be direct. Blocks; safe to call twice.

        Raises ModelError for a file that is missing or may not be read, ReadError for a failing device,
        UnsupportedError if direct reads are demanded and refused. On an error no descriptor stays open.
        """
        if self._closed:
            raise ClosedError("the files were closed")
        if self._descriptors:
            return
        probe = Arena(1, self.alignment)
        try:
            for number, path in enumerate(self.paths):
                try:
                    self._open_one(path)
                    if self._direct[number]:
                        self.read_into(number, probe.slot(0).data, 0)
                except OSError as error:
                    raise file_error(path, error) from error
        except BaseException:
            self._close_descriptors()
            self._direct.clear()
            raise
        finally:
            probe.close()

    def read_into(self, file: int, buffer: memoryview, offset: int) -> int:
        """One read into `buffer`; returns how many bytes came, which may be fewer than fit (0: end of file).

        Falls back from direct reads where they are refused. Raises OSError as the system does,
        UnsupportedError if direct reads are demanded and refused, ClosedError before `open` and after `close`.
        """
        descriptor = self.descriptor(file)
        was_direct = self._direct[file]
        try:
            return self._read_at(descriptor, buffer, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not was_direct:
                raise
        self._fall_back(file)
        return self._read_at(descriptor, buffer, offset)

    def close(self) -> None:
        """Close every file. Only after the last read has returned. Safe to call twice, and without `open`."""
        self._closed = True
        self._close_descriptors()

    def _read_at(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """One read at an offset, begun again where a signal interrupts it."""
        while True:
            with suppress(InterruptedError):
                if hasattr(os, "preadv"):
                    return os.preadv(descriptor, [buffer], offset)
                if hasattr(os, "pread"):
                    data = os.pread(descriptor, min(buffer.nbytes, COPY_BYTES), offset)
                else:  # Windows: the position belongs to the descriptor, so one reader at a time
                    with self._position_lock:
                        os.lseek(descriptor, offset, os.SEEK_SET)
                        data = os.read(descriptor, min(buffer.nbytes, COPY_BYTES))
                buffer[: len(data)] = data
                return len(data)

    def _open_one(self, path: Path) -> None:
        direct = False
        if self._mode != "off":
            direct = self._open_direct(path)
        if not direct:
            self._descriptors.append(os.open(path, _READ_ONLY))
            self._direct.append(False)
        if self._mode != "off" and not direct:
            self._note_fallback(path)

    def _open_direct(self, path: Path) -> bool:
        """Open `path` past the page cache; False if that is refused or the platform cannot."""
        if hasattr(os, "O_DIRECT"):
            # A file that cannot be opened at all fails again in the plain open, with the error that matters.
            with suppress(OSError):
                self._descriptors.append(os.open(path, _READ_ONLY | os.O_DIRECT))
                self._direct.append(True)
                return True
            return False
        descriptor = os.open(path, _READ_ONLY)
        if _set_uncached(descriptor, on=True):
            self._descriptors.append(descriptor)
            self._direct.append(True)
            return True
        os.close(descriptor)
        return False

    def _fall_back(self, file: int) -> None:
        """A direct read of this file was refused: read it through the page cache from now on."""
        path = self.paths[file]
        if self._mode == "on":
            self._note_fallback(path)
        with self._lock:
            if self._direct[file]:
                # The flag is cleared on the descriptor itself: other threads may be reading through it.
                _set_uncached(self._descriptors[file], on=False)
                self._direct[file] = False
        self._note_fallback(path)

    def _note_fallback(self, path: Path) -> None:
        """Warn once for all files. Raises UnsupportedError if direct reads are demanded."""
        if self._mode == "on":
            raise UnsupportedError(
                f"{path}: direct reads are refused here, and io.direct is 'on'; "
                "move the model to a local disk or set io.direct to 'auto'"
            )
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            self._warn(
                f"{path}: direct reads are refused here; reading through the page cache, "
                "which competes for memory and hides the speed of the disk"
            )

    def _close_descriptors(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)


def _set_uncached(descriptor: int, *, on: bool) -> bool:
    """Switch the page cache off or on for an open file; False if the platform cannot."""
    try:
        import fcntl  # absent on Windows
    except ImportError:
        return False
    if hasattr(os, "O_DIRECT"):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        return True
    if hasattr(fcntl, "F_NOCACHE"):
        fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1 if on else 0)
        return True
    return False

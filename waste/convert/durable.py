"""Files that are there as a whole or not at all, and stay there when the power fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waste.errors import InputError, WasteError

# Never through a symbolic link: what it leads to is somebody else's.
_WRITABLE = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside into one line that says what to do. Raises WasteError."""
    try:
        yield
    except OSError as error:
        named = error.filename2 or error.filename  # of two, the one that was to be written
        where = named if isinstance(named, str) else path
        raise WasteError(
            f"writing {where}: {error.strerror or error}; see to that and give the same command again, "
            "which goes on where this one stopped"
        ) from error


class OutputFile:
    """A file written at positions, from any thread. Raises WasteError if the system refuses."""

    def __init__(self, path: Path, *, size: int, is_new: bool) -> None:
        """size: what it will have; bytes not written yet are zero. is_new: whatever it held is dropped."""
        self.path = path
        with writing(path):
            self._descriptor = os.open(path, _WRITABLE, 0o666)
            if is_new:
                os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, size)

    def write(self, data: memoryview, position: int) -> None:
        with writing(self.path):
            write_at(self._descriptor, data, position)

    def sync(self) -> None:
        """Return when all that was written is on the device."""
        with writing(self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def write_at(descriptor: int, data: memoryview, position: int) -> None:
    """Write all of it, whatever the system takes at a time."""
    done = 0
    while done < data.nbytes:
        done += os.pwrite(descriptor, data[done:], position + done)


def write_file(path: Path, data: bytes) -> None:
    """Put a whole file at `path`: under another name until it is on the device. Raises WasteError."""
    temporary = path.with_name(f"{path.name}.part")
    output = OutputFile(temporary, size=len(data), is_new=True)
    try:
        output.write(memoryview(data), 0)
        output.sync()
    finally:
        output.close()
    move(temporary, path)


def move(source: Path, target: Path) -> None:
    """Rename a file that is on the device, durably. Raises WasteError."""
    with writing(target):
        source.replace(target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def sync_folder(folder: Path) -> None:
    """Return when the names in the folder are on the device; where the system has no way, it is taken as done."""
    if os.name == "nt":
        return
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(path: Path, *, doing: str = "converting") -> Iterator[None]:
    """Hold a file that only one process can hold. Raises InputError if another one does, and what it is doing."""
    try:
        import fcntl  # absent on Windows, where nothing is locked
    except ImportError:
        yield
        return
    with writing(path):
        descriptor = os.open(path, _WRITABLE, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(f"another process is {doing} into {path.parent.parent}; wait for its end") from None
    try:
        yield
    finally:
        os.close(descriptor)

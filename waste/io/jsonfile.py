"""JSON that strangers wrote: bounded, and refused with one clear line when it is not what it should be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from reprlib import Repr
from typing import BinaryIO

from waste.errors import DamagedError, ModelError
from waste.io.files import file_error

_LFS_STUB = b"version https://git-lfs"
_repr = Repr()
_repr.maxstring = _repr.maxother = 120
_repr.maxlevel = 2


def shown(value: object) -> str:
    """An untrusted value for a message: quoted, on one line, never long or deep."""
    return _repr.repr(value)


def refuse_lfs_stub(path: Path, head: bytes) -> None:
    """Raise DamagedError if `head`, the beginning of a file, is a git-LFS pointer instead of the content."""
    if head.startswith(_LFS_STUB):
        raise DamagedError(f"{path} is a git-LFS pointer, not the file itself; run `git lfs pull` in {path.parent}")


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """`path` open for reading, and its size in bytes.

    Raises ModelError if it is missing, unreadable or no regular file (a pipe would block forever).
    """
    try:
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is not a regular file")
        stream = path.open("rb")
        return stream, os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise file_error(path, error) from error


def read_json(path: Path, *, max_bytes: int, unique_keys: bool) -> object:
    """Parse a whole file; `unique_keys` as in `parse_json`.

    Raises ModelError if it cannot be opened, DamagedError if it is larger than `max_bytes`, a git-LFS pointer
    or not JSON.
    """
    raw = read_bounded(path, max_bytes=max_bytes)
    refuse_lfs_stub(path, raw)
    text = decode(raw, where=str(path))
    del raw  # an index has 50 MB: do not hold it twice while parsing
    return parse_json(text, where=str(path), unique_keys=unique_keys)


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """The content of a regular file. Raises ModelError, ReadError, DamagedError if it is larger than `max_bytes`."""
    stream, size = open_regular(path)
    with stream:
        if size > max_bytes:
            raise DamagedError(f"{path} has {size:,} bytes; expected at most {max_bytes:,}")
        try:
            return stream.read(size)
        except OSError as error:
            raise file_error(path, error) from error


def decode(raw: bytes, *, where: str) -> str:
    """UTF-8 bytes as text. Raises DamagedError, which begins with `where`."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"{where} is not UTF-8 text (byte {error.start})") from error


def parse_json(text: str, *, where: str, unique_keys: bool) -> object:
    """Parse JSON. With `unique_keys`, a key given twice in one object is an error; else the last one counts.

    Raises DamagedError, which begins with `where`.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_dict if unique_keys else None)
    except _DuplicateKeyError as error:
        raise DamagedError(f"{where} names {shown(error.key)} twice") from error
    except json.JSONDecodeError as error:
        found = f"is not JSON ({error.msg} at character {error.pos:,})" if text.strip() else "is empty"
        raise DamagedError(f"{where} {found}; truncated, or not the file its name says?") from error
    except (RecursionError, ValueError) as error:
        # ValueError: an integer of thousands of digits.
        raise DamagedError(f"{where} is JSON of absurd depth or with absurd numbers") from error


class _DuplicateKeyError(ValueError):
    """An object has this key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of `pairs`. Raises _DuplicateKeyError."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return made

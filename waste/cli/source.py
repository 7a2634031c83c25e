"""Where a command's text comes from: exactly one of an argument, a file, ids and what is piped in."""

from __future__ import annotations

import sys
from pathlib import Path

from waste.cli.options import parse_ids
from waste.errors import InputError


def read_source(argument: str | None, *, file: str | None = None, ids: str | None = None) -> str | list[int]:
    """The text, or the ids if that is what was given. Standard input counts only where nothing else is given.

    Raises InputError for none or more than one of them, and for text that cannot be read as UTF-8.
    """
    given = [name for name, value in (("an argument", argument), ("--file", file), ("--ids", ids)) if value is not None]
    if len(given) > 1:
        raise InputError(f"the text was given twice, as {' and as '.join(given)}; give one of them")
    if ids is not None:
        return parse_ids(ids)
    if argument is not None:
        return argument
    if file is not None:
        return _decode(_read_file(Path(file)), file)
    return read_piped()


def read_prompt(argument: str | None, *, file: str | None, ids: str | None) -> str | list[int]:
    """As `read_source`, less the line break that ends a file or what `echo` pipes: a prompt goes on after it."""
    text = read_source(argument, file=file, ids=ids)
    if argument is not None or not isinstance(text, str):
        return text
    return text.removesuffix("\n").removesuffix("\r")


def read_piped() -> str:
    """All of standard input. Raises InputError if that is a terminal, where nobody knows that it is waited for."""
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("nothing to work on; give text as an argument, with --file, or through a pipe")
    return _decode(sys.stdin.buffer.read(), "standard input")


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; expected a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text: byte {error.start:,} is 0x{data[error.start]:02x}") from None

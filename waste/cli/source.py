"""Where a command's text comes from: exactly one of an argument, a file, ids and what is piped in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from waste.cli.options import parse_ids
from waste.errors import ContextLengthError, InputError

LONGEST_TOKEN_BYTES = 4096
"""No token has more: of published vocabularies none has a tenth of it."""


def read_source(
    argument: str | None, *, file: str | None = None, ids: str | None = None, context: int | None = None
) -> str | list[int]:
    """The text, or the ids if that is what was given. Standard input counts only where nothing else is given.

    context: positions that it is for; text that no vocabulary brings into so many is not read to its end.

    Raises InputError for none or more than one of them, and for text that cannot be read as UTF-8; ContextLengthError.
    """
    given = [name for name, value in (("an argument", argument), ("--file", file), ("--ids", ids)) if value is not None]
    if len(given) > 1:
        raise InputError(f"the text was given twice, as {' and as '.join(given)}; give one of them")
    if ids is not None:
        return parse_ids(ids)
    if argument is not None:
        return argument
    if file is not None:
        return _decode(_read_file(Path(file), context), file)
    return read_piped(context)


def read_prompt(argument: str | None, *, file: str | None, ids: str | None, context: int) -> str | list[int]:
    """As `read_source`, less the line break that ends a file or what `echo` pipes: a prompt goes on after it."""
    text = read_source(argument, file=file, ids=ids, context=context)
    if argument is not None or not isinstance(text, str):
        return text
    return text.removesuffix("\n").removesuffix("\r")


def read_piped(context: int | None = None) -> str:
    """All of standard input, for so many positions.

    Raises InputError if that is a terminal, where nobody knows that it is waited for.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("nothing to work on; give text as an argument, with --file, or through a pipe")
    return _decode(_read_bounded(sys.stdin.buffer, "standard input", context), "standard input")


def _read_file(path: Path, context: int | None) -> bytes:
    try:
        with path.open("rb") as stream:
            return _read_bounded(stream, str(path), context)
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; expected a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _read_bounded(stream: BinaryIO, name: str, context: int | None) -> bytes:
    """What there is. Raises ContextLengthError once that is more than so many positions could be."""
    if context is None:
        return stream.read()
    most = context * LONGEST_TOKEN_BYTES
    data = stream.read(most + 1)
    if len(data) > most:
        raise ContextLengthError(
            f"{name} has more than {most:,} bytes, which do not fit a context of {context}; shorten the text or raise "
            "the setting `context`"
        )
    return data


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text: byte {error.start:,} is 0x{data[error.start]:02x}") from None

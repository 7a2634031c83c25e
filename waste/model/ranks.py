"""The file `tiktoken.model`: one token a line, base64 and rank."""

from __future__ import annotations

import binascii
from pathlib import Path

from waste.errors import DamagedError, ModelError
from waste.io.files import file_error
from waste.io.jsonfile import open_regular, refuse_lfs_stub

# The published file has 2.8 MB for 163,584 tokens.
MAX_FILE_BYTES = 64 << 20
MAX_RANK_DIGITS = 9


def read_ranks(path: Path, *, max_tokens: int) -> tuple[bytes, ...]:
    """The tokens in the order of their ranks: 0 to n - 1, each once, n at most `max_tokens`.

    Every single byte must be a token, or some text could not be encoded. Raises `ModelError` where the file cannot
    be opened or has too many tokens, and `DamagedError` naming the line where its content is not that.
    """
    ranks: dict[bytes, int] = {}
    lines: dict[int, int] = {}
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        token, rank = _parse(line, f"{path}, line {number}")
        if rank in lines:
            raise DamagedError(f"{path}, line {number}: rank {rank} was given to line {lines[rank]} before")
        if token in ranks:
            raise DamagedError(
                f"{path}, line {number}: the same token as line {lines[ranks[token]]}, under another rank"
            )
        ranks[token] = rank
        lines[rank] = number
    _check_complete(path, ranks, lines)
    if len(ranks) > max_tokens:
        raise ModelError(f"{path} has {len(ranks):,} tokens, but the model's vocab_size is {max_tokens:,}")
    return tuple(sorted(ranks, key=ranks.__getitem__))


def _read(path: Path) -> bytes:
    stream, size = open_regular(path)
    with stream:
        if size > MAX_FILE_BYTES:
            raise DamagedError(f"{path} has {size:,} bytes, expected at most {MAX_FILE_BYTES:,}")
        try:
            raw = stream.read(size)
        except OSError as error:
            raise file_error(path, error) from error
    refuse_lfs_stub(path, raw)
    return raw


def _parse(line: bytes, where: str) -> tuple[bytes, int]:
    fields = line.split()
    if len(fields) != 2:
        raise DamagedError(f"{where}: found {len(fields)} fields, expected base64 and rank")
    encoded, digits = fields
    if not digits.isdigit() or len(digits) > MAX_RANK_DIGITS:
        raise DamagedError(f"{where}: rank {digits[:20]!r} is not a number from 0 on")
    try:
        token = binascii.a2b_base64(encoded, strict_mode=True)
    except binascii.Error as error:
        raise DamagedError(f"{where}: {encoded[:20]!r} is not base64 ({error})") from error
    if not token:
        raise DamagedError(f"{where}: the token is empty")
    return token, int(digits)


def _check_complete(path: Path, ranks: dict[bytes, int], lines: dict[int, int]) -> None:
    highest = max(lines, default=-1)
    if highest + 1 != len(lines):
        hole = next(rank for rank in range(len(lines)) if rank not in lines)
        raise DamagedError(
            f"{path}, line {lines[highest]}: rank {highest}, but no line has rank {hole}; is the file whole?"
        )
    for value in range(256):
        if bytes([value]) not in ranks:
            raise DamagedError(f"{path} has no token for byte {value}; is the file whole?")

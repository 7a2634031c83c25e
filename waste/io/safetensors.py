"""The header of a safetensors file, with every number checked against the file before anyone believes it.

A file is: the header's length (8 bytes, little-endian), that many bytes of JSON, then the tensors' bytes. The
JSON maps names to `{"dtype", "shape", "data_offsets": [begin, end]}`, offsets counted from the header's end,
and may hold a `__metadata__` object of strings, which is not used here. Bytes no tensor claims are tolerated:
they are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from waste.errors import DamagedError, UnsupportedError
from waste.io.files import file_error
from waste.io.jsonfile import decode, open_regular, parse_json, refuse_lfs_stub, shown

# The format's own limit; the largest real header, a whole K3 in one file, would have 80 MB.
MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 32
MAX_DIMENSION = 2**63 - 1

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


class StoredTensor(NamedTuple):
    """One tensor of a file: its bytes are [begin, end), counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, sorted by where they begin.

    Raises ModelError if the file cannot be opened, DamagedError if it is truncated, a git-LFS pointer, not
    this format or contradicts itself, UnsupportedError for a dtype unknown here.
    """
    stream, file_bytes = open_regular(path)
    with stream:
        try:
            head = stream.read(64)
            refuse_lfs_stub(path, head)
            if len(head) < 8:
                raise DamagedError(f"{path} has {file_bytes} bytes; a safetensors file begins with 8 of header length")
            header_bytes = int.from_bytes(head[:8], "little")
            if header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
                raise DamagedError(
                    f"{path} claims a header of {header_bytes:,} bytes in a file of {file_bytes:,}; "
                    "truncated, or not a safetensors file"
                )
            stream.seek(8)
            raw = stream.read(header_bytes)
        except OSError as error:
            raise file_error(path, error) from error
    where = f"{path}: the header"
    parsed = parse_json(decode(raw, where=where), where=where, unique_keys=True)
    if not isinstance(parsed, dict):
        raise DamagedError(f"{path}: the header is a JSON {type(parsed).__name__}; expected an object")
    metadata = parsed.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise DamagedError(f"{path}: __metadata__ is {shown(metadata)}; expected an object")
    base = 8 + header_bytes
    tensors = [_checked(path, name, entry, base, file_bytes) for name, entry in parsed.items()]
    tensors.sort(key=attrgetter("begin", "end"))
    _refuse_overlap(path, tensors)
    return tensors


def _checked(path: Path, name: str, entry: object, base: int, file_bytes: int) -> StoredTensor:
    """One entry of the header as a tensor whose bytes lie inside the file and match its shape."""
    if not isinstance(entry, dict):
        raise DamagedError(f"{path}: {shown(name)} is {shown(entry)}; expected an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise DamagedError(f"{path}: {shown(name)} has dtype {shown(dtype)}; expected a name")
    if dtype not in DTYPE_BITS:
        raise UnsupportedError(f"{path}: {shown(name)} has dtype {shown(dtype)}; known are {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not _are_counts(shape):
        raise DamagedError(f"{path}: {shown(name)} has shape {shown(shape)}; expected a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not _are_counts(offsets):
        raise DamagedError(f"{path}: {shown(name)} has data_offsets {shown(offsets)}; expected [begin, end]")
    begin, end = offsets
    if begin > end:
        raise DamagedError(f"{path}: {shown(name)} ends at {end:,} before it begins at {begin:,}")
    if base + end > file_bytes:
        raise DamagedError(
            f"{path} is truncated: {shown(name)} ends at byte {base + end:,}, the file at {file_bytes:,}"
        )
    if (end - begin) * 8 != prod(shape) * DTYPE_BITS[dtype]:
        raise DamagedError(f"{path}: {shown(name)} is {dtype} {shown(shape)}, which {end - begin:,} bytes cannot be")
    return StoredTensor(name, dtype, tuple(shape), base + begin, base + end)


def _are_counts(values: Iterable[object]) -> bool:
    # A loop instead of all(): this runs a million times at open. type(), because JSON's true passes isinstance.
    for value in values:  # noqa: SIM110
        if type(value) is not int or not 0 <= value <= MAX_DIMENSION:
            return False
    return True


def _refuse_overlap(path: Path, tensors: list[StoredTensor]) -> None:
    """`tensors` sorted by begin. Empty ones overlap nothing."""
    filled = (tensor for tensor in tensors if tensor.begin < tensor.end)
    for before, after in pairwise(filled):
        if after.begin < before.end:
            raise DamagedError(f"{path}: {shown(before.name)} and {shown(after.name)} overlap at byte {after.begin:,}")

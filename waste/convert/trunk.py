"""One trunk tensor as a container stores it, made and written a few rows at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from waste.convert.layout import FLOAT_BYTES
from waste.convert.quantize import quantize_groups
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.io.extents import Extent
from waste.io.manifest import TrunkEntry
from waste.io.source import TensorInfo

Bytes = npt.NDArray[np.uint8]
Write = Callable[[Bytes, int], None]

CHUNK_BYTES = 4 << 20


def convert_entry(
    entry: TrunkEntry,
    tensor: TensorInfo,
    files: SourceFiles,
    buffer: ReadBuffer,
    write: Write,
    advance: Callable[[int], None],
) -> int:
    """Write the entry with `write(bytes, position)`, `advance(bytes read)` meanwhile; returns its CRC-32.

    Raises ReadError, and what the quantizer raises.
    """
    columns = entry.shape[-1]
    row_bytes = columns * FLOAT_BYTES[tensor.dtype]
    rows_at_once = max(1, CHUNK_BYTES // row_bytes)
    at, checksum = entry.offset, 0
    scales = []
    for begin in range(0, tensor.extent.length, rows_at_once * row_bytes):
        length = min(rows_at_once * row_bytes, tensor.extent.length - begin)
        extent = Extent(tensor.extent.file, tensor.extent.offset + begin, length)
        data, (start,) = files.read([extent], buffer)
        stored, row_scales = _store(data[start : start + length], tensor.dtype, entry, columns)
        write(stored, at)
        at += stored.nbytes
        checksum = zlib.crc32(stored.data, checksum)
        scales.append(row_scales)
        advance(length)
    if entry.scale_bytes:
        stored = np.concatenate(scales)
        write(stored, at)
        checksum = zlib.crc32(stored.data, checksum)
    return checksum


def _store(raw: Bytes, dtype: str, entry: TrunkEntry, columns: int) -> tuple[Bytes, Bytes]:
    """Whole rows as they are stored, and their scales; both flat."""
    name = entry.format.name
    if name == dtype:
        return raw, raw[:0]
    values = widen(raw, dtype)
    if name == "F32":
        return values.view(np.uint8), raw[:0]
    codes, scales = quantize_groups(values.reshape(-1, columns), name)
    return np.ascontiguousarray(codes).reshape(-1), np.ascontiguousarray(scales).reshape(-1)


def widen(raw: Bytes, dtype: str) -> npt.NDArray[np.float32]:
    """Stored bf16 or float32 as float32, exactly."""
    if dtype == "F32":
        return raw.view("<f4").astype(np.float32)
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)

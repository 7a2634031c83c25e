"""Records of a `.waste` bank: how one is laid out, and the header that says so.

A record is a header of 48 bytes, the payload and zeros up to whole blocks of 4 KiB. All that a header says but the
record's number and the payload's checksum follows from the manifest, so a record is laid out before it is read, and
its header is compared, not believed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waste.errors import DamagedError

Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 4096
HEADER_BYTES = 48
MAGIC = 0x50584557
MXFP4_CODE = 16
MXFP4_GROUP = 32
MXFP4_ALIGN = 64
"""Every start inside an MXFP4 record is a multiple of this."""
VECTOR = 8
"""Weights that one index of each codebook stands for."""
MATRICES = ("w1", "w3", "w2")
"""Gate, up and down, in the order of a record."""
_STRUCT = struct.Struct("<IHHBBHHHIIIIIIII")
_CHECKSUM_FIELD = 13


class VectorFormat(NamedTuple):
    """A vector-quantized format. vector_bytes: the indices of eight weights, one into each stage's codebook."""

    code: int
    name: str
    stages: int
    entries: int
    index_bits: int
    vector_bytes: int


VECTOR_FORMATS = {
    form.name: form
    for form in (
        VectorFormat(4, "VQ3R", stages=3, entries=256, index_bits=8, vector_bytes=3),
        VectorFormat(5, "VQ2R", stages=2, entries=256, index_bits=8, vector_bytes=2),
        VectorFormat(8, "VQ4P", stages=4, entries=64, index_bits=6, vector_bytes=3),
    )
}


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """What the header of every record of a bank must say. Offsets count from the record's beginning.

    code: the format's number. scales: where they begin, and for MXFP4 the payload ends. end: where the payload ends.
    """

    bank: int
    code: int
    codebook_base: int
    gate: int
    up: int
    down: int
    scales: int
    end: int

    @property
    def record_bytes(self) -> int:
        return -(-self.end // BLOCK_BYTES) * BLOCK_BYTES

    def pack(self, index: int, checksum: int) -> bytes:
        """The header of record `index`."""
        return _STRUCT.pack(*self._values(index, checksum))

    def check(self, raw: Bytes, index: int) -> int:
        """Compare the 48 bytes of record `index`; returns the checksum it promises. Flags and reserves are not used.

        Raises DamagedError with the field, what it says and what was expected.
        """
        found = _STRUCT.unpack(raw.tobytes())
        values = self._values(index, 0)
        # Every read passes here: field by field only to say which one it is.
        if found[:4] == values[:4] and found[5:7] == values[5:7] and found[8:13] == values[8:13]:
            return int(found[_CHECKSUM_FIELD])
        for at, (name, expected) in enumerate(zip(_FIELDS, values, strict=True)):
            if name and found[at] != expected:
                raise DamagedError(f"the record's {name} is {found[at]:,}, expected {expected:,}; fetch the file again")
        return int(found[_CHECKSUM_FIELD])

    def _values(self, index: int, checksum: int) -> tuple[int, ...]:
        blocks = self.record_bytes // BLOCK_BYTES
        offsets = (self.gate, self.up, self.down, self.scales)
        return (MAGIC, self.bank, index, self.code, 0, self.codebook_base, 0, 0, blocks, *offsets, checksum, 0, 0)


# In the order of the struct; without a name what is not compared.
_FIELDS = (
    *("magic", "layer", "expert", "format", "", "codebook base", "lowrank id", "", "size in blocks of 4 KiB"),
    *("gate offset", "up offset", "down offset", "scales offset", "", "", ""),
)


def check_payload(payload: Bytes, checksum: int) -> None:
    """Raise DamagedError unless the bytes from the header's end to the payload's have this CRC-32."""
    compare_checksums(zlib.crc32(payload.data), checksum)


def compare_checksums(found: int, checksum: int) -> None:
    """Raise DamagedError unless the payload's CRC-32 is the one that its header promises."""
    if found != checksum:
        raise DamagedError(
            f"the record's bytes have the checksum {found:08x}, its header says {checksum:08x}; fetch the file again"
        )


class Span(NamedTuple):
    """One part of a record: its name, type and shape, and where its bytes lie from the record's beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How every record of a bank is laid out. spans: header first, then the matrices' weights and scales."""

    header: RecordHeader
    spans: tuple[Span, ...]


Shapes = Mapping[str, tuple[int, int]]
"""Rows and columns of w1, w3 and w2."""

_HEADER_SPAN = Span("header", "U8", (HEADER_BYTES,), 0, HEADER_BYTES)


def vector_form(bank: int, form: VectorFormat, *, base: int, index_block: int, shapes: Shapes) -> RecordForm:
    """Indices of gate, up and down, rows padded to whole index blocks, then a float16 scale a row of each."""
    weights, scales, starts = [], [], []
    at = HEADER_BYTES
    for name in MATRICES:
        rows, columns = shapes[name]
        block = max(1, index_block)
        length = -(-rows // block) * block * (columns // VECTOR) * form.vector_bytes
        weights.append(Span(f"{name}.weight", form.name, (rows, columns), at, length))
        starts.append(at)
        at += length
    scales_at = at
    for name in MATRICES:
        rows = shapes[name][0]
        scales.append(Span(f"{name}.weight_scale", "F16", (rows,), at, 2 * rows))
        at += 2 * rows
    gate, up, down = starts
    header = RecordHeader(bank, form.code, base, gate, up, down, scales_at, at)
    return RecordForm(header, (_HEADER_SPAN, *weights, *scales))


def mxfp4_form(bank: int, *, shapes: Shapes) -> RecordForm:
    """Packed nibbles and scale bytes of gate, up and down in turn, each beginning at a multiple of 64."""
    spans, starts = [_HEADER_SPAN], []
    at = HEADER_BYTES
    for name in MATRICES:
        rows, columns = shapes[name]
        for half, weights in (("packed", 2), ("scale", MXFP4_GROUP)):
            at = -(-at // MXFP4_ALIGN) * MXFP4_ALIGN
            length = rows * (columns // weights)
            spans.append(Span(f"{name}.weight_{half}", "U8", (rows, columns // weights), at, length))
            if half == "packed":
                starts.append(at)
            at += length
    gate, up, down = starts
    return RecordForm(RecordHeader(bank, MXFP4_CODE, 0, gate, up, down, at, at), tuple(spans))

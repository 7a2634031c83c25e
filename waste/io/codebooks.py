"""Codebooks of a `.waste` container: vectors of eight float16 that the indices of a bank's records select.

Each is a header of 16 bytes and its entries. A bank has one for every matrix and stage, in this order, one after
another in `codebooks.bin`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waste.errors import DamagedError
from waste.io.extents import Extent
from waste.io.record import MATRICES, VECTOR, VectorFormat

MAGIC = 0x4B424357
HEADER_BYTES = 16
_FORMAT_BYTE = 4
_STRUCT = struct.Struct("<IHBBII")


@dataclass(frozen=True, slots=True)
class Codebooks:
    """The codebooks of one bank: where they lie, headers included, and the number of the first."""

    extent: Extent
    first: int
    stages: int
    entries: int
    index_block: int
    """Rows whose indices are stored together, as the format's kernels take it."""
    checksums: tuple[int, ...]
    """CRC-32 of each codebook, header included; fewer than there are codebooks, or none, where nobody wrote them."""

    @property
    def count(self) -> int:
        return len(MATRICES) * self.stages

    @property
    def matrix_values(self) -> int:
        """Float32 values of one matrix' codebooks."""
        return self.stages * self.entries * VECTOR

    def widen(self, raw: npt.NDArray[np.uint8], values: npt.NDArray[np.float32]) -> None:
        """Check the bytes of the extent, and put the entries into `values`, float32 [3, matrix_values].

        Raises DamagedError naming the codebook and what is wrong with it. Its format byte is not looked at: writers
        put the same one for all formats.
        """
        flat = values.reshape(self.count, self.entries * VECTOR)
        for position, book in enumerate(raw.reshape(self.count, codebook_bytes(self.entries))):
            number = self.first + position
            magic, found, _, width, entries, _ = _STRUCT.unpack(book[:HEADER_BYTES].tobytes())
            expected = (MAGIC, number, VECTOR, self.entries)
            if (magic, found, width, entries) != expected:
                raise DamagedError(
                    f"codebook {number}: magic, number, vector width and entries are "
                    f"{magic:#x}, {found}, {width} and {entries}; "
                    f"expected {MAGIC:#x}, {number}, {VECTOR} and {self.entries}"
                )
            flat[position] = book[HEADER_BYTES:].view("<f2")
            if not np.isfinite(flat[position]).all():
                raise DamagedError(f"codebook {number} holds infinities or NaN; expected numbers")

    def check_sums(self, raw: npt.NDArray[np.uint8]) -> None:
        """Raise DamagedError unless the codebooks in the bytes of the extent have their checksums."""
        books = raw.reshape(self.count, codebook_bytes(self.entries))
        for position, (book, checksum) in enumerate(zip(books, self.checksums, strict=False)):
            found = zlib.crc32(book.data)
            if found != checksum:
                raise DamagedError(
                    f"codebook {self.first + position} has the checksum {found:08x}, the manifest says {checksum:08x}; "
                    "fetch the file again"
                )


def codebook_bytes(entries: int) -> int:
    """Bytes of one codebook, its header included."""
    return HEADER_BYTES + entries * VECTOR * 2


def pack_header(number: int, form: VectorFormat) -> bytes:
    """The header of codebook `number`, with the format byte that every known writer puts there."""
    return _STRUCT.pack(MAGIC, number, _FORMAT_BYTE, VECTOR, form.entries, 0)

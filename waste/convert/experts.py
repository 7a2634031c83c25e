"""One expert's record: its matrices widened a block of rows at a time, encoded, and put where the record has them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from waste.convert.codebooks import Codebooks
from waste.convert.layout import INDEX_BLOCK
from waste.convert.quantize import absolute_maximum, divide, half_scales, quantize_mxfp4
from waste.errors import DamagedError
from waste.io.record import HEADER_BYTES, MATRICES, MXFP4_GROUP, VECTOR, RecordForm, RecordHeader, VectorFormat
from waste.io.source import Part
from waste.kernels import bf16, f32, mxfp4
from waste.kernels.vq_encode import AT_ONCE, SCRATCH, encode

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Check = Callable[[], None]

_WIDEN = {"BF16": (bf16.widen, 2), "F32": (f32.widen, 4)}
_NAN_SCALE = 255


class ExpertWeights:
    """An expert as it was read: `data` and where in it each of `parts` begins."""

    def __init__(self, parts: Sequence[Part], data: Bytes, starts: Sequence[int]) -> None:
        self._parts = {part.name: (part, start) for part, start in zip(parts, starts, strict=True)}
        self._data = data

    @property
    def is_packed(self) -> bool:
        """Whether it is stored as MXFP4."""
        return any(name.endswith("_packed") for name in self._parts)

    def stored(self, name: str) -> Bytes:
        """The bytes of a part of one byte an element."""
        part, start = self._parts[name]
        return self._data[start : start + part.shape[0] * part.shape[1]]

    def shape(self, matrix: str) -> tuple[int, int]:
        if self.is_packed:
            rows, half = self._parts[f"{matrix}.weight_packed"][0].shape
            return rows, 2 * half
        rows, columns = self._parts[f"{matrix}.weight"][0].shape
        return rows, columns

    def widen(self, matrix: str, first: int, rows: int) -> Floats:
        """Rows `first` to `first + rows` as float32, exactly."""
        columns = self.shape(matrix)[1]
        values = np.empty((rows, columns), np.float32)
        if self.is_packed:
            at = self._parts[f"{matrix}.weight_packed"][1] + first * (columns // 2)
            scale_at = self._parts[f"{matrix}.weight_scale"][1] + first * (columns // MXFP4_GROUP)
            mxfp4.widen(self._data, at, scale_at, columns, rows, values)
        else:
            part, start = self._parts[f"{matrix}.weight"]
            widen, size = _WIDEN[part.dtype]
            widen(self._data, start + first * columns * size, 0, columns, rows, values)
        return values

    def check(self) -> None:
        """Raise DamagedError for an MXFP4 scale that is no number."""
        for name in (f"{matrix}.weight_scale" for matrix in MATRICES if self.is_packed):
            if (self.stored(name) == _NAN_SCALE).any():
                raise DamagedError(f"{name} holds 255, which is no scale")


class RecordEncoder:
    """Makes records of one bank. `encode` may run on several threads; `check` is called again and again there."""

    def __init__(self, form: RecordForm, check: Check) -> None:
        self._form = form
        self._spans = {span.name: span for span in form.spans}
        self._check = check

    def encode(self, index: int, weights: ExpertWeights) -> Bytes:
        """Record `index`, whole: header, payload, zeros up to its size.

        Raises DamagedError for weights that are no numbers, UnsupportedError for some that the format cannot hold.
        """
        weights.check()
        record = np.zeros(self._form.header.record_bytes, np.uint8)
        for matrix in MATRICES:
            self._fill(record, matrix, weights)
        seal(record, self._form.header, index)
        return record

    def _fill(self, record: Bytes, matrix: str, weights: ExpertWeights) -> None:
        raise NotImplementedError

    def _part(self, record: Bytes, name: str) -> Bytes:
        span = self._spans[name]
        return record[span.offset : span.offset + span.length]


class PackedEncoder(RecordEncoder):
    """MXFP4 records: the stored bytes where they are MXFP4 already."""

    def _fill(self, record: Bytes, matrix: str, weights: ExpertWeights) -> None:
        names = (f"{matrix}.weight_packed", f"{matrix}.weight_scale")
        if weights.is_packed:
            for name in names:
                self._part(record, name)[:] = weights.stored(name)
            return
        rows, columns = weights.shape(matrix)
        codes = self._part(record, names[0]).reshape(rows, columns // 2)
        scales = self._part(record, names[1]).reshape(rows, columns // MXFP4_GROUP)
        for first in range(0, rows, INDEX_BLOCK):
            self._check()
            last = min(first + INDEX_BLOCK, rows)
            codes[first:last], scales[first:last] = quantize_mxfp4(weights.widen(matrix, first, last - first))


class VectorEncoder(RecordEncoder):
    """Vector-quantized records. books: those of w1, w3 and w2."""

    def __init__(self, form: RecordForm, check: Check, vectors: VectorFormat, books: Mapping[str, Codebooks]) -> None:
        super().__init__(form, check)
        self._vectors = vectors
        self._books = books

    def _fill(self, record: Bytes, matrix: str, weights: ExpertWeights) -> None:
        rows, columns = weights.shape(matrix)
        books, stages = self._books[matrix], self._vectors.stages
        blocks = self._part(record, f"{matrix}.weight")
        blocks = blocks.reshape(-1, columns // VECTOR, INDEX_BLOCK, self._vectors.vector_bytes)
        scales = self._part(record, f"{matrix}.weight_scale").view("<f2")
        scratch = np.empty(SCRATCH, np.float32)
        for block, first in enumerate(range(0, rows, INDEX_BLOCK)):
            self._check()
            count = min(INDEX_BLOCK, rows - first)
            values, scales[first : first + count] = normalize(weights.widen(matrix, first, count))
            padded = -(-count // AT_ONCE) * AT_ONCE
            if padded > count:
                values = np.concatenate((values, np.zeros((padded - count, columns), np.float32)))
            indices = np.empty((columns // VECTOR, padded, stages), np.uint8)
            encode(values, books.values, books.halves, stages, self._vectors.entries, scratch, indices)
            blocks[block, :, :count] = pack_indices(indices[:, :count], self._vectors)


def seal(record: Bytes, header: RecordHeader, index: int) -> None:
    """Put the header of record `index` in front of the payload that is there, with its CRC-32."""
    checksum = zlib.crc32(record[HEADER_BYTES : header.end].data)
    record[:HEADER_BYTES] = np.frombuffer(header.pack(index, checksum), np.uint8)


def normalize(values: Floats) -> tuple[Floats, npt.NDArray[np.float16]]:
    """Rows over their scales, and the scales: absolute maxima, rounded to float16."""
    scales = half_scales(absolute_maximum(values))
    return divide(values, scales), scales


def pack_indices(indices: Bytes, vectors: VectorFormat) -> Bytes:
    """Indices [..., stages] as they are stored: a byte each, or four of six bits in three bytes."""
    if vectors.index_bits == 8:
        return indices
    s0, s1, s2, s3 = (indices[..., stage] for stage in range(4))
    return np.stack((s0 | s1 << 6, s1 >> 2 | s2 << 4, s2 >> 4 | s3 << 2), axis=-1)

"""Stored weights back to float32, whatever the format: what verification compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from waste.convert.experts import ExpertWeights
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.errors import UnsupportedError
from waste.io.codebooks import Codebooks
from waste.io.extents import Extent
from waste.io.record import MATRICES, VECTOR_FORMATS
from waste.io.source import Bank, TensorInfo
from waste.kernels import bf16, f16, f32, q4g, q8g, vq

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_VECTOR_WIDEN: Mapping[str, Any] = {"VQ3R": vq.vq3r_widen, "VQ2R": vq.vq2r_widen, "VQ4P": vq.vq4p_widen}
_WIDEN: Mapping[str, Any] = {"BF16": bf16.widen, "F16": f16.widen, "F32": f32.widen, "Q8G": q8g.widen, "Q4G": q4g.widen}
DECODERS: tuple[Any, ...] = (*_VECTOR_WIDEN.values(), *_WIDEN.values())


def decode_rows(tensor: TensorInfo, first: int, count: int, files: SourceFiles, buffer: ReadBuffer) -> Floats:
    """Rows of a trunk tensor, all sizes but the last taken together as rows. Raises UnsupportedError, ReadError."""
    if tensor.dtype not in _WIDEN:
        raise UnsupportedError(f"{tensor.dtype} cannot be decoded; known are {', '.join(_WIDEN)}")
    columns = tensor.shape[-1]
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    extents = [_rows_of(tensor.extent, rows, first, count)]
    if tensor.scales is not None:
        extents.append(_rows_of(tensor.scales, rows, first, count))
    data, starts = files.read(extents, buffer)
    values = np.empty((count, columns), np.float32)
    _WIDEN[tensor.dtype](data, starts[0], starts[-1], columns, count, values)
    return values


def _rows_of(extent: Extent, rows: int, first: int, count: int) -> Extent:
    size = extent.length // rows
    return Extent(extent.file, extent.offset + first * size, count * size)


class ExpertDecoder:
    """Experts of one bank. `raw_books`: the bytes of its codebooks, where it has some. Raises DamagedError."""

    def __init__(self, bank: Bank, raw_books: Bytes | None) -> None:
        self._bank = bank
        self._books: Floats | None = None
        if bank.codebooks is not None:
            assert raw_books is not None
            self._books = read_books(bank.codebooks, raw_books)

    def decode(self, matrix: str, data: Bytes, starts: Sequence[int]) -> Floats:
        """One matrix of the expert whose parts begin at `starts` in `data`."""
        places = {part.name: (part, start) for part, start in zip(self._bank.parts, starts, strict=True)}
        part, start = places.get(f"{matrix}.weight", (None, 0))
        if part is None or part.dtype not in VECTOR_FORMATS:
            weights = ExpertWeights(self._bank.parts, data, starts)
            return weights.widen(matrix, 0, weights.shape(matrix)[0])
        assert self._books is not None
        assert self._bank.codebooks is not None
        rows, columns = part.shape
        values = np.empty((rows, columns), np.float32)
        books = self._books[MATRICES.index(matrix)]
        scale_at = places[f"{matrix}.weight_scale"][1]
        block = self._bank.codebooks.index_block
        _VECTOR_WIDEN[part.dtype](data, start, scale_at, columns, rows, block, books, values)
        return values


def read_books(codebooks: Codebooks, raw: Bytes) -> Floats:
    """The entries as float32 [3, stages·entries·8]. Raises DamagedError."""
    values = np.empty((len(MATRICES), codebooks.matrix_values), np.float32)
    codebooks.widen(raw, values)
    return values

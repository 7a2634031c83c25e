"""Vector-quantized weights as a matrix, and the products that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernel_set import CodebookKernels
from .experts import Integers, answer
from .formats import Bytes, Doubles, Floats

Indices = npt.NDArray[Any]
VECTOR = 8


def byte_indices(stored: Bytes) -> Indices:
    """A byte an index."""
    return stored


def packed_indices(stored: Bytes) -> Indices:
    """[..., 3] bytes as [..., 4] indices of six bits, the lowest bits first."""
    b0, b1, b2 = np.moveaxis(stored.astype(np.int64), -1, 0)
    word = b0 | b1 << 8 | b2 << 16
    return np.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], axis=-1)


def codebook_kernels(
    unpack: Callable[[Bytes], Indices], *, vector_bytes: int, stages: int, entries: int
) -> CodebookKernels:
    """The kernels of a format: `unpack` makes indices of the bytes of eight weights."""

    def matrix(
        data: Bytes, at: int, scale_at: int, columns: int, first: int, last: int, block: int, books: Floats
    ) -> Doubles:
        """The rows first ≤ r < last, [rows, columns]."""
        vectors = columns // VECTOR
        rows = np.arange(first, last)
        if block:
            begins = (rows // block * vectors * block + rows % block)[:, None] + np.arange(vectors) * block
        else:
            begins = rows[:, None] * vectors + np.arange(vectors)
        indices = unpack(data[at + (begins * vector_bytes)[..., None] + np.arange(vector_bytes)])
        tables = books.reshape(stages, entries, VECTOR).astype(np.float64)
        weights = sum(tables[s][indices[..., s]] for s in range(stages))
        scales = data[scale_at + 2 * first : scale_at + 2 * last].view("<f2").astype(np.float64)
        result: Doubles = np.reshape(weights, (last - first, columns)) * scales[:, None]
        return result

    def product(
        data: Bytes, at: int, scale_at: int, columns: int, first: int, last: int, block: int, books: Floats,
        x: Floats, y: Floats,
    ) -> None:  # fmt: skip
        """y = x·Wᵀ for the rows first ≤ r < last of W."""
        y[:, first:last] = x[:, :columns] @ matrix(data, at, scale_at, columns, first, last, block, books).T

    def widen(
        data: Bytes, at: int, scale_at: int, columns: int, rows: int, block: int, books: Floats, y: Floats
    ) -> None:
        """y = W."""
        y[:rows, :columns] = matrix(data, at, scale_at, columns, 0, rows, block, books)

    def experts(
        records: Integers, block: int, books: Floats, x: Floats, tokens: Integers, gathered: Floats, gate: Floats,
        up: Floats, answers: Floats, kind: int, beta: float, linear_beta: float, turns: Integers, found: Integers,
    ) -> None:  # fmt: skip
        """answers = w2·act(w1·x, w3·x) of several experts."""

        def multiply(data: Bytes, places: Integers, matrix: int, columns: int, rows: int, x: Floats, y: Floats) -> None:
            place = (int(places[matrix]), int(places[3 + matrix]), columns, 0, rows)
            product(data, *place, block, books[matrix], x, y)

        answer(
            multiply, find_bad_scale, records, x, tokens, gathered, gate, up, answers,
            kind, beta, linear_beta, turns, found, gate.shape[1], answers.shape[1],
        )  # fmt: skip

    return CodebookKernels(product=product, widen=widen, find_bad_scale=find_bad_scale, experts=experts)


def find_bad_scale(data: Bytes, scale_at: int, count: int, found: npt.NDArray[np.int64], slot: int) -> None:
    """found[slot] = position of the first float16 that is no finite number, or −1."""
    bad = np.flatnonzero(~np.isfinite(data[scale_at : scale_at + 2 * count].view("<f2")))
    found[slot] = bad[0] if bad.size else -1

"""Weights of each format as a matrix, and the products that follow from it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..formats import WeightFormat
from ..kernel_set import FormatKernels, Kernel
from .experts import Integers, answer

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Matrix = Callable[[Bytes, int, int, int, int], Doubles]
"""(data, at, scale_at, columns, rows) → the rows' weights [rows, columns]; `at` and `scale_at` are row 0's."""

CODE_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def bf16_matrix(data: Bytes, at: int, scale_at: int, columns: int, rows: int) -> Doubles:
    halves = data[at : at + 2 * rows * columns].view("<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(rows, columns)


def f16_matrix(data: Bytes, at: int, scale_at: int, columns: int, rows: int) -> Doubles:
    return data[at : at + 2 * rows * columns].view("<f2").astype(np.float64).reshape(rows, columns)


def f32_matrix(data: Bytes, at: int, scale_at: int, columns: int, rows: int) -> Doubles:
    return data[at : at + 4 * rows * columns].view("<f4").astype(np.float64).reshape(rows, columns)


def mxfp4_matrix(data: Bytes, at: int, scale_at: int, columns: int, rows: int) -> Doubles:
    packed = data[at : at + rows * columns // 2]
    codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(rows, columns // 32, 32)
    exponents = data[scale_at : scale_at + rows * columns // 32].astype(np.int64).reshape(rows, columns // 32, 1)
    weights: Doubles = np.ldexp(CODE_VALUES[codes], exponents - 127)
    return weights.reshape(rows, columns)


def q8g_matrix(data: Bytes, at: int, scale_at: int, columns: int, rows: int) -> Doubles:
    groups = -(-columns // 128)
    values = data[at : at + rows * groups * 128].view(np.int8).reshape(rows, groups, 128)
    return _scaled(values, data, scale_at)[:, :columns]


def q4g_matrix(data: Bytes, at: int, scale_at: int, columns: int, rows: int) -> Doubles:
    groups = -(-columns // 128)
    packed = data[at : at + rows * groups * 64]
    values = np.stack([packed & 15, packed >> 4], axis=1).view(np.int8) - np.int8(8)
    return _scaled(values.reshape(rows, groups, 128), data, scale_at)[:, :columns]


def _scaled(values: npt.NDArray[np.int8], data: Bytes, scale_at: int) -> Doubles:
    rows, groups, size = values.shape
    scales = data[scale_at : scale_at + 2 * rows * groups].view("<f2").reshape(rows, groups, 1)
    weights: Doubles = values.astype(np.float64) * scales
    return weights.reshape(rows, groups * size)


def format_kernels(
    form: WeightFormat, matrix: Matrix, *, for_experts: bool = False, find_bad_scale: Kernel | None = None
) -> FormatKernels:
    """The kernels of a format, given its matrix. One whose scales may be bad is for experts alone."""

    def product(
        data: Bytes, at: int, scale_at: int, columns: int, first: int, last: int, x: Floats, y: Floats, y_column: int
    ) -> None:
        """y = x·Wᵀ for the rows first ≤ r < last of W."""
        row_at, row_scale_at = at + first * form.row_bytes(columns), scale_at + first * form.scale_bytes(columns)
        W = matrix(data, row_at, row_scale_at, columns, last - first)
        with np.errstate(over="ignore", invalid="ignore"):
            y[:, y_column + first : y_column + last] = x[:, :columns] @ W.T

    def absorb(
        data: Bytes, at: int, scale_at: int, columns: int, rows: int, x: Floats, x_column: int, y: Floats
    ) -> None:
        """y = x·W."""
        y[:, :columns] = x[:, x_column : x_column + rows] @ matrix(data, at, scale_at, columns, rows)

    def widen(data: Bytes, at: int, scale_at: int, columns: int, rows: int, y: Floats) -> None:
        """y = W."""
        with np.errstate(over="ignore"):
            y[:rows, :columns] = matrix(data, at, scale_at, columns, rows)

    def experts(
        records: Integers, x: Floats, tokens: Integers, gathered: Floats, gate: Floats, up: Floats, answers: Floats,
        kind: int, beta: float, linear_beta: float, turns: Integers, found: Integers,
    ) -> None:  # fmt: skip
        """answers = w2·act(w1·x, w3·x) of several experts."""

        def multiply(data: Bytes, places: Integers, matrix: int, columns: int, rows: int, x: Floats, y: Floats) -> None:
            product(data, int(places[matrix]), int(places[3 + matrix]), columns, 0, rows, x, y, 0)

        inner = gate.shape[1] * form.scale_bytes(x.shape[1])
        outer = answers.shape[1] * form.scale_bytes(gate.shape[1])
        answer(
            multiply, find_bad_scale,
            records, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found, inner, outer,
        )  # fmt: skip

    if find_bad_scale is not None:
        return FormatKernels(product=product, widen=widen, find_bad_scale=find_bad_scale, experts=experts)
    return FormatKernels(product=product, widen=widen, absorb=absorb, experts=experts if for_experts else None)


def find_bad_scale(data: Bytes, scale_at: int, count: int, found: npt.NDArray[np.int64], slot: int) -> None:
    """found[slot] = position of the first scale that is NaN, or −1."""
    bad = np.flatnonzero(data[scale_at : scale_at + count] == 255)
    found[slot] = bad[0] if bad.size else -1

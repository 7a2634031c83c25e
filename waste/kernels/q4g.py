"""Q4G weights: four bits, the value + 8, with a float16 scale for each 128 of a row.

A row is stored in whole groups, two weights a byte, the low nibble first; its scales are two bytes a group. The kernels
and their arguments are those of `bf16`.
"""

from __future__ import annotations

from typing import Any

from ._f16 import load_f16_bytes, splat_f16
from ._grouped import multiply, multiply_transposed, widen_rows
from ._integers import load_i4
from ._jit import f32s2, i64, kernel, u8s

BITS, GROUP, SCALE_BYTES = 4, 128, 2


@kernel(u8s, i64, i64, i64, i64, i64, f32s2, f32s2, i64)
def product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, x: Any, y: Any, y_column: int
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    multiply(
        load_i4, splat_f16, load_f16_bytes, BITS, GROUP, SCALE_BYTES,
        data, at, scale_at, columns, first, last, x, y, y_column,
    )  # fmt: skip


@kernel(u8s, i64, i64, i64, i64, f32s2, i64, f32s2)
def absorb(data: Any, at: int, scale_at: int, columns: int, rows: int, x: Any, x_column: int, y: Any) -> None:
    """y[t, i] = Σ_r W[r, i]·x[t, x_column + r]: scaled weights, rows fused in ascending order."""
    multiply_transposed(
        load_i4, splat_f16, BITS, GROUP, SCALE_BYTES,
        data, at, scale_at, columns, rows, x, x_column, y,
    )  # fmt: skip


@kernel(u8s, i64, i64, i64, i64, f32s2)
def widen(data: Any, at: int, scale_at: int, columns: int, rows: int, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    widen_rows(load_i4, splat_f16, BITS, GROUP, SCALE_BYTES, data, at, scale_at, columns, rows, y)

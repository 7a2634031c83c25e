"""F32 weights: four bytes each, rows one after another, no scales.

The kernels and their arguments are those of `bf16`.
"""

from __future__ import annotations

from typing import Any

from ._jit import f32s2, helper, i64, kernel, u8s
from ._lanes import element, f32_from_bytes, fma, fold, load, load_f32_bytes, splat, store, zero


@helper
def four_tokens(data: Any, row: Any, columns: Any, x: Any, x_at: Any, width: Any) -> Any:
    """One row times four tokens: each weight is loaded once, each token keeps its own lanes."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for i in range(0, columns, 8):
        w = load_f32_bytes(data, row + 4 * i)
        a = fma(w, load(x, x_at + i), a)
        b = fma(w, load(x, x_at + width + i), b)
        c = fma(w, load(x, x_at + 2 * width + i), c)
        d = fma(w, load(x, x_at + 3 * width + i), d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def four_rows(data: Any, row: Any, columns: Any, x: Any, x_at: Any) -> Any:
    """Four rows times one token: four chains of sums, so that none waits for itself."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for i in range(0, columns, 8):
        value, at = load(x, x_at + i), row + 4 * i
        a = fma(load_f32_bytes(data, at), value, a)
        b = fma(load_f32_bytes(data, at + 4 * columns), value, b)
        c = fma(load_f32_bytes(data, at + 8 * columns), value, c)
        d = fma(load_f32_bytes(data, at + 12 * columns), value, d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def one_row(data: Any, row: Any, columns: Any, x: Any, x_at: Any) -> Any:
    """One row times one token."""
    sums = zero()
    for i in range(0, columns, 8):
        sums = fma(load_f32_bytes(data, row + 4 * i), load(x, x_at + i), sums)
    return fold(sums)


@kernel(u8s, i64, i64, i64, i64, i64, f32s2, f32s2, i64)
def product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, x: Any, y: Any, y_column: int
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    tokens, width = x.shape
    r = first
    while tokens == 1 and r + 4 <= last:
        out = y_column + r
        y[0, out], y[0, out + 1], y[0, out + 2], y[0, out + 3] = four_rows(data, at + 4 * columns * r, columns, x, 0)
        r += 4
    while r < last:
        row, out = at + 4 * columns * r, y_column + r
        t = 0
        while t + 4 <= tokens:
            y[t, out], y[t + 1, out], y[t + 2, out], y[t + 3, out] = four_tokens(
                data, row, columns, x, t * width, width
            )
            t += 4
        while t < tokens:
            y[t, out] = one_row(data, row, columns, x, t * width)
            t += 1
        r += 1


@kernel(u8s, i64, i64, i64, i64, f32s2, i64, f32s2)
def absorb(data: Any, at: int, scale_at: int, columns: int, rows: int, x: Any, x_column: int, y: Any) -> None:
    """y[t, i] = Σ_r W[r, i]·x[t, x_column + r]: the matrix transposed, rows fused in ascending order."""
    for t in range(x.shape[0]):
        x_at, y_at = t * x.shape[1] + x_column, t * y.shape[1]
        for i in range(0, columns, 8):
            sums = zero()
            for r in range(rows):
                w = load_f32_bytes(data, at + 4 * (columns * r + i))
                sums = fma(w, splat(element(x, x_at + r)), sums)
            store(y, y_at + i, sums)


@kernel(u8s, i64, i64, i64, i64, f32s2)
def widen(data: Any, at: int, scale_at: int, columns: int, rows: int, y: Any) -> None:
    """y[r, i] = W[r, i]."""
    for r in range(rows):
        for i in range(columns):
            y[r, i] = f32_from_bytes(data, at + 4 * (r * columns + i))

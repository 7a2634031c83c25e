"""Products of rows whose weights share a scale in groups, for every format that only loads differently.

A format is its ways to eight unscaled weights (`load`: data, position → lanes) and to a scale in every lane (`scale`),
bits of a weight, weights of a group, bytes of a scale; all are constants once a kernel is compiled. Rows are stored in
whole groups, but only `columns` weights of them count. In the canonical order a group's lanes gather from zero, then
one fused step adds them, scaled, to the row's.
"""

from __future__ import annotations

from typing import Any

from ._jit import helper
from ._lanes import element, fma, fold, lane, splat, store, zero
from ._lanes import load as load_x


@helper
def four_tokens(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any, width: Any,
) -> Any:  # fmt: skip
    """One row times four tokens: each weight is expanded once, each token keeps its own lanes."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for begin in range(0, columns, group):
        ga, gb, gc, gd = zero(), zero(), zero(), zero()
        for i in range(begin, min(begin + group, columns), 8):
            w = load(data, row + i * bits // 8)
            ga = fma(w, load_x(x, x_at + i), ga)
            gb = fma(w, load_x(x, x_at + width + i), gb)
            gc = fma(w, load_x(x, x_at + 2 * width + i), gc)
            gd = fma(w, load_x(x, x_at + 3 * width + i), gd)
        s = scale(data, scales + begin // group * scale_bytes)
        a, b, c, d = fma(ga, s, a), fma(gb, s, b), fma(gc, s, c), fma(gd, s, d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def four_rows(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, row: Any, scales: Any, columns: Any, x: Any,
) -> Any:  # fmt: skip
    """Four rows times the first token: four chains of sums, so that none waits for itself."""
    a, b, c, d = zero(), zero(), zero(), zero()
    groups = (columns + group - 1) // group
    row_bytes, row_scales = groups * group * bits // 8, groups * scale_bytes
    for begin in range(0, columns, group):
        ga, gb, gc, gd = zero(), zero(), zero(), zero()
        for i in range(begin, min(begin + group, columns), 8):
            value, at = load_x(x, i), row + i * bits // 8
            ga = fma(load(data, at), value, ga)
            gb = fma(load(data, at + row_bytes), value, gb)
            gc = fma(load(data, at + 2 * row_bytes), value, gc)
            gd = fma(load(data, at + 3 * row_bytes), value, gd)
        at = scales + begin // group * scale_bytes
        a = fma(ga, scale(data, at), a)
        b = fma(gb, scale(data, at + row_scales), b)
        c = fma(gc, scale(data, at + 2 * row_scales), c)
        d = fma(gd, scale(data, at + 3 * row_scales), d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def one_row(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any,
) -> Any:  # fmt: skip
    """One row times one token."""
    sums = zero()
    for begin in range(0, columns, group):
        partial = zero()
        for i in range(begin, min(begin + group, columns), 8):
            partial = fma(load(data, row + i * bits // 8), load_x(x, x_at + i), partial)
        sums = fma(partial, scale(data, scales + begin // group * scale_bytes), sums)
    return fold(sums)


@helper
def multiply(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, at: Any, scale_at: Any, columns: Any, first: Any, last: Any, x: Any, y: Any, y_column: Any,
) -> None:  # fmt: skip
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    tokens, width = x.shape
    groups = (columns + group - 1) // group
    row_bytes, row_scales = groups * group * bits // 8, groups * scale_bytes
    r = first
    while tokens == 1 and r + 4 <= last:
        row, scales, out = at + row_bytes * r, scale_at + row_scales * r, y_column + r
        y[0, out], y[0, out + 1], y[0, out + 2], y[0, out + 3] = four_rows(
            load, scale, bits, group, scale_bytes, data, row, scales, columns, x
        )
        r += 4
    while r < last:
        row, scales, out = at + row_bytes * r, scale_at + row_scales * r, y_column + r
        t = 0
        while t + 4 <= tokens:
            y[t, out], y[t + 1, out], y[t + 2, out], y[t + 3, out] = four_tokens(
                load, scale, bits, group, scale_bytes, data, row, scales, columns, x, t * width, width
            )
            t += 4
        while t < tokens:
            y[t, out] = one_row(load, scale, bits, group, scale_bytes, data, row, scales, columns, x, t * width)
            t += 1
        r += 1


@helper
def multiply_transposed(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, at: Any, scale_at: Any, columns: Any, rows: Any, x: Any, x_column: Any, y: Any,
) -> None:  # fmt: skip
    """y[t, i] = Σ_r W[r, i]·x[t, x_column + r]: scaled weights as float32, rows fused in ascending order."""
    groups = (columns + group - 1) // group
    row_bytes, row_scales = groups * group * bits // 8, groups * scale_bytes
    for t in range(x.shape[0]):
        x_at, y_at = t * x.shape[1] + x_column, t * y.shape[1]
        for i in range(0, columns, 8):
            sums = zero()
            for r in range(rows):
                s = scale(data, scale_at + row_scales * r + i // group * scale_bytes)
                w = load(data, at + row_bytes * r + i * bits // 8) * s
                sums = fma(w, splat(element(x, x_at + r)), sums)
            store(y, y_at + i, sums)


@helper
def widen_rows(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, at: Any, scale_at: Any, columns: Any, rows: Any, y: Any,
) -> None:  # fmt: skip
    """y[r, i] = W[r, i] as float32, its scale applied."""
    groups = (columns + group - 1) // group
    row_bytes, row_scales = groups * group * bits // 8, groups * scale_bytes
    for r in range(rows):
        for i in range(0, columns, 8):
            s = scale(data, scale_at + row_scales * r + i // group * scale_bytes)
            w = load(data, at + row_bytes * r + i * bits // 8) * s
            if i + 8 <= columns:
                store(y, r * y.shape[1] + i, w)
            else:
                for j in range(columns - i):
                    y[r, i + j] = lane(w, j)

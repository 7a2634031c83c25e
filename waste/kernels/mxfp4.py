"""MXFP4 weights, straight from the packed nibbles (OCP Microscaling Formats 1.0; compressed-tensors' packing).

A row is `columns / 2` bytes, the low nibble first; its scales are `columns / 32` bytes, one for 32 weights. A nibble
is a sign bit and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6; a scale byte e is 2^(e−127). Every weight is an exact float32,
but for e = 253 and 254, whose largest overflow to ±inf. e = 255 is NaN: `find_bad_scale` finds it, and it is never
multiplied.

In the canonical order a group's lanes gather from zero, then one fused step adds them, scaled, to the row's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._e2m1 import load_e2m1
from ._jit import f32s2, helper, i64, i64s, kernel, u8s
from ._lanes import fma, fold, from_bits, load, splat, splat_code, store, zero

GROUP = 32
_LEAST_SCALE = np.float32(2.0**-127)


@helper
def scale_of(exponent: Any) -> Any:
    """2^(e−127) in every lane; e = 0 is a subnormal float32."""
    if exponent == 0:
        return splat(_LEAST_SCALE)
    return from_bits(splat_code(np.int64(exponent) << 23))


@helper
def four_tokens(data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any, width: Any) -> Any:
    """One row times four tokens: each weight is expanded once, each token keeps its own lanes."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for group in range(columns // GROUP):
        ga, gb, gc, gd = zero(), zero(), zero(), zero()
        for i in range(group * GROUP, group * GROUP + GROUP, 8):
            w = load_e2m1(data, row + i // 2)
            ga = fma(w, load(x, x_at + i), ga)
            gb = fma(w, load(x, x_at + width + i), gb)
            gc = fma(w, load(x, x_at + 2 * width + i), gc)
            gd = fma(w, load(x, x_at + 3 * width + i), gd)
        scale = scale_of(data[scales + group])
        a, b, c, d = fma(ga, scale, a), fma(gb, scale, b), fma(gc, scale, c), fma(gd, scale, d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def four_rows(data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any) -> Any:
    """Four rows times one token: four chains of sums, so that none waits for itself."""
    a, b, c, d = zero(), zero(), zero(), zero()
    row_bytes, row_scales = columns // 2, columns // GROUP
    for group in range(row_scales):
        ga, gb, gc, gd = zero(), zero(), zero(), zero()
        for i in range(group * GROUP, group * GROUP + GROUP, 8):
            value, at = load(x, x_at + i), row + i // 2
            ga = fma(load_e2m1(data, at), value, ga)
            gb = fma(load_e2m1(data, at + row_bytes), value, gb)
            gc = fma(load_e2m1(data, at + 2 * row_bytes), value, gc)
            gd = fma(load_e2m1(data, at + 3 * row_bytes), value, gd)
        a = fma(ga, scale_of(data[scales + group]), a)
        b = fma(gb, scale_of(data[scales + row_scales + group]), b)
        c = fma(gc, scale_of(data[scales + 2 * row_scales + group]), c)
        d = fma(gd, scale_of(data[scales + 3 * row_scales + group]), d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def one_row(data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any) -> Any:
    """One row times one token."""
    sums = zero()
    for group in range(columns // GROUP):
        partial = zero()
        for i in range(group * GROUP, group * GROUP + GROUP, 8):
            partial = fma(load_e2m1(data, row + i // 2), load(x, x_at + i), partial)
        sums = fma(partial, scale_of(data[scales + group]), sums)
    return fold(sums)


@kernel(u8s, i64, i64, i64, i64, i64, f32s2, f32s2, i64)
def product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, x: Any, y: Any, y_column: int
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    tokens, width = x.shape
    r = first
    while tokens == 1 and r + 4 <= last:
        row, scales, out = at + columns // 2 * r, scale_at + columns // GROUP * r, y_column + r
        y[0, out], y[0, out + 1], y[0, out + 2], y[0, out + 3] = four_rows(data, row, scales, columns, x, 0)
        r += 4
    while r < last:
        row, scales, out = at + columns // 2 * r, scale_at + columns // GROUP * r, y_column + r
        t = 0
        while t + 4 <= tokens:
            y[t, out], y[t + 1, out], y[t + 2, out], y[t + 3, out] = four_tokens(
                data, row, scales, columns, x, t * width, width
            )
            t += 4
        while t < tokens:
            y[t, out] = one_row(data, row, scales, columns, x, t * width)
            t += 1
        r += 1


@kernel(u8s, i64, i64, i64, i64, f32s2)
def widen(data: Any, at: int, scale_at: int, columns: int, rows: int, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    for r in range(rows):
        for i in range(0, columns, 8):
            scale = scale_of(data[scale_at + (r * columns + i) // GROUP])
            store(y, r * y.shape[1] + i, load_e2m1(data, at + (r * columns + i) // 2) * scale)


@kernel(u8s, i64, i64, i64s, i64)
def find_bad_scale(data: Any, scale_at: int, count: int, found: Any, slot: int) -> None:
    """found[slot] = position of the first of `count` scales that is 255, the NaN, or −1."""
    found[slot] = -1
    for i in range(count):
        if data[scale_at + i] == 255:
            found[slot] = i
            break

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

from ._jit import f32s2, helper, i64, i64s, kernel, u8s
from ._lanes import (
    as_bits,
    fma,
    fold,
    from_bits,
    load,
    load_nibbles,
    splat,
    splat_code,
    store,
    to_float,
    zero,
)

GROUP = 32
_LEAST_SCALE = np.float32(2.0**-127)
_HALF = np.float32(0.5)


@helper
def expand(data: Any, at: Any) -> Any:
    """Eight weights, before their scale, from four bytes.

    With t the three low bits of a nibble, the doubled magnitude is t below 2 and (2 + lowest bit) shifted left
    by max(t / 2 − 1, 0) from there on.
    """
    nibbles = load_nibbles(data, at)
    one = splat_code(1)
    low = nibbles & one
    middle = (nibbles >> one) & one
    high = (nibbles >> splat_code(2)) & one
    leading = (middle | high) << one
    doubled = (low | leading) << (high + (high & middle))
    sign = (nibbles >> splat_code(3)) << splat_code(31)
    return from_bits(as_bits(to_float(doubled) * splat(_HALF)) | sign)


@helper
def scale_of(exponent: Any) -> Any:
    """2^(e−127) in every lane; e = 0 is a subnormal float32."""
    if exponent == 0:
        return splat(_LEAST_SCALE)
    return from_bits(splat_code(np.int64(exponent) << 23))


@helper
def row_product_4(data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any, width: Any) -> Any:
    """One row times four tokens: each weight is expanded once, each token keeps its own lanes."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for group in range(columns // GROUP):
        ga, gb, gc, gd = zero(), zero(), zero(), zero()
        for i in range(group * GROUP, group * GROUP + GROUP, 8):
            w = expand(data, row + i // 2)
            ga = fma(w, load(x, x_at + i), ga)
            gb = fma(w, load(x, x_at + width + i), gb)
            gc = fma(w, load(x, x_at + 2 * width + i), gc)
            gd = fma(w, load(x, x_at + 3 * width + i), gd)
        scale = scale_of(data[scales + group])
        a, b, c, d = fma(ga, scale, a), fma(gb, scale, b), fma(gc, scale, c), fma(gd, scale, d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def row_product(data: Any, row: Any, scales: Any, columns: Any, x: Any, x_at: Any) -> Any:
    sums = zero()
    for group in range(columns // GROUP):
        partial = zero()
        for i in range(group * GROUP, group * GROUP + GROUP, 8):
            partial = fma(expand(data, row + i // 2), load(x, x_at + i), partial)
        sums = fma(partial, scale_of(data[scales + group]), sums)
    return fold(sums)


@kernel(u8s, i64, i64, i64, i64, i64, f32s2, f32s2, i64)
def product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, x: Any, y: Any, y_column: int
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    tokens, width = x.shape
    for r in range(first, last):
        row, scales, out = at + columns // 2 * r, scale_at + columns // GROUP * r, y_column + r
        t = 0
        while t + 4 <= tokens:
            y[t, out], y[t + 1, out], y[t + 2, out], y[t + 3, out] = row_product_4(
                data, row, scales, columns, x, t * width, width
            )
            t += 4
        while t < tokens:
            y[t, out] = row_product(data, row, scales, columns, x, t * width)
            t += 1


@kernel(u8s, i64, i64, i64, i64, f32s2)
def widen(data: Any, at: int, scale_at: int, columns: int, rows: int, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    for r in range(rows):
        for i in range(0, columns, 8):
            scale = scale_of(data[scale_at + (r * columns + i) // GROUP])
            store(y, r * y.shape[1] + i, expand(data, at + (r * columns + i) // 2) * scale)


@kernel(u8s, i64, i64, i64s, i64)
def find_bad_scale(data: Any, scale_at: int, count: int, found: Any, slot: int) -> None:
    """found[slot] = position of the first of `count` scales that is 255, the NaN, or −1."""
    found[slot] = -1
    for i in range(count):
        if data[scale_at + i] == 255:
            found[slot] = i
            break

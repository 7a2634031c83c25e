"""Products of rows without scales, for every format that only loads differently.

`load` is the format's way to eight lanes (data, position → lanes), `size` the bytes of a weight; both are constants
once a kernel is compiled. The other arguments are those of `bf16`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._jit import helper
from ._lanes import element, fma, fold, splat, store, zero
from ._lanes import load as load_x
from ._tiles import (
    INPUTS,
    PAIRS,
    ROWS,
    ROWS_TOGETHER,
    add_products,
    clear,
    load_pairs,
    row_sum,
    store_pairs,
)
from ._wide import pair


@helper
def four_tokens(load: Any, size: Any, data: Any, row: Any, columns: Any, x: Any, x_at: Any, width: Any) -> Any:
    """One row times four tokens: each weight is loaded once, each token keeps its own lanes."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for i in range(0, columns, 8):
        w = load(data, row + size * i)
        a = fma(w, load_x(x, x_at + i), a)
        b = fma(w, load_x(x, x_at + width + i), b)
        c = fma(w, load_x(x, x_at + 2 * width + i), c)
        d = fma(w, load_x(x, x_at + 3 * width + i), d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def four_rows(load: Any, size: Any, data: Any, row: Any, columns: Any, x: Any) -> Any:
    """Four rows times the first token: four chains of sums, so that none waits for itself."""
    a, b, c, d = zero(), zero(), zero(), zero()
    step = size * columns
    for i in range(0, columns, 8):
        value, at = load_x(x, i), row + size * i
        a = fma(load(data, at), value, a)
        b = fma(load(data, at + step), value, b)
        c = fma(load(data, at + 2 * step), value, c)
        d = fma(load(data, at + 3 * step), value, d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def one_row(load: Any, size: Any, data: Any, row: Any, columns: Any, x: Any, x_at: Any) -> Any:
    """One row times one token."""
    sums = zero()
    for i in range(0, columns, 8):
        sums = fma(load(data, row + size * i), load_x(x, x_at + i), sums)
    return fold(sums)


@helper
def tile(
    load: Any, size: Any, data: Any, row: Any, next_row: Any, x: Any, begin: Any, end: Any, width: Any, sums: Any,
    at: Any,
) -> None:  # fmt: skip
    """`ROWS_TOGETHER` rows times inputs `begin` to `end` of eight tokens, added to their sums."""
    e = load_pairs(sums, at)
    f = load_pairs(sums, at + 128) if PAIRS == 2 else e
    for i in range(begin, end, 8):
        e = add_products(pair(load(data, row), load(data, row + next_row)), x, i, width, e)
        if PAIRS == 2:
            f = add_products(pair(load(data, row + 2 * next_row), load(data, row + 3 * next_row)), x, i, width, f)
        row += 8 * size
    store_pairs(sums, at, e)
    if PAIRS == 2:
        store_pairs(sums, at + 128, f)


@helper
def multiply_tile(
    load: Any, size: Any, data: Any, at: Any, columns: Any, first: Any, last: Any, x: Any, t: Any, y: Any,
    y_column: Any, sums: Any,
) -> None:  # fmt: skip
    """`multiply` for eight tokens from t on and a multiple of `ROWS_TOGETHER` rows; `sums` holds those of `ROWS` rows.

    Inputs in blocks that stay in the first-level cache while a group of rows goes over them.
    """
    width = x.shape[1]
    for group in range(first, last, ROWS):
        end = min(group + ROWS, last)
        clear(sums, end - group)
        for i in range(0, columns, INPUTS):
            begin, to = t * width + i, t * width + min(columns, i + INPUTS)
            for r in range(group, end, ROWS_TOGETHER):
                row = at + size * (columns * r + i)
                tile(load, size, data, row, size * columns, x, begin, to, width, sums, (r - group) * 64)
        for r in range(group, end):
            for j in range(8):
                y[t + j, y_column + r] = row_sum(sums, r - group, j)


@helper
def multiply(
    load: Any, size: Any, data: Any, at: Any, columns: Any, first: Any, last: Any, x: Any, y: Any, y_column: Any
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    tokens, width = x.shape
    paired = first + (last - first) // ROWS_TOGETHER * ROWS_TOGETHER
    tiled = tokens // 8 * 8
    if tiled:
        sums = np.empty(64 * ROWS, np.float32)
        for t in range(0, tiled, 8):
            multiply_tile(load, size, data, at, columns, first, paired, x, t, y, y_column, sums)
    r = first
    while tokens == 1 and r + 4 <= last:
        row, out = at + size * columns * r, y_column + r
        y[0, out], y[0, out + 1], y[0, out + 2], y[0, out + 3] = four_rows(load, size, data, row, columns, x)
        r += 4
    while r < last:
        row, out = at + size * columns * r, y_column + r
        t = tiled if r < paired else 0
        while t + 4 <= tokens:
            y[t, out], y[t + 1, out], y[t + 2, out], y[t + 3, out] = four_tokens(
                load, size, data, row, columns, x, t * width, width
            )
            t += 4
        while t < tokens:
            y[t, out] = one_row(load, size, data, row, columns, x, t * width)
            t += 1
        r += 1


@helper
def multiply_transposed(
    load: Any, size: Any, data: Any, at: Any, columns: Any, rows: Any, x: Any, x_column: Any, y: Any
) -> None:
    """y[t, i] = Σ_r W[r, i]·x[t, x_column + r]: the matrix transposed, rows fused in ascending order."""
    for t in range(x.shape[0]):
        x_at, y_at = t * x.shape[1] + x_column, t * y.shape[1]
        wide = columns // 32 * 32
        for i in range(0, wide, 32):
            a, b, c, d = zero(), zero(), zero(), zero()
            for r in range(rows):
                value, place = splat(element(x, x_at + r)), at + size * (columns * r + i)
                a = fma(load(data, place), value, a)
                b = fma(load(data, place + size * 8), value, b)
                c = fma(load(data, place + size * 16), value, c)
                d = fma(load(data, place + size * 24), value, d)
            store(y, y_at + i, a)
            store(y, y_at + i + 8, b)
            store(y, y_at + i + 16, c)
            store(y, y_at + i + 24, d)
        for i in range(wide, columns, 8):
            sums = zero()
            for r in range(rows):
                w = load(data, at + size * (columns * r + i))
                sums = fma(w, splat(element(x, x_at + r)), sums)
            store(y, y_at + i, sums)


@helper
def widen_rows(load_one: Any, size: Any, data: Any, at: Any, columns: Any, rows: Any, y: Any) -> None:
    """y[r, i] = W[r, i] as float32; `load_one` brings one weight."""
    for r in range(rows):
        for i in range(columns):
            y[r, i] = load_one(data, at + size * (r * columns + i))

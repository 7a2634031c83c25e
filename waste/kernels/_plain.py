"""Products of rows without scales, for every format that only loads differently.

`load` is the format's way to eight lanes (data, position → lanes), `size` the bytes of a weight; both are constants
once a kernel is compiled. The other arguments are those of `bf16`.
"""

from __future__ import annotations

from typing import Any

from ._ahead import LINE, prefetch_rows
from ._jit import helper
from ._lanes import element, fma, fold, splat, store, zero
from ._lanes import load as load_x
from ._tiles import (
    GROUP_ROWS,
    INPUTS,
    ROWS,
    ROWS_TOGETHER,
    TOKENS,
    add_block,
    clear_sums,
    floats,
    sums_of,
    take_sums,
    widen_block,
)


@helper
def add_four_rows(
    load: Any, bits: Any, data: Any, at: Any, row_bytes: Any, count: Any, x: Any, x_at: Any,
    a: Any, b: Any, c: Any, d: Any,
) -> Any:  # fmt: skip
    """`count` weights of `bits` each of four rows, times the inputs from `x_at`, added to the rows' sums.

    Four chains of sums, so that none waits for itself.
    """
    for i in range(0, count, 8):
        value, place = load_x(x, x_at + i), at + i * bits // 8
        a = fma(load(data, place), value, a)
        b = fma(load(data, place + row_bytes), value, b)
        c = fma(load(data, place + 2 * row_bytes), value, c)
        d = fma(load(data, place + 3 * row_bytes), value, d)
    return a, b, c, d


@helper
def four_rows(load: Any, size: Any, data: Any, row: Any, columns: Any, x: Any) -> Any:
    """Four rows times the first token."""
    a, b, c, d = zero(), zero(), zero(), zero()
    row_bytes, line = size * columns, LINE // size
    for begin in range(0, columns, line):
        at = row + size * begin
        prefetch_rows(data, row, row_bytes, size * begin, LINE)
        # Whole lines have a constant length, which the compiler unrolls.
        if begin + line <= columns:
            a, b, c, d = add_four_rows(load, 8 * size, data, at, row_bytes, line, x, begin, a, b, c, d)
        else:
            a, b, c, d = add_four_rows(load, 8 * size, data, at, row_bytes, columns - begin, x, begin, a, b, c, d)
    return fold(a), fold(b), fold(c), fold(d)


@helper
def one_row(load: Any, size: Any, data: Any, row: Any, columns: Any, x: Any, x_at: Any) -> Any:
    """One row times one token."""
    sums = zero()
    for i in range(0, columns, 8):
        sums = fma(load(data, row + size * i), load_x(x, x_at + i), sums)
    return fold(sums)


@helper
def several_tokens(
    load: Any, size: Any, data: Any, at: Any, columns: Any, first: Any, last: Any, x: Any, y: Any, y_column: Any,
    t: Any, tokens: Any, weights: Any, sums: Any,
) -> None:  # fmt: skip
    """y[t + j, y_column + r] for so many tokens and the rows first ≤ r < last, a multiple of `ROWS_TOGETHER`."""
    width, next_row = x.shape[1], size * columns
    for begin in range(first, last, GROUP_ROWS):
        end = min(begin + GROUP_ROWS, last)
        clear_sums(sums, end - begin, tokens)
        for i in range(0, columns, INPUTS):
            count, x_at = min(columns - i, INPUTS), t * width + i
            for r in range(begin, end, ROWS):
                rows, to = min(ROWS, end - r), sums_of(r - begin, tokens)
                widen_block(load, data, at + r * next_row + size * i, 8 * size, next_row, rows, count, weights)
                add_block(weights, weights, 0, rows, count, x, x_at, width, tokens, sums, to)
        for r in range(begin, end, ROWS):
            take_sums(sums, sums_of(r - begin, tokens), 0, min(ROWS, end - r), tokens, y, t, y_column + r)


@helper
def multiply(
    load: Any, size: Any, data: Any, at: Any, columns: Any, first: Any, last: Any, x: Any, y: Any, y_column: Any
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    tokens, width = x.shape
    r = first
    if tokens == 1:
        while r + 4 <= last:
            row, out = at + size * columns * r, y_column + r
            y[0, out], y[0, out + 1], y[0, out + 2], y[0, out + 3] = four_rows(load, size, data, row, columns, x)
            r += 4
    else:
        r += (last - first) // ROWS_TOGETHER * ROWS_TOGETHER
        weights, sums = floats(ROWS * INPUTS), floats(sums_of(GROUP_ROWS, min(TOKENS, tokens)))
        for t in range(0, tokens, TOKENS):
            some = min(TOKENS, tokens - t)
            several_tokens(load, size, data, at, columns, first, r, x, y, y_column, t, some, weights, sums)
    while r < last:
        for t in range(tokens):
            y[t, y_column + r] = one_row(load, size, data, at + size * columns * r, columns, x, t * width)
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

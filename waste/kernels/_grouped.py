"""Products of rows whose weights share a scale in groups, for every format that only loads differently.

A format is its ways to eight unscaled weights (`load`: data, position → lanes), to a scale in every lane (`scale`) and
to eight scales that follow each other (`eight_scales`), bits of a weight, weights of a group, bytes of a scale; all
are constants once a kernel is compiled. Rows are stored in whole groups, but only `columns` weights of them count. In
the canonical order a group's lanes gather from zero, then one fused step adds them, scaled, to the row's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._ahead import prefetch_rows
from ._jit import helper
from ._lanes import element, first, fma, fold, lane, splat, store, zero
from ._lanes import load as load_x
from ._plain import add_four_rows
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
from ._wide import pair, store_wide


@helper
def widen_scales(scale: Any, eight_scales: Any, scale_bytes: Any, data: Any, at: Any, count: Any, widened: Any) -> None:
    """The float32 of `count` scales that follow each other."""
    whole = count // 8 * 8
    for i in range(0, whole, 8):
        store(widened, i, eight_scales(data, at + i * scale_bytes))
    for i in range(whole, count):
        widened[i] = first(scale(data, at + i * scale_bytes))


@helper
def four_rows(
    load: Any, bits: Any, group: Any, data: Any, row: Any, scales: Any, columns: Any, x: Any
) -> Any:  # fmt: skip
    """Four rows times the first token.

    `scales`: the rows' scales, widened before, because a scale of one's own costs as much as eight weights.
    """
    none = zero()
    a, b, c, d = none, none, none, none
    groups = (columns + group - 1) // group
    group_bytes = group * bits // 8
    row_bytes = groups * group_bytes
    for g in range(groups):
        begin, at = g * group, row + g * group_bytes
        prefetch_rows(data, row, row_bytes, g * group_bytes, group_bytes)
        # Whole groups have a constant length, which the compiler unrolls.
        if begin + group <= columns:
            p, q, r, s = add_four_rows(load, bits, data, at, row_bytes, group, x, begin, none, none, none, none)
        else:
            rest = columns - begin
            p, q, r, s = add_four_rows(load, bits, data, at, row_bytes, rest, x, begin, none, none, none, none)
        a = fma(p, splat(element(scales, g)), a)
        b = fma(q, splat(element(scales, g + groups)), b)
        c = fma(r, splat(element(scales, g + 2 * groups)), c)
        d = fma(s, splat(element(scales, g + 3 * groups)), d)
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
def widen_block_scales(
    scale: Any, group: Any, scale_bytes: Any, data: Any, at: Any, next_row: Any, rows: Any, count: Any, scales: Any
) -> None:
    """The scales of `rows` rows and `count` inputs, as `add_block` takes them."""
    to = 0
    for r in range(0, rows, ROWS_TOGETHER):
        place = at + r * next_row
        for _ in range(0, count, group):
            for first_of_pair in range(0, ROWS_TOGETHER, 2):
                one = place + first_of_pair * next_row
                store_wide(scales, to + 8 * first_of_pair, pair(scale(data, one), scale(data, one + next_row)))
            place += scale_bytes
            to += 8 * ROWS_TOGETHER


@helper
def several_tokens(
    load: Any, scale: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, at: Any, scale_at: Any, columns: Any, first: Any, last: Any, x: Any, y: Any, y_column: Any,
    t: Any, tokens: Any, weights: Any, scales: Any, sums: Any,
) -> None:  # fmt: skip
    """y[t + j, y_column + r] for so many tokens and the rows first ≤ r < last, a multiple of `ROWS_TOGETHER`."""
    width = x.shape[1]
    groups = (columns + group - 1) // group
    row_bytes, row_scales = groups * group * bits // 8, groups * scale_bytes
    for begin in range(first, last, GROUP_ROWS):
        end = min(begin + GROUP_ROWS, last)
        clear_sums(sums, end - begin, tokens)
        for i in range(0, columns, INPUTS):
            count, x_at = min(columns - i, INPUTS), t * width + i
            for r in range(begin, end, ROWS):
                rows, to = min(ROWS, end - r), sums_of(r - begin, tokens)
                row = at + r * row_bytes + i * bits // 8
                scales_of_row = scale_at + r * row_scales + i // group * scale_bytes
                widen_block(load, data, row, bits, row_bytes, rows, count, weights)
                widen_block_scales(scale, group, scale_bytes, data, scales_of_row, row_scales, rows, count, scales)
                add_block(weights, scales, group, rows, count, x, x_at, width, tokens, sums, to)
        for r in range(begin, end, ROWS):
            take_sums(sums, sums_of(r - begin, tokens), group, min(ROWS, end - r), tokens, y, t, y_column + r)


@helper
def multiply(
    load: Any, scale: Any, eight_scales: Any, bits: Any, group: Any, scale_bytes: Any,
    data: Any, at: Any, scale_at: Any, columns: Any, begin: Any, end: Any, x: Any, y: Any, y_column: Any,
) -> None:  # fmt: skip
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows begin ≤ r < end."""
    tokens, width = x.shape
    groups = (columns + group - 1) // group
    row_bytes, row_scales = groups * group * bits // 8, groups * scale_bytes
    r = begin
    if tokens == 1:
        widened = np.empty(4 * groups, np.float32)
        while r + 4 <= end:
            widen_scales(scale, eight_scales, scale_bytes, data, scale_at + row_scales * r, 4 * groups, widened)
            row, out = at + row_bytes * r, y_column + r
            y[0, out], y[0, out + 1], y[0, out + 2], y[0, out + 3] = four_rows(
                load, bits, group, data, row, widened, columns, x
            )
            r += 4
    else:
        r += (end - begin) // ROWS_TOGETHER * ROWS_TOGETHER
        weights, scales = floats(ROWS * INPUTS), floats(8 * ROWS * INPUTS // group)
        sums = floats(sums_of(GROUP_ROWS, min(TOKENS, tokens)))
        for t in range(0, tokens, TOKENS):
            some = min(TOKENS, tokens - t)
            several_tokens(
                load, scale, bits, group, scale_bytes,
                data, at, scale_at, columns, begin, r, x, y, y_column, t, some, weights, scales, sums,
            )  # fmt: skip
    while r < end:
        row, scales_of_row, out = at + row_bytes * r, scale_at + row_scales * r, y_column + r
        for t in range(tokens):
            y[t, out] = one_row(load, scale, bits, group, scale_bytes, data, row, scales_of_row, columns, x, t * width)
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
        # Thirty-two columns share a scale, as all groups are multiples of as many.
        wide = columns // 32 * 32
        for i in range(0, wide, 32):
            a, b, c, d = zero(), zero(), zero(), zero()
            for r in range(rows):
                s = scale(data, scale_at + row_scales * r + i // group * scale_bytes)
                value, place = splat(element(x, x_at + r)), at + row_bytes * r + i * bits // 8
                a = fma(load(data, place) * s, value, a)
                b = fma(load(data, place + bits) * s, value, b)
                c = fma(load(data, place + 2 * bits) * s, value, c)
                d = fma(load(data, place + 3 * bits) * s, value, d)
            store(y, y_at + i, a)
            store(y, y_at + i + 8, b)
            store(y, y_at + i + 16, c)
            store(y, y_at + i + 24, d)
        for i in range(wide, columns, 8):
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

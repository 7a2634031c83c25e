"""What the products of several tokens share: a block of weights is widened once, then multiplied with all of them.

A block is up to `ROWS` rows times `INPUTS` inputs. Its weights lie in the order in which they are used: `ROWS_TOGETHER`
rows at a time, of these eight weights of each row, one row after the other; then the next eight, and so on. Two rows
of eight lanes fill a register where registers are that wide, and there is room for the sums of two such pairs.

Tokens go eight or four at a time, see `tile_tokens`; what is left is made up to four by its last one. Sums lie in the
order in which they come up: for each such tile of tokens, rows together and pair of them, the pair's lanes token after
token. How a product goes over rows, inputs and tokens changes no sum: each gathers the same inputs in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._jit import f32, has_wide_registers, helper
from ._lanes import fold, load, store, zero
from ._wide import fma_wide, load_twice, load_wide, pair, splat_wide, store_wide

PAIRS = 2 if has_wide_registers() else 1
"""Pairs of rows that are worked on together."""
ROWS_TOGETHER = 2 * PAIRS
ROWS = 16
"""Rows of a block, a multiple of those worked on together."""
INPUTS = 256
"""Inputs of a block, a multiple of every format's group: with their inputs, a block stays in the first-level cache."""
GROUP_ROWS = 64
"""Rows whose blocks of the same inputs follow each other: those inputs of all tokens stay in the second-level cache."""
TOKENS = 64
"""Tokens that a block is multiplied with before the next one is widened; their sums with a group's rows stay there."""
_LINE = 16
"""Values in a cache line: vectors that begin in the middle of one would take two."""


@helper
def floats(count: Any) -> Any:
    """New float32 that begin at a cache line."""
    found = np.empty(count + _LINE, np.float32)
    begin = -(found.ctypes.data // 4) % _LINE
    return found[begin : begin + count]


@helper
def sums_of(rows: Any, tokens: Any) -> Any:
    """How many sums so many rows and tokens have."""
    return 8 * rows * ((tokens + 3) // 4 * 4)


@helper
def clear_sums(sums: Any, rows: Any, tokens: Any) -> None:
    """Let the sums of so many rows and tokens begin at zero."""
    for i in range(0, sums_of(rows, tokens), 8):
        store(sums, i, zero())


@helper
def widen_block(load: Any, data: Any, at: Any, step: Any, next_row: Any, rows: Any, count: Any, weights: Any) -> None:
    """The weights of `rows` rows and `count` inputs, without scales; eight of a row are `step` bytes apart."""
    to = 0
    for r in range(0, rows, ROWS_TOGETHER):
        place = at + r * next_row
        for _ in range(0, count, 8):
            store_wide(weights, to, pair(load(data, place), load(data, place + next_row)))
            if PAIRS == 2:
                third, fourth = load(data, place + 2 * next_row), load(data, place + 3 * next_row)
                store_wide(weights, to + 16, pair(third, fourth))
            place += step
            to += 8 * ROWS_TOGETHER


@helper
def add_block(
    weights: Any, scales: Any, group: Any, rows: Any, count: Any, x: Any, x_at: Any, width: Any, tokens: Any, sums: Any,
    to: Any,
) -> None:  # fmt: skip
    """A block of `rows` rows and `count` inputs times so many tokens, whose inputs begin at `x_at` and `width` apart.

    Its sums begin at `to`. group: weights that share a scale, 0 if they have none. scales: for the rows together and
    each of their groups, the scales of one row after the other, each eight times.
    """
    scales_apart = 0 if group == 0 else (count + group - 1) // group * 8 * ROWS_TOGETHER
    t = 0
    while t < tokens:
        together, last = tile_tokens(group, tokens - t), tokens - 1 - t
        a = x_at + t * width
        b, c, d = a + min(1, last) * width, a + min(2, last) * width, a + min(3, last) * width
        for r in range(0, rows, ROWS_TOGETHER):
            if together == 8:
                eight_tokens(weights, r * count, count, x, a, width, sums, to)
            else:
                scale_at = r // ROWS_TOGETHER * scales_apart
                four_tokens(weights, r * count, scales, scale_at, group, count, x, a, b, c, d, sums, to)
            to += 8 * together * ROWS_TOGETHER
        t += together


@helper
def tile_tokens(group: Any, left: Any) -> Any:
    """How many of the tokens that are left go together.

    Where groups have scales, four: their sums and those of a group have room in registers, beside each other.
    """
    return 8 if PAIRS == 2 and group == 0 and left >= 8 else 4


@helper
def take_sums(sums: Any, at: Any, group: Any, rows: Any, tokens: Any, y: Any, token: Any, column: Any) -> None:
    """y[token + t, column + r] = what row r of a block has come to for the t-th token; its sums begin at `at`."""
    t = 0
    while t < tokens:
        together = tile_tokens(group, tokens - t)
        for r in range(0, rows, 2):
            for j in range(min(together, tokens - t)):
                y[token + t + j, column + r] = fold(load(sums, at + 16 * j))
                y[token + t + j, column + r + 1] = fold(load(sums, at + 16 * j + 8))
            at += 16 * together
        t += together


@helper
def eight_tokens(weights: Any, at: Any, count: Any, x: Any, x_at: Any, width: Any, sums: Any, to: Any) -> None:
    """`ROWS_TOGETHER` rows of a block without scales times eight tokens."""
    e = load_eight(sums, to)
    f = load_eight(sums, to + 128) if PAIRS == 2 else e
    for i in range(0, count, 8):
        e = fuse_eight(load_wide(weights, at), x, x_at + i, width, e)
        if PAIRS == 2:
            f = fuse_eight(load_wide(weights, at + 16), x, x_at + i, width, f)
        at += 8 * ROWS_TOGETHER
    store_eight(sums, to, e)
    if PAIRS == 2:
        store_eight(sums, to + 128, f)


@helper
def four_tokens(
    weights: Any, at: Any, scales: Any, scale_at: Any, group: Any, count: Any, x: Any, a: Any, b: Any, c: Any, d: Any,
    sums: Any, to: Any,
) -> None:  # fmt: skip
    """`ROWS_TOGETHER` rows of a block times four tokens, whose inputs begin at a to d."""
    e = load_four(sums, to)
    f = load_four(sums, to + 64) if PAIRS == 2 else e
    if group == 0:
        e, f = add_four(weights, at, count, x, a, b, c, d, e, f)
    else:
        zero_wide = splat_wide(f32(0.0))
        none = (zero_wide, zero_wide, zero_wide, zero_wide)
        for g in range(0, count, group):
            place = at + g * ROWS_TOGETHER
            # Whole groups have a constant length, which the compiler unrolls.
            if g + group <= count:
                p, q = add_four(weights, place, group, x, a + g, b + g, c + g, d + g, none, none)
            else:
                p, q = add_four(weights, place, count - g, x, a + g, b + g, c + g, d + g, none, none)
            e = scale_four(p, load_wide(scales, scale_at), e)
            if PAIRS == 2:
                f = scale_four(q, load_wide(scales, scale_at + 16), f)
            scale_at += 8 * ROWS_TOGETHER
    store_four(sums, to, e)
    if PAIRS == 2:
        store_four(sums, to + 64, f)


@helper
def add_four(weights: Any, at: Any, count: Any, x: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
    """The sums of one pair of rows and, where there is room, of the next, with `count` products more."""
    for i in range(0, count, 8):
        e = fuse_four(load_wide(weights, at), x, a + i, b + i, c + i, d + i, e)
        if PAIRS == 2:
            f = fuse_four(load_wide(weights, at + 16), x, a + i, b + i, c + i, d + i, f)
        at += 8 * ROWS_TOGETHER
    return e, f


@helper
def fuse_four(weights: Any, x: Any, a: Any, b: Any, c: Any, d: Any, sums: Any) -> Any:
    """Eight weights of two rows times the same inputs of four tokens, added to the tokens' sums."""
    return (
        fma_wide(weights, load_twice(x, a), sums[0]),
        fma_wide(weights, load_twice(x, b), sums[1]),
        fma_wide(weights, load_twice(x, c), sums[2]),
        fma_wide(weights, load_twice(x, d), sums[3]),
    )


@helper
def fuse_eight(weights: Any, x: Any, at: Any, width: Any, sums: Any) -> Any:
    """The same for eight tokens, whose inputs are `width` apart."""
    b, c, d, e = at + width, at + 2 * width, at + 3 * width, at + 4 * width
    few = fuse_four(weights, x, at, b, c, d, sums[:4])
    return few + fuse_four(weights, x, e, e + width, e + 2 * width, e + 3 * width, sums[4:])


@helper
def scale_four(products: Any, scale: Any, sums: Any) -> Any:
    """sums + scale · products."""
    return (
        fma_wide(products[0], scale, sums[0]),
        fma_wide(products[1], scale, sums[1]),
        fma_wide(products[2], scale, sums[2]),
        fma_wide(products[3], scale, sums[3]),
    )


@helper
def load_four(sums: Any, at: Any) -> Any:
    """A pair's sums of four tokens."""
    return (
        load_wide(sums, at),
        load_wide(sums, at + 16),
        load_wide(sums, at + 32),
        load_wide(sums, at + 48),
    )


@helper
def store_four(sums: Any, at: Any, values: Any) -> None:
    """Put them back."""
    store_wide(sums, at, values[0])
    store_wide(sums, at + 16, values[1])
    store_wide(sums, at + 32, values[2])
    store_wide(sums, at + 48, values[3])


@helper
def load_eight(sums: Any, at: Any) -> Any:
    """A pair's sums of eight tokens."""
    return load_four(sums, at) + load_four(sums, at + 64)


@helper
def store_eight(sums: Any, at: Any, values: Any) -> None:
    """Put them back."""
    store_four(sums, at, values[:4])
    store_four(sums, at + 64, values[4:])

"""What the products of many tokens share: sums of two or four rows and eight tokens at a time.

Two rows of eight lanes go side by side, which fills a register where registers are that wide; then there is room for
the sums of two such pairs. A pair's sums lie together, 128 float32: for each token eight of the one row and eight of
the other. How a product goes over rows, inputs and tokens changes no sum: each gathers the same inputs in the same
order.
"""

from __future__ import annotations

from typing import Any

from ._jit import has_wide_registers, helper
from ._lanes import fold, load, store, zero
from ._wide import fma_wide, load_twice, load_wide, store_wide

PAIRS = 2 if has_wide_registers() else 1
"""Pairs of rows that are worked on together."""
ROWS_TOGETHER = 2 * PAIRS
ROWS = 64
"""Rows whose sums wait together in the first-level cache, a multiple of those worked on together."""
INPUTS = 512
"""Inputs of eight tokens that stay there as well, a multiple of eight."""


@helper
def load_pairs(sums: Any, at: Any) -> Any:
    """The sums of a pair."""
    return (
        load_wide(sums, at),
        load_wide(sums, at + 16),
        load_wide(sums, at + 32),
        load_wide(sums, at + 48),
        load_wide(sums, at + 64),
        load_wide(sums, at + 80),
        load_wide(sums, at + 96),
        load_wide(sums, at + 112),
    )


@helper
def store_pairs(sums: Any, at: Any, eight: Any) -> None:
    """Put them back."""
    store_wide(sums, at, eight[0])
    store_wide(sums, at + 16, eight[1])
    store_wide(sums, at + 32, eight[2])
    store_wide(sums, at + 48, eight[3])
    store_wide(sums, at + 64, eight[4])
    store_wide(sums, at + 80, eight[5])
    store_wide(sums, at + 96, eight[6])
    store_wide(sums, at + 112, eight[7])


@helper
def clear(sums: Any, rows: Any) -> None:
    """Let the sums of so many rows begin at zero."""
    for i in range(0, 64 * rows, 8):
        store(sums, i, zero())


@helper
def row_sum(sums: Any, row: Any, token: Any) -> Any:
    """What one row has come to for one token."""
    return fold(load(sums, row // 2 * 128 + 16 * token + row % 2 * 8))


@helper
def add_products(weights: Any, x: Any, at: Any, width: Any, eight: Any) -> Any:
    """Eight weights of two rows times the same inputs, from `at` on, of eight tokens, added to the tokens' sums."""
    return (
        fma_wide(weights, load_twice(x, at), eight[0]),
        fma_wide(weights, load_twice(x, at + width), eight[1]),
        fma_wide(weights, load_twice(x, at + 2 * width), eight[2]),
        fma_wide(weights, load_twice(x, at + 3 * width), eight[3]),
        fma_wide(weights, load_twice(x, at + 4 * width), eight[4]),
        fma_wide(weights, load_twice(x, at + 5 * width), eight[5]),
        fma_wide(weights, load_twice(x, at + 6 * width), eight[6]),
        fma_wide(weights, load_twice(x, at + 7 * width), eight[7]),
    )


@helper
def add_scaled(eight: Any, scale: Any, to: Any) -> Any:
    """`to` + scale · eight, sum by sum."""
    return (
        fma_wide(eight[0], scale, to[0]),
        fma_wide(eight[1], scale, to[1]),
        fma_wide(eight[2], scale, to[2]),
        fma_wide(eight[3], scale, to[3]),
        fma_wide(eight[4], scale, to[4]),
        fma_wide(eight[5], scale, to[5]),
        fma_wide(eight[6], scale, to[6]),
        fma_wide(eight[7], scale, to[7]),
    )

"""What the products of many tokens share: sixteen sums at a time, those of two rows and eight tokens.

A row's sums for eight tokens lie together, 64 float32; the next row's follow. How a product goes over rows, inputs and
tokens changes no sum: each gathers the same inputs in the same order.
"""

from __future__ import annotations

from typing import Any

from ._jit import helper
from ._lanes import fma, load, store

ROWS = 64
"""Rows whose sums wait together in the first-level cache, a multiple of two."""
INPUTS = 512
"""Inputs of eight tokens that stay there as well, a multiple of eight."""


@helper
def load_eight(sums: Any, at: Any) -> Any:
    """Eight sums that follow each other."""
    return (
        load(sums, at),
        load(sums, at + 8),
        load(sums, at + 16),
        load(sums, at + 24),
        load(sums, at + 32),
        load(sums, at + 40),
        load(sums, at + 48),
        load(sums, at + 56),
    )


@helper
def store_eight(sums: Any, at: Any, eight: Any) -> None:
    """Put them back."""
    store(sums, at, eight[0])
    store(sums, at + 8, eight[1])
    store(sums, at + 16, eight[2])
    store(sums, at + 24, eight[3])
    store(sums, at + 32, eight[4])
    store(sums, at + 40, eight[5])
    store(sums, at + 48, eight[6])
    store(sums, at + 56, eight[7])


@helper
def add_products(weights: Any, x: Any, at: Any, width: Any, eight: Any) -> Any:
    """Eight weights times the same inputs, from `at` on, of eight tokens, added to the tokens' sums."""
    return (
        fma(weights, load(x, at), eight[0]),
        fma(weights, load(x, at + width), eight[1]),
        fma(weights, load(x, at + 2 * width), eight[2]),
        fma(weights, load(x, at + 3 * width), eight[3]),
        fma(weights, load(x, at + 4 * width), eight[4]),
        fma(weights, load(x, at + 5 * width), eight[5]),
        fma(weights, load(x, at + 6 * width), eight[6]),
        fma(weights, load(x, at + 7 * width), eight[7]),
    )


@helper
def add_scaled(eight: Any, scale: Any, to: Any) -> Any:
    """`to` + scale · eight, sum by sum."""
    return (
        fma(eight[0], scale, to[0]),
        fma(eight[1], scale, to[1]),
        fma(eight[2], scale, to[2]),
        fma(eight[3], scale, to[3]),
        fma(eight[4], scale, to[4]),
        fma(eight[5], scale, to[5]),
        fma(eight[6], scale, to[6]),
        fma(eight[7], scale, to[7]),
    )

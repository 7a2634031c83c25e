"""What the products of many tokens share: sixteen sums at a time, those of two rows and eight tokens.

A row's sums for eight tokens lie together, 64 float32; the next row's follow. How a product goes over rows, inputs and
tokens changes no sum: each gathers the same inputs in the same order.
"""

from __future__ import annotations

from typing import Any

from ._jit import helper
from ._lanes import store

ROWS = 64
"""Rows whose sums wait together in the first-level cache, a multiple of two."""
INPUTS = 512
"""Inputs of eight tokens that stay there as well, a multiple of eight."""


@helper
def store_sixteen(sums: Any, at: Any, first: Any, second: Any) -> None:
    """Put back the sums of two rows, eight lanes values each."""
    a, b, c, d, e, f, g, h = first
    store(sums, at, a)
    store(sums, at + 8, b)
    store(sums, at + 16, c)
    store(sums, at + 24, d)
    store(sums, at + 32, e)
    store(sums, at + 40, f)
    store(sums, at + 48, g)
    store(sums, at + 56, h)
    j, k, l, m, n, o, p, q = second  # noqa: E741
    store(sums, at + 64, j)
    store(sums, at + 72, k)
    store(sums, at + 80, l)
    store(sums, at + 88, m)
    store(sums, at + 96, n)
    store(sums, at + 104, o)
    store(sums, at + 112, p)
    store(sums, at + 120, q)

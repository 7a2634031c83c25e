"""An expert's whole MLP, w2·act(w1·x, w3·x), in one call: the kernels it is made of are called, not compiled again.

A compute thread that answers with one call waits once for the interpreter's lock, not after each of eight.

Arguments that all formats' `expert` share: `places` int64 [6], byte positions in `data` of the weights of w1, w3 and w2
and then of their scales; `x` [N, inputs]; `tokens` int64 [n], the rows of x to answer, at least one; `gathered`
[≥ n, inputs], `gate` and `up` [≥ n, width], which are written over; `y` [n, inputs], the answers; `kind`, `beta` and
`linear_beta` as `activate` takes them; `found` int64 [2]: which of the three has the first bad scale, 0 to 2, and that
scale's position, and nothing is computed; found[0] is −1 if there is none. w1 and w3 have width rows of `inputs`
weights, w2 is the other way round.
"""

from __future__ import annotations

from typing import Any

from ._jit import f32, f32s2, i64, i64s, template, u8s
from .vectors import activate

_REST = (f32s2, i64s, f32s2, f32s2, f32s2, f32s2, i64, f32, f32, i64s)
ARGUMENTS = (u8s, i64s, *_REST)
"""(data, places, x, tokens, gathered, gate, up, y, kind, beta, linear_beta, found)"""
ARGUMENTS_WITH_BOOKS = (u8s, i64s, i64, f32s2, *_REST)
"""The same with (block, books) behind the places."""


@template
def find_in_expert(find_bad_scale: Any, data: Any, places: Any, inner: Any, outer: Any, found: Any) -> Any:
    """Fill `found`, and say whether a scale is bad; w1 and w3 have `inner` scales each, w2 has `outer`."""
    for matrix in range(3):
        find_bad_scale(data, places[3 + matrix], outer if matrix == 2 else inner, found, 1)
        if found[1] >= 0:
            found[0] = matrix
            return True
    found[0] = -1
    return False


@template
def gather(x: Any, tokens: Any, gathered: Any) -> Any:
    """The rows of x that are asked for, [n, inputs]; one alone stays where it is."""
    n = tokens.size
    if n == 1:
        return x[tokens[0] : tokens[0] + 1]
    for j in range(n):
        for i in range(x.shape[1]):
            gathered[j, i] = x[tokens[j], i]
    return gathered[:n]


@template
def answer(
    product: Any, data: Any, places: Any, x: Any, tokens: Any, gathered: Any, gate: Any, up: Any, y: Any,
    kind: Any, beta: Any, linear_beta: Any,
) -> None:  # fmt: skip
    """The MLP of a plain format by its `product`."""
    rows, n, inputs, width = gather(x, tokens, gathered), tokens.size, x.shape[1], gate.shape[1]
    gate, up = gate[:n], up[:n]
    product(data, places[0], places[3], inputs, 0, width, rows, gate, 0)
    product(data, places[1], places[4], inputs, 0, width, rows, up, 0)
    activate(gate, up, kind, beta, linear_beta, 0, width)
    product(data, places[2], places[5], width, 0, inputs, gate, y, 0)


@template
def answer_with_books(
    product: Any, data: Any, places: Any, block: Any, books: Any, x: Any, tokens: Any, gathered: Any, gate: Any,
    up: Any, y: Any, kind: Any, beta: Any, linear_beta: Any,
) -> None:  # fmt: skip
    """The same of a format with codebooks, `books` [3, values]."""
    rows, n, inputs, width = gather(x, tokens, gathered), tokens.size, x.shape[1], gate.shape[1]
    gate, up = gate[:n], up[:n]
    product(data, places[0], places[3], inputs, 0, width, block, books[0], rows, gate)
    product(data, places[1], places[4], inputs, 0, width, block, books[1], rows, up)
    activate(gate, up, kind, beta, linear_beta, 0, width)
    product(data, places[2], places[5], width, 0, inputs, block, books[2], gate, y)

"""Several experts' MLPs, w2·act(w1·x, w3·x), by all compute threads together in one call on each.

A thread that comes back from a kernel waits for the interpreter's lock, so it comes back once; and the threads take
turns at parts of rows, so that none stands idle while another ends. The kernels an expert is made of are called, not
compiled again.

Arguments that all formats' `experts` share: `records` int64 [n, 10], for each expert the address and the size of its
bytes, its first choice and how many it has, and where in its bytes the weights of w1, w3 and w2 and then their scales
begin; `x` [N, inputs]; `tokens` int64 [choices], the row of x of each choice, ascending for each expert; `gathered`
[≥ most choices of an expert, inputs], this thread's own, needed unless those rows follow each other; `gate` and `up`
[choices, width], which are written over; `answers` [choices, inputs]; `kind`, `beta` and `linear_beta` as `activate`
takes them; `turns` int64 [4], zeros, the same array on every thread; `found` int64 [4], this thread's own: which record
has a bad scale, or −1, in which of its matrices, 0 to 2, and where. Then the answers mean nothing. Else they are whole
when every thread that was called has returned. w1 and w3 have width rows of `inputs` weights, w2 is the other way
round.
"""

from __future__ import annotations

from typing import Any

from ._jit import f32, f32s2, helper, i64, i64s, i64s2, template
from ._turns import bytes_at, fetch_add, load_shared, wait_for
from .formats import UNDIVIDED_ROWS
from .vectors import activate

_REST = (f32s2, i64s, f32s2, f32s2, f32s2, f32s2, i64, f32, f32, i64s, i64s)
ARGUMENTS = (i64s2, *_REST)
"""(records, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found)"""
ARGUMENTS_WITH_BOOKS = (i64s2, i64, f32s2, *_REST)
"""The same with (block, books) behind the records."""

AT_ONCE = 1 << 18
"""Weights of a turn, about: within less than a tenth of a millisecond the threads end."""
_ADDRESS, _SIZE, _FIRST, _COUNT, _WEIGHTS, _SCALES = 0, 1, 2, 3, 4, 7
_INNER, _INNER_ENDED, _OUTER, _BAD = 0, 1, 2, 3


@helper
def rows_at_once(columns: Any) -> Any:
    return max(1, AT_ONCE // (columns * UNDIVIDED_ROWS)) * UNDIVIDED_ROWS


@template
def no_bad_scale(data: Any, scale_at: Any, count: Any, found: Any, slot: Any) -> None:
    """For formats of which no scale is bad."""
    found[slot] = -1


@template
def has_bad_scale(find_bad_scale: Any, data: Any, records: Any, r: Any, inner: Any, outer: Any, found: Any) -> Any:
    """Fill `found` if a scale is bad; w1 and w3 have `inner` scales each, w2 has `outer`."""
    for matrix in range(3):
        find_bad_scale(data, records[r, _SCALES + matrix], outer if matrix == 2 else inner, found, 3)
        if found[3] >= 0:
            found[0], found[1], found[2] = r, matrix, found[3]
            return True
    return False


@template
def plain_rows(
    product: Any, data: Any, records: Any, r: Any, matrix: Any, columns: Any, first: Any, last: Any, block: Any,
    books: Any, x: Any, y: Any,
) -> None:  # fmt: skip
    """Rows of a matrix of a plain format."""
    product(data, records[r, _WEIGHTS + matrix], records[r, _SCALES + matrix], columns, first, last, x, y, 0)


@template
def book_rows(
    product: Any, data: Any, records: Any, r: Any, matrix: Any, columns: Any, first: Any, last: Any, block: Any,
    books: Any, x: Any, y: Any,
) -> None:  # fmt: skip
    """Rows of a matrix of a format with codebooks, `books` [3, values]."""
    at, scale_at = records[r, _WEIGHTS + matrix], records[r, _SCALES + matrix]
    product(data, at, scale_at, columns, first, last, block, books[matrix], x, y)


@template
def gather(x: Any, tokens: Any, first: Any, count: Any, gathered: Any) -> Any:
    """The rows of x that an expert answers, [count, inputs]; those that follow each other stay where they are."""
    if tokens[first + count - 1] - tokens[first] == count - 1:
        return x[tokens[first] : tokens[first] + count]
    for j in range(count):
        for i in range(x.shape[1]):
            gathered[j, i] = x[tokens[first + j], i]
    return gathered[:count]


@template
def answer(
    multiply: Any, product: Any, find_bad_scale: Any, records: Any, block: Any, books: Any, x: Any, tokens: Any,
    gathered: Any, gate: Any, up: Any, answers: Any, kind: Any, beta: Any, linear_beta: Any, turns: Any, found: Any,
    inner_scales: Any, outer_scales: Any,
) -> None:  # fmt: skip
    """Take turns until there are none left. inner_scales, outer_scales: to look at in w1 and w3, and in w2."""
    n, inputs, width = records.shape[0], x.shape[1], gate.shape[1]
    found[0] = -1
    step = rows_at_once(2 * inputs)
    parts = (width + step - 1) // step
    turn = fetch_add(turns, _INNER, 1)
    while turn < n * parts:
        r, row = turn // parts, turn % parts * step
        last, begin = min(row + step, width), records[r, _FIRST]
        end = begin + records[r, _COUNT]
        data = bytes_at(records[r, _ADDRESS], records[r, _SIZE])
        if row == 0 and has_bad_scale(find_bad_scale, data, records, r, inner_scales, outer_scales, found):
            fetch_add(turns, _BAD, 1)
        seen = gather(x, tokens, begin, end - begin, gathered)
        multiply(product, data, records, r, 0, inputs, row, last, block, books, seen, gate[begin:end])
        multiply(product, data, records, r, 1, inputs, row, last, block, books, seen, up[begin:end])
        activate(gate[begin:end], up[begin:end], kind, beta, linear_beta, row, last)
        fetch_add(turns, _INNER_ENDED, 1)
        turn = fetch_add(turns, _INNER, 1)
    wait_for(turns, _INNER_ENDED, n * parts)
    step = rows_at_once(width)
    parts = (inputs + step - 1) // step
    turn = fetch_add(turns, _OUTER, 1)
    while turn < n * parts and load_shared(turns, _BAD) == 0:
        r, row = turn // parts, turn % parts * step
        begin = records[r, _FIRST]
        end = begin + records[r, _COUNT]
        data = bytes_at(records[r, _ADDRESS], records[r, _SIZE])
        last = min(row + step, inputs)
        multiply(product, data, records, r, 2, width, row, last, block, books, gate[begin:end], answers[begin:end])
        turn = fetch_add(turns, _OUTER, 1)

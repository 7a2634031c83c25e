"""Vector-quantized experts: eight weights of a row are the sum of one vector from each of a few codebooks.

VQ3R has three codebooks of 256 vectors and VQ2R two, a byte an index; VQ4P has four of 64, whose four six-bit indices
are packed in three bytes. A row's float16 scale multiplies it last.

`at`: where a matrix's indices begin in `data`; `scale_at`: its rows' scales. `block`: rows of an index block, within
which the indices of one position lie together, row after row (position after position, block after block; the rows are
padded to whole blocks); 0: each row's lie together. `books` float32 [stages·entries·8]: the matrix's codebooks.

In the canonical order eight weights are `((b0 + b1) + b2) + b3`, as far as there are, and are fused with the input;
the fold of the row is scaled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._codebooks import load_vq2r, load_vq3r, load_vq4p
from ._experts import ARGUMENTS_WITH_BOOKS, answer, book_rows
from ._f16 import f32_from_f16_bytes, splat_f16
from ._jit import f32s, f32s2, helper, i64, i64s, kernel, u8s
from ._lanes import fma, fold, load, prefetch, store, zero
from ._tiles import (
    GROUP_ROWS,
    INPUTS,
    PAIRS,
    ROWS,
    ROWS_TOGETHER,
    TOKENS,
    add_block,
    clear_sums,
    floats,
    sums_of,
    take_sums,
)
from ._wide import pair, store_wide
from .vectors import activate

_TILE = 32
"""Positions that all rows of a group go through before any goes on: memory is then read in the order it lies in,
inside index blocks as well, and each row's eight sums wait in the first-level cache."""
_GROUP = 64
"""Rows of a group, a multiple of eight."""


@helper
def first_index(at: Any, columns: Any, block: Any, row: Any, size: Any) -> Any:
    """Where the indices of a row begin; they follow each other by `size` bytes, times `block` if there is one."""
    if block == 0:
        return at + row * (columns // 8) * size
    return at + (row // block * (columns // 8) * block + row % block) * size


@helper
def eight_rows(
    vector: Any, size: Any, data: Any, at: Any, step: Any, next_row: Any, ahead: Any, together: Any, books: Any,
    x: Any, begin: Any, end: Any, sums: Any, sums_at: Any,
) -> None:  # fmt: skip
    """Eight rows times inputs `begin` to `end`, added to eight sums: eight chains, for each waits long for its weights.

    Meanwhile as many bytes are asked for, of the next tile: those from `ahead` on, one line after the other, if the
    rows' lie together, else each row's own.
    """
    a, b, c, d = load(sums, sums_at), load(sums, sums_at + 8), load(sums, sums_at + 16), load(sums, sums_at + 24)
    e, f, g, h = load(sums, sums_at + 32), load(sums, sums_at + 40), load(sums, sums_at + 48), load(sums, sums_at + 56)
    for i in range(begin, end, 8):
        value = load(x, i)
        prefetch(data, ahead + (i - begin) * size if together else at + _TILE * step + i // 8 % 8 * next_row)
        a = fma(vector(data, at, books), value, a)
        b = fma(vector(data, at + next_row, books), value, b)
        c = fma(vector(data, at + 2 * next_row, books), value, c)
        d = fma(vector(data, at + 3 * next_row, books), value, d)
        e = fma(vector(data, at + 4 * next_row, books), value, e)
        f = fma(vector(data, at + 5 * next_row, books), value, f)
        g = fma(vector(data, at + 6 * next_row, books), value, g)
        h = fma(vector(data, at + 7 * next_row, books), value, h)
        at += step
    for place, value in enumerate((a, b, c, d, e, f, g, h)):
        store(sums, sums_at + 8 * place, value)


@helper
def one_token(
    vector: Any, size: Any, data: Any, at: Any, columns: Any, first: Any, last: Any, block: Any, books: Any,
    x: Any, y: Any, sums: Any,
) -> None:  # fmt: skip
    """y[0, r] without scales for the rows first ≤ r < last; `sums` holds eight float32 for each row of a group."""
    step = size * max(block, 1)
    next_row = size if block else size * (columns // 8)
    r = first
    while r < last:
        rows = min(_GROUP, last - r)
        if block:
            rows = min(rows, block - r % block)
        whole = rows // 8 * 8
        begin = first_index(at, columns, block, r, size)
        for i in range(0, 8 * whole, 8):
            store(sums, i, zero())
        for i in range(0, columns, 8 * _TILE):
            end = min(columns, i + 8 * _TILE)
            for j in range(0, whole, 8):
                tile = begin + i // 8 * step + j * next_row
                # Once with the distance of rows as a constant, which the steps then need not add.
                if block:
                    ahead = begin + (i // 8 + _TILE) * step + j * size * _TILE
                    eight_rows(vector, size, data, tile, step, size, ahead, True, books, x, i, end, sums, 8 * j)
                else:
                    eight_rows(vector, size, data, tile, step, next_row, 0, False, books, x, i, end, sums, 8 * j)
        for j in range(whole):
            y[0, r + j] = fold(load(sums, 8 * j))
        for j in range(whole, rows):
            y[0, r + j] = one_row(vector, data, begin + j * next_row, step, columns, books, x, 0)
        r += rows


@helper
def widen_block(
    vector: Any, data: Any, at: Any, step: Any, next_row: Any, books: Any, rows: Any, count: Any, weights: Any
) -> None:
    """The weights of `rows` rows and `count` inputs, without scales, as `add_block` takes them."""
    to = 0
    for r in range(0, rows, ROWS_TOGETHER):
        place = at + r * next_row
        for _ in range(0, count, 8):
            store_wide(weights, to, pair(vector(data, place, books), vector(data, place + next_row, books)))
            if PAIRS == 2:
                third, fourth = place + 2 * next_row, place + 3 * next_row
                store_wide(weights, to + 16, pair(vector(data, third, books), vector(data, fourth, books)))
            place += step
            to += 8 * ROWS_TOGETHER


@helper
def several_tokens(
    vector: Any, size: Any, data: Any, at: Any, columns: Any, first: Any, last: Any, block: Any, books: Any,
    x: Any, y: Any, t: Any, tokens: Any, weights: Any, sums: Any,
) -> None:  # fmt: skip
    """y[t + j, r] without scales for so many tokens and the rows first ≤ r < last."""
    step = size * max(block, 1)
    next_row = size if block else size * (columns // 8)
    width = x.shape[1]
    r = first
    while r < last:
        rows = min(GROUP_ROWS, last - r)
        if block:
            rows = min(rows, block - r % block)
        whole = rows // ROWS_TOGETHER * ROWS_TOGETHER
        begin = first_index(at, columns, block, r, size)
        clear_sums(sums, whole, tokens)
        for i in range(0, columns, INPUTS):
            count, x_at = min(columns - i, INPUTS), t * width + i
            for j in range(0, whole, ROWS):
                some, place = min(ROWS, whole - j), begin + j * next_row + i // 8 * step
                widen_block(vector, data, place, step, next_row, books, some, count, weights)
                add_block(weights, weights, 0, some, count, x, x_at, width, tokens, sums, sums_of(j, tokens))
        for j in range(0, whole, ROWS):
            take_sums(sums, sums_of(j, tokens), 0, min(ROWS, whole - j), tokens, y, t, r + j)
        for j in range(whole, rows):
            for k in range(t, t + tokens):
                row = begin + j * next_row
                y[k, r + j] = one_row(vector, data, row, step, columns, books, x, k * width)
        r += rows


@helper
def one_row(vector: Any, data: Any, at: Any, step: Any, columns: Any, books: Any, x: Any, x_at: Any) -> Any:
    """One row times one token."""
    sums = zero()
    for i in range(x_at, x_at + columns, 8):
        sums = fma(vector(data, at, books), load(x, i), sums)
        at += step
    return fold(sums)


@helper
def multiply(
    vector: Any, size: Any, data: Any, at: Any, scale_at: Any, columns: Any, first: Any, last: Any, block: Any,
    books: Any, x: Any, y: Any,
) -> None:  # fmt: skip
    """y[t, r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last; `size`: bytes of eight weights."""
    tokens = x.shape[0]
    if tokens == 1:
        sums = np.empty(8 * _GROUP, np.float32)
        one_token(vector, size, data, at, columns, first, last, block, books, x, y, sums)
    else:
        weights, sums = floats(ROWS * INPUTS), floats(sums_of(GROUP_ROWS, min(TOKENS, tokens)))
        for t in range(0, tokens, TOKENS):
            some = min(TOKENS, tokens - t)
            several_tokens(
                vector, size, data, at, columns, first, last, block, books, x, y, t, some, weights, sums
            )  # fmt: skip
    for r in range(first, last):
        scale = f32_from_f16_bytes(data, scale_at + 2 * r)
        for t in range(tokens):
            y[t, r] *= scale


@helper
def widen_rows(
    vector: Any, size: Any, data: Any, at: Any, scale_at: Any, columns: Any, rows: Any, block: Any, books: Any, y: Any
) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    step = size * max(block, 1)
    for r in range(rows):
        begin, scale = first_index(at, columns, block, r, size), splat_f16(data, scale_at + 2 * r)
        for i in range(0, columns, 8):
            store(y, r * y.shape[1] + i, vector(data, begin + i // 8 * step, books) * scale)


@kernel(u8s, i64, i64, i64, i64, i64, i64, f32s, f32s2, f32s2)
def vq3r_product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, block: int, books: Any, x: Any, y: Any
) -> None:
    """y[t, r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    multiply(load_vq3r, 3, data, at, scale_at, columns, first, last, block, books, x, y)


@kernel(u8s, i64, i64, i64, i64, i64, f32s, f32s2)
def vq3r_widen(data: Any, at: int, scale_at: int, columns: int, rows: int, block: int, books: Any, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    widen_rows(load_vq3r, 3, data, at, scale_at, columns, rows, block, books, y)


@kernel(u8s, i64, i64, i64, i64, i64, i64, f32s, f32s2, f32s2)
def vq2r_product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, block: int, books: Any, x: Any, y: Any
) -> None:
    """y[t, r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    multiply(load_vq2r, 2, data, at, scale_at, columns, first, last, block, books, x, y)


@kernel(u8s, i64, i64, i64, i64, i64, f32s, f32s2)
def vq2r_widen(data: Any, at: int, scale_at: int, columns: int, rows: int, block: int, books: Any, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    widen_rows(load_vq2r, 2, data, at, scale_at, columns, rows, block, books, y)


@kernel(u8s, i64, i64, i64, i64, i64, i64, f32s, f32s2, f32s2)
def vq4p_product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, block: int, books: Any, x: Any, y: Any
) -> None:
    """y[t, r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    multiply(load_vq4p, 3, data, at, scale_at, columns, first, last, block, books, x, y)


@kernel(u8s, i64, i64, i64, i64, i64, f32s, f32s2)
def vq4p_widen(data: Any, at: int, scale_at: int, columns: int, rows: int, block: int, books: Any, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    widen_rows(load_vq4p, 3, data, at, scale_at, columns, rows, block, books, y)


@kernel(u8s, i64, i64, i64s, i64)
def find_bad_scale(data: Any, scale_at: int, count: int, found: Any, slot: int) -> None:
    """found[slot] = position of the first of `count` scales that is no finite number, or −1."""
    found[slot] = -1
    for i in range(count):
        if data[scale_at + 2 * i + 1] & 0x7C == 0x7C:
            found[slot] = i
            break


@kernel(*ARGUMENTS_WITH_BOOKS, calls=(vq3r_product, find_bad_scale, activate))
def vq3r_experts(
    records: Any, block: int, books: Any, x: Any, tokens: Any, gathered: Any, gate: Any, up: Any, answers: Any,
    kind: int, beta: float, linear_beta: float, turns: Any, found: Any,
) -> None:  # fmt: skip
    """answers = w2·act(w1·x, w3·x) of several experts: see `_experts`."""
    inner, outer = gate.shape[1], answers.shape[1]
    answer(
        book_rows, vq3r_product, find_bad_scale,
        records, block, books, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found,
        inner, outer,
    )  # fmt: skip


@kernel(*ARGUMENTS_WITH_BOOKS, calls=(vq2r_product, find_bad_scale, activate))
def vq2r_experts(
    records: Any, block: int, books: Any, x: Any, tokens: Any, gathered: Any, gate: Any, up: Any, answers: Any,
    kind: int, beta: float, linear_beta: float, turns: Any, found: Any,
) -> None:  # fmt: skip
    """answers = w2·act(w1·x, w3·x) of several experts: see `_experts`."""
    inner, outer = gate.shape[1], answers.shape[1]
    answer(
        book_rows, vq2r_product, find_bad_scale,
        records, block, books, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found,
        inner, outer,
    )  # fmt: skip


@kernel(*ARGUMENTS_WITH_BOOKS, calls=(vq4p_product, find_bad_scale, activate))
def vq4p_experts(
    records: Any, block: int, books: Any, x: Any, tokens: Any, gathered: Any, gate: Any, up: Any, answers: Any,
    kind: int, beta: float, linear_beta: float, turns: Any, found: Any,
) -> None:  # fmt: skip
    """answers = w2·act(w1·x, w3·x) of several experts: see `_experts`."""
    inner, outer = gate.shape[1], answers.shape[1]
    answer(
        book_rows, vq4p_product, find_bad_scale,
        records, block, books, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found,
        inner, outer,
    )  # fmt: skip

"""Multi-head latent attention over a cache of latents, one head at a time (DeepSeek-V2, arXiv:2405.04434, §2.1).

The query has been absorbed through the key half of kv_b, so that a score is one product with a cached row [c | k_rope].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._functions import exp_scalar
from ._jit import f32, f32s2, helper, i64, kernel
from ._lanes import fma, fold, load, splat, store, zero

BLOCK = 64
"""Positions whose scores are formed together; blocks lie at absolute positions, so chunks do not move them."""
TOKENS = 64
"""Tokens of a chunk that go over a block of positions one after the other."""


@helper
def dot(a: Any, a_at: Any, b: Any, b_at: Any, width: Any) -> Any:
    sums = zero()
    for i in range(0, width, 8):
        sums = fma(load(a, a_at + i), load(b, b_at + i), sums)
    return fold(sums)


@helper
def four_dots(a: Any, a_at: Any, b: Any, b_at: Any, width: Any) -> Any:
    """`dot` with four rows of b that follow each other: four chains of sums, so that none waits for itself."""
    p, q, r, s = zero(), zero(), zero(), zero()
    for i in range(0, width, 8):
        value, at = load(a, a_at + i), b_at + i
        p = fma(value, load(b, at), p)
        q = fma(value, load(b, at + width), q)
        r = fma(value, load(b, at + 2 * width), r)
        s = fma(value, load(b, at + 3 * width), s)
    return fold(p), fold(q), fold(r), fold(s)


@helper
def mix(scores: Any, cache: Any, first: Any, count: Any, width: Any, shrink: Any, out: Any, at: Any) -> None:
    """out · shrink + Σ_j scores[j]·cache[first + j], for eight of out."""
    sums = load(out, at) * shrink
    for j in range(count):
        sums = fma(splat(scores[j]), load(cache, first + j * width), sums)
    store(out, at, sums)


@helper
def mix_wide(scores: Any, cache: Any, first: Any, count: Any, width: Any, shrink: Any, out: Any, at: Any) -> None:
    """`mix` for 32 of out: four chains."""
    p, q = load(out, at) * shrink, load(out, at + 8) * shrink
    r, s = load(out, at + 16) * shrink, load(out, at + 24) * shrink
    for j in range(count):
        score, row = splat(scores[j]), first + j * width
        p, q = fma(score, load(cache, row), p), fma(score, load(cache, row + 8), q)
        r, s = fma(score, load(cache, row + 16), r), fma(score, load(cache, row + 24), s)
    store(out, at, p)
    store(out, at + 8, q)
    store(out, at + 16, r)
    store(out, at + 24, s)


@helper
def attend_block(
    cache: Any, block: Any, count: Any, query: Any, t: Any, scale: Any, scores: Any, greatest: Any, totals: Any,
    slot: Any, out: Any,
) -> None:  # fmt: skip
    """Bring `count` positions from `block` on into token t's sums, whose maximum and total are in `slot`."""
    width, latent, at = cache.shape[1], out.shape[1], t * out.shape[1]
    before = greatest[slot]
    highest = before
    fours = count // 4 * 4
    for j in range(0, fours, 4):
        a, b, c, d = four_dots(query, t * width, cache, (block + j) * width, width)
        scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = a * scale, b * scale, c * scale, d * scale
    for j in range(fours, count):
        scores[j] = dot(query, t * width, cache, (block + j) * width, width) * scale
    for j in range(count):
        highest = max(highest, scores[j])
    shrink = exp_scalar(before - highest)
    total = totals[slot] * shrink
    for j in range(count):
        scores[j] = exp_scalar(scores[j] - highest)
        total += scores[j]
    wide = latent // 32 * 32
    for i in range(0, wide, 32):
        mix_wide(scores, cache, block * width + i, count, width, splat(shrink), out, at + i)
    for i in range(wide, latent, 8):
        mix(scores, cache, block * width + i, count, width, splat(shrink), out, at + i)
    greatest[slot], totals[slot] = highest, total


@kernel(f32s2, i64, f32s2, f32, i64, i64, f32s2)
def attend(cache: Any, position: int, query: Any, scale: float, begin: int, end: int, out: Any) -> None:
    """out[t] = Σ_s softmax_s(query[t]·cache[s]·scale)·cache[s, :latent] for tokens begin ≤ t < end of one session.

    Token t stands at `position` + t − begin and sees all positions up to its own. The softmax runs online over
    blocks of positions, in ascending order: maximum and sums are rescaled when a block raises the maximum. Several
    tokens go over a block before any goes on, while its rows are in the second-level cache.
    """
    latent = out.shape[1]
    scores = np.empty(BLOCK, np.float32)
    greatest, totals = np.empty(TOKENS, np.float32), np.empty(TOKENS, np.float32)
    for tile in range(begin, end, TOKENS):
        stop = min(tile + TOKENS, end)
        greatest[:] = f32(-np.inf)
        totals[:] = f32(0.0)
        for i in range(tile * latent, stop * latent, 8):
            store(out, i, zero())
        for block in range(0, position + stop - begin, BLOCK):
            for t in range(tile, stop):
                count = min(BLOCK, position + t - begin + 1 - block)
                if count > 0:
                    attend_block(cache, block, count, query, t, scale, scores, greatest, totals, t - tile, out)
        for t in range(tile, stop):
            total = splat(totals[t - tile])
            for i in range(t * latent, t * latent + latent, 8):
                store(out, i, load(out, i) / total)

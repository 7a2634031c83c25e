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


@kernel(f32s2, i64, f32s2, f32, i64, i64, f32s2)
def attend(cache: Any, position: int, query: Any, scale: float, begin: int, end: int, out: Any) -> None:
    """out[t] = Σ_s softmax_s(query[t]·cache[s]·scale)·cache[s, :latent] for tokens begin ≤ t < end of one session.

    Token t stands at `position` + t − begin and sees all positions up to its own. The softmax runs online over
    blocks of positions, in ascending order: maximum and sums are rescaled when a block raises the maximum.
    """
    width, latent = cache.shape[1], out.shape[1]
    scores = np.empty(BLOCK, np.float32)
    for t in range(begin, end):
        seen = position + t - begin + 1
        greatest, total, at = f32(-np.inf), f32(0.0), t * latent
        for i in range(0, latent, 8):
            store(out, at + i, zero())
        for block in range(0, seen, BLOCK):
            count = min(BLOCK, seen - block)
            before = greatest
            fours = count // 4 * 4
            for j in range(0, fours, 4):
                a, b, c, d = four_dots(query, t * width, cache, (block + j) * width, width)
                scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = a * scale, b * scale, c * scale, d * scale
            for j in range(fours, count):
                scores[j] = dot(query, t * width, cache, (block + j) * width, width) * scale
            for j in range(count):
                greatest = max(greatest, scores[j])
            shrink = exp_scalar(before - greatest)
            total *= shrink
            for j in range(count):
                scores[j] = exp_scalar(scores[j] - greatest)
                total += scores[j]
            wide = latent // 32 * 32
            for i in range(0, wide, 32):
                mix_wide(scores, cache, block * width + i, count, width, splat(shrink), out, at + i)
            for i in range(wide, latent, 8):
                mix(scores, cache, block * width + i, count, width, splat(shrink), out, at + i)
        for i in range(0, latent, 8):
            store(out, at + i, load(out, at + i) / splat(total))

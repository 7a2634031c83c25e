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
            for j in range(count):
                scores[j] = dot(query, t * width, cache, (block + j) * width, width) * scale
                greatest = max(greatest, scores[j])
            shrink = exp_scalar(before - greatest)
            total *= shrink
            for j in range(count):
                scores[j] = exp_scalar(scores[j] - greatest)
                total += scores[j]
            for i in range(0, latent, 8):
                sums = load(out, at + i) * splat(shrink)
                for j in range(count):
                    sums = fma(splat(scores[j]), load(cache, (block + j) * width + i), sums)
                store(out, at + i, sums)
        for i in range(0, latent, 8):
            store(out, at + i, load(out, at + i) / splat(total))

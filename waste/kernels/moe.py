"""Routing to experts and summing what they answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._functions import exp_scalar, sigmoid
from ._jit import f32, f32s, f32s2, helper, i64, i64s, i64s2, kernel
from ._lanes import first, fma, load, splat, store, zero
from .choices import SIGMOID


@helper
def score(logits: Any, t: Any, experts: Any, activation: Any, scores: Any) -> Any:
    if activation == SIGMOID:
        for e in range(experts):
            scores[e] = first(sigmoid(splat(logits[t, e])))
        return
    greatest = f32(-np.inf)
    for e in range(experts):
        greatest = max(greatest, logits[t, e])
    total = f32(0.0)
    for e in range(experts):
        scores[e] = exp_scalar(logits[t, e] - greatest)
        total += scores[e]
    for e in range(experts):
        scores[e] /= total


@helper
def best(values: Any, taken: Any, begin: Any, end: Any) -> Any:
    """Position of the largest value that is not taken; the lower one of equals."""
    found = -1
    for i in range(begin, end):
        if not taken[i] and (found < 0 or values[i] > values[found]):
            found = i
    taken[found] = True
    return found


@helper
def mask_groups(choice: Any, groups: Any, kept: Any) -> Any:
    """−inf for every expert outside the `kept` groups whose two best choices sum highest."""
    size = choice.size // groups
    sums = np.empty(groups, np.float32)
    taken = np.zeros(choice.size, np.bool_)
    for g in range(groups):
        sums[g] = choice[best(choice, taken, g * size, g * size + size)]
        if size > 1:
            sums[g] += choice[best(choice, taken, g * size, g * size + size)]
    keeps = np.zeros(groups, np.bool_)
    for _ in range(kept):
        best(sums, keeps, 0, groups)
    for e in range(choice.size):
        if not keeps[e // size]:
            choice[e] = f32(-np.inf)


@kernel(f32s2, f32s, i64, i64, i64, i64, f32, i64s2, f32s2, i64, i64)
def route(
    logits: Any,
    bias: Any,
    activation: int,
    groups: int,
    kept_groups: int,
    renormalize: int,
    scaling: float,
    ids: Any,
    weights: Any,
    first_token: int,
    last_token: int,
) -> None:
    """The k experts of each token, ids ascending, and their weights; k is `ids.shape[1]`, experts `bias.size`.

    Choice is score + bias (equals go to the lower id), limited to the best groups if fewer are kept than there
    are; weights are scores, divided by their sum if asked and k > 1, times `scaling`.
    """
    experts, k = bias.size, ids.shape[1]
    scores, choice = np.empty(experts, np.float32), np.empty(experts, np.float32)
    for t in range(first_token, last_token):
        score(logits, t, experts, activation, scores)
        for e in range(experts):
            choice[e] = scores[e] + bias[e]
        if groups > kept_groups:
            mask_groups(choice, groups, kept_groups)
        taken = np.zeros(experts, np.bool_)
        for _ in range(k):
            best(choice, taken, 0, experts)
        rank, total = 0, f32(0.0)
        for e in range(experts):
            if taken[e]:
                ids[t, rank], weights[t, rank] = e, scores[e]
                total += scores[e]
                rank += 1
        for rank in range(k):
            if renormalize and k > 1:
                weights[t, rank] = weights[t, rank] / (total + f32(1e-20))
            weights[t, rank] *= scaling


@kernel(f32s2, i64s, f32s, f32s2, i64, i64)
def accumulate(answers: Any, tokens: Any, weights: Any, y: Any, column: int, last_column: int) -> None:
    """y[tokens[i]] += weights[i]·answers[i] in these columns, multiples of eight, for every i, ascending."""
    width = y.shape[1]
    for i in range(tokens.size):
        weight = splat(weights[i])
        for c in range(column, last_column, 8):
            at = tokens[i] * width + c
            store(y, at, fma(weight, load(answers, i * width + c), load(y, at)))


@kernel(f32s2, i64s2, f32s2, f32s2, i64, i64)
def combine(answers: Any, rows: Any, weights: Any, y: Any, first_token: int, last_token: int) -> None:
    """y[t] = Σ_j weights[t, j]·answers[rows[t, j]], j ascending, which is ascending expert id."""
    width = y.shape[1]
    for t in range(first_token, last_token):
        for i in range(0, width, 8):
            sums = zero()
            for j in range(rows.shape[1]):
                sums = fma(splat(weights[t, j]), load(answers, rows[t, j] * width + i), sums)
            store(y, t * width + i, sums)

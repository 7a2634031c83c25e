"""Routing to experts and summing what they answer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..choices import SIGMOID
from .vectors import Floats, sigmoid, softmax

Ids = npt.NDArray[np.int64]


def largest(values: Floats, count: int) -> Ids:
    """Positions of the largest values; of equals the lower one."""
    return np.argsort(-values, kind="stable")[:count]


def mask_groups(choice: Floats, groups: int, kept: int) -> None:
    """−inf for every expert outside the `kept` groups whose two best choices sum highest."""
    by_group = choice.reshape(groups, -1)
    two_best = np.sort(by_group, axis=1)[:, -2:].sum(axis=1)
    dropped = np.ones(groups, np.bool_)
    dropped[largest(two_best, kept)] = False
    by_group[dropped] = -np.inf


def route(
    logits: Floats,
    bias: Floats,
    activation: int,
    groups: int,
    kept_groups: int,
    renormalize: int,
    scaling: float,
    ids: Ids,
    weights: Floats,
    first_token: int,
    last_token: int,
) -> None:
    k = ids.shape[1]
    score = sigmoid if activation == SIGMOID else softmax
    for t in range(first_token, last_token):
        scores = score(logits[t, : bias.size].astype(np.float64)).astype(np.float32)
        choice = scores + bias
        if groups > kept_groups:
            mask_groups(choice, groups, kept_groups)
        ids[t] = np.sort(largest(choice, k))
        weights[t] = scores[ids[t]]
        if renormalize and k > 1:
            weights[t] /= weights[t].sum() + np.float32(1e-20)
        weights[t] *= scaling


def combine(answers: Floats, rows: Ids, weights: Floats, y: Floats, first_token: int, last_token: int) -> None:
    for t in range(first_token, last_token):
        y[t] = weights[t].astype(np.float64) @ answers[rows[t]]


def accumulate(answers: Floats, tokens: Ids, weights: Floats, y: Floats, column: int, last_column: int) -> None:
    columns = slice(column, last_column)
    np.add.at(y[:, columns], tokens, weights[:, np.newaxis] * answers[: tokens.size, columns])

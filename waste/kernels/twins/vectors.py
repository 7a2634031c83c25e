"""Row by row operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..choices import SILU, SITU

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def sigmoid(x: Floats | Doubles) -> Doubles:
    small: Doubles = np.exp(-np.abs(x.astype(np.float64)))  # at most 1, so that nothing overflows
    return np.where(x < 0, small, 1) / (1 + small)


def silu(x: Floats | Doubles) -> Doubles:
    return x * sigmoid(x)


def softmax(x: Doubles) -> Doubles:
    """Along the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Doubles = powers / powers.sum(axis=-1, keepdims=True)
    return result


def rms(x: Any, eps: float) -> Doubles:
    """x over the root of its mean square, along the last axis."""
    wide = x.astype(np.float64)
    result: Doubles = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    return result


def rms_norm(
    x: Floats, column: int, width: int, weight: Floats, eps: float, y: Floats, first_token: int, last_token: int
) -> None:
    tokens = slice(first_token, last_token)
    y[tokens, :width] = rms(x[tokens, column : column + width], eps) * weight[:width]


def activate(gate: Floats, up: Floats, kind: int, beta: float, linear_beta: float, column: int, last: int) -> None:
    g = gate[:, column:last].astype(np.float64)
    u = up[:, column:last].astype(np.float64)
    if kind == SILU:
        gate[:, column:last] = silu(g) * u
        return
    if kind == SITU:
        u = linear_beta * np.tanh(u / linear_beta)
    gate[:, column:last] = beta * np.tanh(g / beta) * sigmoid(g) * u


def multiply_sigmoid(x: Floats, gate: Floats, column: int, last: int) -> None:
    x[:, column:last] *= sigmoid(gate[:, column:last])


def add(x: Floats, y: Floats, first_token: int, last_token: int) -> None:
    y[first_token:last_token] += x[first_token:last_token]


def exponential(x: Floats, y: Floats) -> None:
    with np.errstate(over="ignore"):
        y[:] = np.exp(x)


def mix_residuals(
    stream: Floats, count: int, norm: Floats, query: Floats, eps: float, y: Floats, first_token: int, last_token: int
) -> None:
    values = stream[:count, first_token:last_token].astype(np.float64)
    scores = rms(values, eps) @ (norm * query)  # [count, tokens]
    y[first_token:last_token] = np.einsum("tj,jti->ti", softmax(scores.T), values)

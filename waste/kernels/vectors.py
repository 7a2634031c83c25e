"""Row by row operations: RMS norm, gated activations, sums, residual mixing. Every width is a multiple of 8."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._functions import constant, exp, exp_scalar, sigmoid, silu, tanh
from ._jit import f32, f32s, f32s2, f32s3, helper, i64, kernel
from ._lanes import element, first, fma, fold, load, splat, sqrt, store, zero
from .choices import SILU, SITU


@helper
def reciprocal_rms(x: Any, at: Any, width: Any, eps: Any) -> Any:
    """1/sqrt(mean(x²) + eps) in every lane."""
    sums = zero()
    for i in range(0, width, 8):
        value = load(x, at + i)
        sums = fma(value, value, sums)
    mean = splat(fold(sums)) / splat(f32(width))
    return constant(1.0) / sqrt(mean + splat(eps))


@kernel(f32s2, i64, i64, f32s, f32, f32s2, i64, i64)
def rms_norm(
    x: Any, column: int, width: int, weight: Any, eps: float, y: Any, first_token: int, last_token: int
) -> None:
    """y[t, :width] = x[t, column : column + width], normalized, times the weight."""
    for t in range(first_token, last_token):
        x_at, y_at = t * x.shape[1] + column, t * y.shape[1]
        scale = reciprocal_rms(x, x_at, width, eps)
        for i in range(0, width, 8):
            store(y, y_at + i, load(x, x_at + i) * scale * load(weight, i))


@kernel(f32s2, f32s2, i64, f32, f32, i64, i64)
def activate(gate: Any, up: Any, kind: int, beta: float, linear_beta: float, column: int, last: int) -> None:
    """gate[t, i] = act(gate[t, i], up[t, i]) for column ≤ i < last, every token.

    SiLU: silu(g)·u. SiTU: β·tanh(g/β)·σ(g) · λ·tanh(u/λ); uncapped, u stands as it is.
    """
    for t in range(gate.shape[0]):
        g_at, u_at = t * gate.shape[1], t * up.shape[1]
        for i in range(column, last, 8):
            g, u = load(gate, g_at + i), load(up, u_at + i)
            if kind == SILU:
                value = silu(g) * u
            else:
                if kind == SITU:
                    u = splat(linear_beta) * tanh(u / splat(linear_beta))
                value = splat(beta) * tanh(g / splat(beta)) * sigmoid(g) * u
            store(gate, g_at + i, value)


@kernel(f32s2, f32s2, i64, i64)
def multiply_sigmoid(x: Any, gate: Any, column: int, last: int) -> None:
    """x[t, i] *= σ(gate[t, i]) for column ≤ i < last, every token."""
    for t in range(x.shape[0]):
        for i in range(column, last, 8):
            x_at, g_at = t * x.shape[1] + i, t * gate.shape[1] + i
            store(x, x_at, load(x, x_at) * sigmoid(load(gate, g_at)))


@kernel(f32s2, f32s2, i64, i64)
def add(x: Any, y: Any, first_token: int, last_token: int) -> None:
    """y[t] += x[t]; both have the same width."""
    for at in range(first_token * y.shape[1], last_token * y.shape[1], 8):
        store(y, at, load(y, at) + load(x, at))


@kernel(f32s, f32s)
def exponential(x: Any, y: Any) -> None:
    """y = e^x, any length."""
    whole = x.size // 8 * 8
    for i in range(0, whole, 8):
        store(y, i, exp(load(x, i)))
    for i in range(whole, x.size):
        y[i] = exp_scalar(element(x, i))


@helper
def mixing_score(stream: Any, at: Any, width: Any, norm: Any, query: Any, eps: Any) -> Any:
    sums = zero()
    for i in range(0, width, 8):
        sums = fma(load(stream, at + i), load(norm, i) * load(query, i), sums)
    return fold(sums) * first(reciprocal_rms(stream, at, width, eps))


@kernel(f32s3, i64, f32s, f32s, f32, f32s2, i64, i64)
def mix_residuals(
    stream: Any, count: int, norm: Any, query: Any, eps: float, y: Any, first_token: int, last_token: int
) -> None:
    """Attention residuals: y[t] = Σ_j softmax_j(score) V_j over V = stream[:count, t].

    score_j = Σ V_j · rsqrt(mean(V_j²) + eps) · (norm · query): keys are normalized, values are raw.
    """
    _, tokens, width = stream.shape
    scores = np.empty(count, np.float32)
    for t in range(first_token, last_token):
        greatest = f32(-np.inf)
        for j in range(count):
            scores[j] = mixing_score(stream, (j * tokens + t) * width, width, norm, query, eps)
            greatest = max(greatest, scores[j])
        total = f32(0.0)
        for j in range(count):
            scores[j] = exp_scalar(scores[j] - greatest)
            total += scores[j]
        for i in range(0, width, 8):
            sums = zero()
            for j in range(count):
                sums = fma(splat(scores[j] / total), load(stream, (j * tokens + t) * width + i), sums)
            store(y, t * width + i, sums)

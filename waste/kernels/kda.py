"""Kimi Delta Attention, head by head (released `modeling_kimi_linear.py`; the recurrence of fla's `kda/naive.py`).

Shapes: N tokens in the step, `heads` of `size` channels, C = heads·size. A row of `qkv` is [q | k | v], 3·C. Every
kernel works on heads `first` to `last` and, where a session is concerned, on its tokens `begin` to `end`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._functions import constant, exp, exp_scalar, sigmoid, silu, softplus
from ._jit import f32, f32s, f32s2, f32s3, helper, i64, kernel
from ._lanes import element, fma, fold, load, splat, sqrt, store, zero
from ._lanes import first as first_lane
from .vectors import reciprocal_rms

_NORM_EPS = np.float32(1e-6)


@kernel(f32s2, f32s2, f32s2, i64, i64, i64, i64, f32s2)
def short_convolution(
    x: Any, past: Any, taps: Any, begin: int, end: int, column: int, last_column: int, y: Any
) -> None:
    """y[t] = silu(Σ_j taps[j]·x[t − (K−1) + j]), a causal depthwise convolution over columns of one session.

    `past` [K−1, 3C] holds the session's inputs before token `begin`; `taps` [K, 3C], oldest first.
    """
    kernel_size, width = taps.shape
    for t in range(begin, end):
        for c in range(column, last_column, 8):
            sums = zero()
            for j in range(kernel_size):
                back = t - begin - (kernel_size - 1) + j
                if back < 0:
                    value = load(past, (back + kernel_size - 1) * width + c)
                else:
                    value = load(x, (begin + back) * width + c)
                sums = fma(load(taps, j * width + c), value, sums)
            store(y, t * width + c, silu(sums))


@helper
def normalize(x: Any, at: Any, size: Any) -> Any:
    sums = zero()
    for i in range(0, size, 8):
        value = load(x, at + i)
        sums = fma(value, value, sums)
    scale = constant(1.0) / sqrt(splat(fold(sums)) + constant(_NORM_EPS))
    for i in range(0, size, 8):
        store(x, at + i, load(x, at + i) * scale)


@kernel(f32s2, f32s2, f32s2, f32s, f32s, f32, i64, i64, i64)
def prepare(
    qkv: Any,
    decay: Any,
    beta: Any,
    a_log: Any,
    dt_bias: Any,
    lower_bound: float,
    size: int,
    first: int,
    last: int,
) -> None:
    """In place, for every token: q and k normalized, z in `decay` turned into exp(g), `beta` into σ(beta).

    g = lower_bound·σ(exp(A_log)·(z + dt_bias)) where a (negative) bound is set, else −exp(A_log)·softplus(z + dt_bias).
    """
    channels = decay.shape[1]
    for t in range(qkv.shape[0]):
        for h in range(first, last):
            normalize(qkv, t * 3 * channels + h * size, size)
            normalize(qkv, t * 3 * channels + channels + h * size, size)
            rate = splat(exp_scalar(a_log[h]))
            for c in range(h * size, h * size + size, 8):
                z = load(decay, t * channels + c) + load(dt_bias, c)
                if lower_bound < f32(0.0):
                    g = splat(lower_bound) * sigmoid(rate * z)
                else:
                    g = (constant(0.0) - rate) * softplus(z)
                store(decay, t * channels + c, exp(g))
            beta[t, h] = first_lane(sigmoid(splat(beta[t, h])))


@helper
def remember(state: Any, at: Any, size: Any, k: Any, d: Any) -> Any:
    """Sᵀk on 32 columns of one head, S decayed; k, d: see `delta_step`. Four chains, so that none waits for itself."""
    p, q, r, u = zero(), zero(), zero(), zero()
    for i in range(size):
        decay, key, row = splat(element(d[0], d[1] + i)), splat(element(k[0], k[1] + i)), at + i * size
        p = fma(key, decay * load(state, row), p)
        q = fma(key, decay * load(state, row + 8), q)
        r = fma(key, decay * load(state, row + 16), r)
        u = fma(key, decay * load(state, row + 24), u)
    return p, q, r, u


@helper
def correct(
    state: Any, after: Any, at: Any, size: Any, q: Any, k: Any, d: Any, beta: Any, corrections: Any, write: Any
) -> Any:
    """Form the new state from the decayed one and 32 columns of corrections; returns Sᵀq on them."""
    c0, c1, c2, c3 = corrections
    y0, y1, y2, y3 = zero(), zero(), zero(), zero()
    for i in range(size):
        decay, key, row = splat(element(d[0], d[1] + i)), splat(beta * element(k[0], k[1] + i)), at + i * size
        s0 = fma(key, c0, decay * load(state, row))
        s1 = fma(key, c1, decay * load(state, row + 8))
        s2 = fma(key, c2, decay * load(state, row + 16))
        s3 = fma(key, c3, decay * load(state, row + 24))
        if write:
            store(after, row, s0)
            store(after, row + 8, s1)
            store(after, row + 16, s2)
            store(after, row + 24, s3)
        query = splat(element(q[0], q[1] + i))
        y0, y1, y2, y3 = fma(query, s0, y0), fma(query, s1, y1), fma(query, s2, y2), fma(query, s3, y3)
    return y0, y1, y2, y3


@helper
def delta_step_wide(
    state: Any, after: Any, at: Any, size: Any, q: Any, k: Any, v: Any, d: Any, beta: Any, write: Any
) -> Any:
    """`delta_step` on 32 columns, to the same bits; v is (array, position of the first of them)."""
    p0, p1, p2, p3 = remember(state, at, size, k, d)
    corrections = (
        load(v[0], v[1]) - p0,
        load(v[0], v[1] + 8) - p1,
        load(v[0], v[1] + 16) - p2,
        load(v[0], v[1] + 24) - p3,
    )
    return correct(state, after, at, size, q, k, d, beta, corrections, write)


@helper
def delta_step(
    state: Any, after: Any, at: Any, size: Any, q: Any, k: Any, v: Any, d: Any, beta: Any, write: Any
) -> Any:
    """One token on eight columns of one head's state; q, k, v, d are (array, position of the head's first channel).

    S ← diag(decay)·S, then S ← S + (β·k) ⊗ (v − Sᵀk), written to `after` if asked; returns Sᵀq. Sums run over
    ascending rows. The decayed state is formed again in the second pass instead of being stored.
    """
    remembered = zero()
    for i in range(size):
        s = splat(element(d[0], d[1] + i)) * load(state, at + i * size)
        remembered = fma(splat(element(k[0], k[1] + i)), s, remembered)
    correction = v - remembered
    out = zero()
    for i in range(size):
        s = splat(element(d[0], d[1] + i)) * load(state, at + i * size)
        s = fma(splat(beta * element(k[0], k[1] + i)), correction, s)
        if write:
            store(after, at + i * size, s)
        out = fma(splat(element(q[0], q[1] + i)), s, out)
    return out


@helper
def scan_columns(
    state: Any, after: Any, owed: Any, is_owed: Any, qkv: Any, decay: Any, beta: Any, begin: Any, end: Any, write: Any,
    h: Any, column: Any, out: Any,
) -> None:  # fmt: skip
    """`scan` for eight columns of one head."""
    size, channels = state.shape[1], decay.shape[1]
    scale = constant(1.0) / sqrt(splat(f32(size)))
    at, c = h * size * size + column, h * size
    if is_owed:
        k, d = (owed, c), (owed, 2 * channels + c)
        v, strength = load(owed, channels + c + column), owed[3 * channels + h]
        delta_step(state, state, at, size, k, k, v, d, strength, 1)
    source = state
    for t in range(begin, end):
        row = t * 3 * channels + c
        q, k, d = (qkv, row), (qkv, row + channels), (decay, t * channels + c)
        v = load(qkv, row + 2 * channels + column)
        read = delta_step(source, after, at, size, q, k, v, d, beta[t, h], write)
        store(out, t * channels + c + column, read * scale)
        source = after


@helper
def scan_wide(
    state: Any, after: Any, owed: Any, is_owed: Any, qkv: Any, decay: Any, beta: Any, begin: Any, end: Any, write: Any,
    h: Any, column: Any, out: Any,
) -> None:  # fmt: skip
    """`scan` for 32 columns of one head."""
    size, channels = state.shape[1], decay.shape[1]
    scale = constant(1.0) / sqrt(splat(f32(size)))
    at, c = h * size * size + column, h * size
    if is_owed:
        k, d = (owed, c), (owed, 2 * channels + c)
        v, strength = (owed, channels + c + column), owed[3 * channels + h]
        delta_step_wide(state, state, at, size, k, k, v, d, strength, 1)
    source = state
    for t in range(begin, end):
        row, to = t * 3 * channels + c, t * channels + c + column
        q, k, d = (qkv, row), (qkv, row + channels), (decay, t * channels + c)
        v = (qkv, row + 2 * channels + column)
        y0, y1, y2, y3 = delta_step_wide(source, after, at, size, q, k, v, d, beta[t, h], write)
        store(out, to, y0 * scale)
        store(out, to + 8, y1 * scale)
        store(out, to + 16, y2 * scale)
        store(out, to + 24, y3 * scale)
        source = after


@kernel(f32s3, f32s3, f32s, i64, f32s2, f32s2, f32s2, i64, i64, i64, i64, i64, f32s2)
def scan(
    state: Any,
    after: Any,
    owed: Any,
    is_owed: int,
    qkv: Any,
    decay: Any,
    beta: Any,
    begin: int,
    end: int,
    write: int,
    first: int,
    last: int,
    out: Any,
) -> None:
    """The recurrence over one session's tokens, out[t] = Sᵀq·size^-½; `state` and `after` are [heads, size, size].

    `owed` is the session's last committed token, [k | v | decay | beta]: its update is brought into `state` first,
    in place. With `write` the states after each token go to `after` and `state` stays; without, there is one
    token, whose new state exists in registers only.
    """
    size = state.shape[1]
    for h in range(first, last):
        wide = size // 32 * 32
        for column in range(0, wide, 32):
            scan_wide(state, after, owed, is_owed, qkv, decay, beta, begin, end, write, h, column, out)
        for column in range(wide, size, 8):
            scan_columns(state, after, owed, is_owed, qkv, decay, beta, begin, end, write, h, column, out)


@kernel(f32s2, f32s2, f32s, f32, i64, i64, i64)
def gate_output(out: Any, gate: Any, norm: Any, eps: float, size: int, first: int, last: int) -> None:
    """In place, for every token and head: out = rms(out)·norm·σ(gate)."""
    channels = out.shape[1]
    for t in range(out.shape[0]):
        for h in range(first, last):
            at = t * channels + h * size
            scale = reciprocal_rms(out, at, size, eps)
            for i in range(0, size, 8):
                value = load(out, at + i) * scale * load(norm, i)
                store(out, at + i, value * sigmoid(load(gate, at + i)))

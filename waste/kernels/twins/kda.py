"""Kimi Delta Attention."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .vectors import Doubles, Floats, rms, sigmoid, silu

State = npt.NDArray[np.float32]
"""[heads, size, size]"""


def short_convolution(
    x: Floats, past: Floats, taps: Floats, begin: int, end: int, column: int, last_column: int, y: Floats
) -> None:
    columns = slice(column, last_column)
    inputs = np.concatenate([past[:, columns], x[begin:end, columns]])
    for t in range(begin, end):
        window = inputs[t - begin : t - begin + len(taps)]
        y[t, columns] = silu((window * taps[:, columns]).sum(axis=0))


def prepare(
    qkv: Floats,
    decay: Floats,
    beta: Floats,
    a_log: Floats,
    dt_bias: Floats,
    lower_bound: float,
    size: int,
    first: int,
    last: int,
) -> None:
    channels = decay.shape[1]
    for h in range(first, last):
        own = slice(h * size, (h + 1) * size)
        for part in (qkv[:, :channels], qkv[:, channels : 2 * channels]):
            part[:, own] /= np.sqrt((part[:, own] ** 2).sum(axis=1, keepdims=True) + 1e-6)
        z = decay[:, own].astype(np.float64) + dt_bias[own]
        rate = np.exp(np.float64(a_log[h]))
        g = lower_bound * sigmoid(rate * z) if lower_bound < 0 else -rate * np.logaddexp(0, z)
        decay[:, own] = np.exp(g)
        beta[:, h] = sigmoid(beta[:, h])


def delta_step(S: Doubles, k: Floats, v: Floats, decay: Floats, beta: float) -> Doubles:
    """The state of one head after one more token: decayed, then its answer to k moved towards v."""
    S = decay[:, None] * S
    return S + np.outer(beta * k, v - S.T @ k)


def scan(
    state: State,
    after: State,
    owed: Floats,
    is_owed: int,
    qkv: Floats,
    decay: Floats,
    beta: Floats,
    begin: int,
    end: int,
    write: int,
    first: int,
    last: int,
    out: Floats,
) -> None:
    size, channels = state.shape[1], decay.shape[1]
    for h in range(first, last):
        own = slice(h * size, (h + 1) * size)
        if is_owed:
            k, v, d = (owed[part * channels :][own] for part in range(3))
            state[h] = delta_step(state[h].astype(np.float64), k, v, d, owed[3 * channels + h])
        S = state[h].astype(np.float64)
        for t in range(begin, end):
            q, k, v = (qkv[t, part * channels :][own] for part in range(3))
            S = delta_step(S, k, v, decay[t, own], beta[t, h])
            out[t, own] = S.T @ q * size**-0.5
        if write and begin < end:
            after[h] = S


def gate_output(out: Floats, gate: Floats, norm: Floats, eps: float, size: int, first: int, last: int) -> None:
    for h in range(first, last):
        own = slice(h * size, (h + 1) * size)
        out[:, own] = rms(out[:, own], eps) * norm * sigmoid(gate[:, own])

"""MXFP4 weights, straight from the packed nibbles (OCP Microscaling Formats 1.0; compressed-tensors' packing).

A row is `columns / 2` bytes, the low nibble first; its scales are `columns / 32` bytes, one for 32 weights. A nibble
is a sign bit and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6; a scale byte e is 2^(e−127). Every weight is an exact float32,
but for e = 253 and 254, whose largest overflow to ±inf. e = 255 is NaN: `find_bad_scale` finds it, and it is never
multiplied.
"""

from __future__ import annotations

from typing import Any

from ._e2m1 import CHECKED_AT_ONCE, have_bad_scale, load_e2m1, load_e8m0, splat_e8m0
from ._experts import ARGUMENTS, answer, plain_rows
from ._grouped import multiply, widen_rows
from ._jit import f32s2, i64, i64s, kernel, u8s
from .vectors import activate

BITS, GROUP, SCALE_BYTES = 4, 32, 1


@kernel(u8s, i64, i64, i64, i64, i64, f32s2, f32s2, i64)
def product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, x: Any, y: Any, y_column: int
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    multiply(
        load_e2m1, splat_e8m0, load_e8m0, BITS, GROUP, SCALE_BYTES,
        data, at, scale_at, columns, first, last, x, y, y_column,
    )  # fmt: skip


@kernel(u8s, i64, i64, i64, i64, f32s2)
def widen(data: Any, at: int, scale_at: int, columns: int, rows: int, y: Any) -> None:
    """y[r, i] = W[r, i] as float32, its scale applied."""
    widen_rows(load_e2m1, splat_e8m0, BITS, GROUP, SCALE_BYTES, data, at, scale_at, columns, rows, y)


@kernel(u8s, i64, i64, i64s, i64)
def find_bad_scale(data: Any, scale_at: int, count: int, found: Any, slot: int) -> None:
    """found[slot] = position of the first of `count` scales that is 255, the NaN, or −1."""
    found[slot] = -1
    i = 0
    while i + CHECKED_AT_ONCE <= count and not have_bad_scale(data, scale_at + i):
        i += CHECKED_AT_ONCE
    while i < count and found[slot] < 0:
        if data[scale_at + i] == 255:
            found[slot] = i
        i += 1


@kernel(*ARGUMENTS, calls=(product, find_bad_scale, activate))
def experts(
    records: Any, x: Any, tokens: Any, gathered: Any, gate: Any, up: Any, answers: Any,
    kind: int, beta: float, linear_beta: float, turns: Any, found: Any,
) -> None:  # fmt: skip
    """answers = w2·act(w1·x, w3·x) of several experts: see `_experts`."""
    scales = x.shape[1] * gate.shape[1] // GROUP
    answer(
        plain_rows, product, find_bad_scale,
        records, 0, x, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found, scales, scales,
    )  # fmt: skip

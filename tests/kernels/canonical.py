"""The canonical order of rule 1, written out slowly: float32 numpy with an exact fused multiply-add."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a·b + c rounded once.

    The product of two float32 is exact in float64. The sum is rounded there to odd (of the two neighbours of a sum
    that is not exact, the one whose last bit is set); from that, rounding again to float32 cannot go wrong.
    """
    product, addend = np.float64(a) * np.float64(b), np.float64(c)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)  # Knuth's two-sum: total + error is exact
    is_even = total.view(np.int64) & 1 == 0
    odd = np.where((error != 0) & is_even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)


def fold(lanes: Floats) -> Floats:
    """((0+4) + (2+6)) + ((1+5) + (3+7)) along the last axis."""
    l0, l1, l2, l3, l4, l5, l6, l7 = np.moveaxis(lanes, -1, 0)
    result: Floats = ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))
    return result


def product(weights: Floats, x: Floats) -> Floats:
    """x·Wᵀ, [tokens, rows], of weights [rows, columns] without scales."""
    lanes = np.zeros((len(x), len(weights), 8), np.float32)
    for i in range(0, weights.shape[1], 8):
        lanes = fma(weights[None, :, i : i + 8], x[:, None, i : i + 8], lanes)
    return fold(lanes)


def grouped_product(weights: Floats, scales: Floats, x: Floats, group_size: int) -> Floats:
    """The same of unscaled weights and their scales [rows, groups]; the last group may be short."""
    lanes = np.zeros((len(x), len(weights), 8), np.float32)
    for group in range(scales.shape[1]):
        partial = np.zeros_like(lanes)
        for i in range(group_size * group, min(group_size * (group + 1), weights.shape[1]), 8):
            partial = fma(weights[None, :, i : i + 8], x[:, None, i : i + 8], partial)
        lanes = fma(partial, scales[None, :, group, None], lanes)
    return fold(lanes)


def transposed_product(weights: Floats, x: Floats) -> Floats:
    """x·W, [tokens, columns], rows fused in ascending order."""
    sums = np.zeros((len(x), weights.shape[1]), np.float32)
    for r, row in enumerate(weights):
        sums = fma(row[None, :], x[:, r, None], sums)
    return sums

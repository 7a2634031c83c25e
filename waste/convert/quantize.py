"""Quantizers of groups of weights: Q8G, Q4G, MXFP4. Element by element, so the same bits on any machine.

Scales of Q8G and Q4G are a group's absolute maximum over the largest code, rounded to float16 before it is divided by.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waste.errors import DamagedError, UnsupportedError
from waste.io.manifest import GROUP
from waste.io.record import MXFP4_GROUP

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

LARGEST_CODE = {"Q8G": 127, "Q4G": 7}
_LARGEST_F16 = 65504.0
_MXFP4_BIAS = 127
_MXFP4_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Halfway between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""


class Grouped(NamedTuple):
    """Rows of codes as they are stored, and their scales."""

    codes: Bytes
    scales: Bytes


def absolute_maximum(values: Floats) -> Floats:
    """Along the last axis. Raises DamagedError for NaN or infinity."""
    largest = np.maximum(values.max(-1), -values.min(-1))
    if not np.isfinite(largest).all():
        raise DamagedError("holds a NaN or an infinity; expected numbers")
    return np.asarray(largest, np.float32)


def half_scales(largest: Floats) -> npt.NDArray[np.float16]:
    """Scales as they are stored. Raises UnsupportedError for one that float16 has no number for."""
    if (largest > _LARGEST_F16).any():
        raise UnsupportedError(f"needs a scale above {_LARGEST_F16:,.0f}, the most float16 holds; choose bf16 or mxfp4")
    return largest.astype("<f2")


def divide(values: Floats, scales: npt.NDArray[np.float16]) -> Floats:
    """values [..., n] over scales [...]; zero where a scale is zero."""
    wide = scales.astype(np.float32)[..., None]
    return np.where(wide > 0, values / np.where(wide > 0, wide, np.float32(1)), np.float32(0))


def quantize_groups(values: Floats, name: str) -> Grouped:
    """Rows [rows, columns] as Q8G or Q4G, each filled up with zeros to whole groups."""
    rows, columns = values.shape
    groups = -(-columns // GROUP)
    if columns % GROUP:
        padded = np.zeros((rows, groups * GROUP), np.float32)
        padded[:, :columns] = values
        values = padded
    grouped = values.reshape(rows, groups, GROUP)
    top = LARGEST_CODE[name]
    scales = half_scales(absolute_maximum(grouped) / np.float32(top))
    codes = np.rint(divide(grouped, scales))
    np.clip(codes, -top, top, out=codes)
    flat = codes.reshape(rows, groups * GROUP)
    if name == "Q8G":
        stored = flat.astype(np.int8).view(np.uint8)
    else:
        stored = pack_nibbles((flat + np.float32(8)).astype(np.uint8))
    return Grouped(stored, scales.view(np.uint8).reshape(rows, 2 * groups))


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two codes [rows, columns] a byte, the first in the low half."""
    return np.asarray(codes[:, 0::2] | codes[:, 1::2] << np.uint8(4), np.uint8)


def quantize_mxfp4(values: Floats) -> Grouped:
    """Rows [rows, columns], whole groups of 32, as packed nibbles and scale bytes.

    A group's largest weight comes out between 3.5 and 7 times its scale; what is beyond 6 becomes 6. Halfway goes to
    the even code.
    """
    rows, columns = values.shape
    grouped = values.reshape(rows, columns // MXFP4_GROUP, MXFP4_GROUP)
    largest = absolute_maximum(grouped)
    fraction, exponent = np.frexp(largest)  # the largest is fraction · 2^exponent, fraction in [0.5, 1)
    exponent = exponent - np.where(fraction > 0.875, 2, 3)
    exponent = np.clip(np.where(largest > 0, exponent, -_MXFP4_BIAS), -_MXFP4_BIAS, 127 - 2)
    # In float64, where 2^-exponent and the quotient are exact.
    scaled = np.ldexp(grouped.astype(np.float64), -exponent[..., None])
    size = np.abs(scaled)
    codes = np.zeros(size.shape, np.uint8)
    for step, half in enumerate(_MXFP4_STEPS):
        codes += size > half if step % 2 == 0 else size >= half
    codes |= np.where((scaled < 0) & (codes > 0), np.uint8(8), np.uint8(0))
    flat = codes.reshape(rows, columns)
    return Grouped(pack_nibbles(flat), (exponent + _MXFP4_BIAS).astype(np.uint8))

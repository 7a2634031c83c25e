"""MXFP4: every scale with every code, seen through `product` and through `widen`."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from waste.kernels import load_kernels
from waste.kernels.kernel_set import Kernel

MAGNITUDES = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
SCALES = 255
LARGEST = Fraction(float(np.finfo(np.float32).max))


def weight(scale: int, code: int) -> float:
    """The value of one weight as float32 holds it, by exact arithmetic; only overflow is not exact."""
    exact = MAGNITUDES[code & 7] * Fraction(2) ** (scale - 127)
    size = float(exact) if exact <= LARGEST else float("inf")
    return -size if code & 8 else size


def matrix_of_all(width: int) -> tuple[npt.NDArray[np.uint8], int, npt.NDArray[np.float32]]:
    """Row e has scale e throughout; codes shift from group to group so that each meets every place. Data, scale_at."""
    codes = (np.arange(width) + np.arange(width) // 32 * 5) % 16
    row = (codes[0::2] | codes[1::2] << 4).astype(np.uint8)
    scales = np.repeat(np.arange(SCALES, dtype=np.uint8), width // 32)
    table = np.array([[weight(e, code) for code in range(16)] for e in range(SCALES)])
    return np.concatenate([np.tile(row, SCALES), scales]), SCALES * row.size, table[:, codes].astype(np.float32)


def test_which_weights_overflow() -> None:
    overflowing = {(e, code) for e in range(SCALES) for code in range(16) if np.isinf(weight(e, code))}
    assert overflowing == {(e, c | s) for e, cs in ((253, (6, 7)), (254, (4, 5, 6, 7))) for c in cs for s in (0, 8)}


@pytest.mark.parametrize("width", [32, 64, 96, 3104])
@pytest.mark.parametrize("name", ["numba", "numpy"])
def test_all_scales_and_codes(name: str, width: int, compiled: dict[str, Kernel]) -> None:
    kernels = compiled if name == "numba" else load_kernels("numpy").by_name()
    data, scale_at, expected = matrix_of_all(width)
    widened = np.empty((SCALES, width), np.float32)
    kernels["MXFP4.widen"](data, 0, scale_at, width, SCALES, widened)
    np.testing.assert_array_equal(widened, expected)
    assert (np.signbit(widened) == np.signbit(expected)).all()

    # One-hot inputs show the weights one by one; of a wide matrix the first groups and the last.
    shown = np.arange(width) if width < 100 else np.r_[0:32, width - 32 : width]
    x = np.zeros((shown.size, width), np.float32)
    x[np.arange(shown.size), shown] = 1
    y = np.empty((shown.size, SCALES), np.float32)
    kernels["MXFP4.product"](data, 0, scale_at, width, 0, SCALES, x, y, 0)
    np.testing.assert_array_equal(y.T, expected[:, shown])
    for t in range(shown.size):
        alone = np.empty((1, SCALES), np.float32)
        kernels["MXFP4.product"](data, 0, scale_at, width, 0, SCALES, x[t : t + 1], alone, 0)
        np.testing.assert_array_equal(alone[0], expected[:, shown[t]])


def test_the_scale_that_is_nan_is_found(compiled: dict[str, Kernel]) -> None:
    found = np.zeros(1, np.int64)
    for bad in range(256):
        scales = np.arange(256, dtype=np.uint8)
        scales[255] = bad
        compiled["MXFP4.find_bad_scale"](scales, 0, 256, found, 0)
        assert found[0] == (255 if bad == 255 else -1)

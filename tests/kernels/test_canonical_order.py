"""Rule 1: the bits of a product depend on its weights and inputs, not on tiles, row ranges or neighbours."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from waste.kernels.kernel_set import Kernel

from . import canonical
from .cases import normal, random_rows

WIDTHS = {"BF16": (8, 24, 128, 3104), "F32": (8, 24, 128, 3104), "MXFP4": (32, 64, 96, 3104)}
FORMATS_AND_WIDTHS = [(name, width) for name, widths in WIDTHS.items() for width in widths]
ROWS = 6


def round_fraction(value: Fraction) -> np.float32:
    """The nearest float32, ties to even, of a number in the normal range."""
    if value == 0:
        return np.float32(0)
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    return np.float32(float(round(value / unit) * unit))


def test_the_exact_fma_is_exact() -> None:
    rng = np.random.default_rng(1)
    # Short significands make ties and cancellations likely.
    a, b, c = (
        np.float32(rng.integers(-(2**bits), 2**bits, 2000) * 2.0 ** rng.integers(-30, 10, 2000))
        for bits in (23, 12, 24)
    )
    c[::3] = -np.float32(np.float64(a[::3]) * b[::3])
    # 2^-24 - 2^-60 is a little less than half a unit of c: through float64 it would become the half.
    a[0], b[0], c[0] = 2.0**-12 + 2.0**-30, 2.0**-12 - 2.0**-30, 1 + 2.0**-23
    got = canonical.fma(a, b, c)
    for i in range(a.size):
        assert got[i] == round_fraction(Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i])))
    assert np.float32(np.float64(a) * b + c)[0] != got[0]
    assert (a * b + c != got).any()


@pytest.mark.parametrize(("name", "width"), FORMATS_AND_WIDTHS)
def test_products_follow_the_canonical_order(name: str, width: int, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(width)
    rows = random_rows(rng, name, ROWS, width)
    x, y = normal(rng, 5, width), np.empty((5, ROWS), np.float32)
    compiled[f"{name}.product"](rows.data, rows.at, rows.scale_at, width, 0, ROWS, x, y, 0)
    weights = np.empty((ROWS, width), np.float32)
    compiled[f"{name}.widen"](rows.data, rows.at, rows.scale_at, width, ROWS, weights)
    if name == "MXFP4":
        exponents = rows.data[rows.scale_at : rows.scale_at + ROWS * width // 32].reshape(ROWS, -1)
        scales = np.float32(2.0) ** (exponents.astype(np.int32) - 127)
        unscaled = weights / np.repeat(scales, 32, axis=1)
        expected = canonical.grouped_product(unscaled, scales.astype(np.float32), x)
    else:
        expected = canonical.product(weights, x)
    assert y.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["BF16", "F32"])
def test_transposed_products_follow_the_canonical_order(name: str, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, name, 100, 48)
    x, y = normal(rng, 5, 120), np.empty((5, 48), np.float32)
    compiled[f"{name}.absorb"](rows.data, rows.at, 0, 48, 100, x, 7, y)
    weights = np.empty((100, 48), np.float32)
    compiled[f"{name}.widen"](rows.data, rows.at, 0, 48, 100, weights)
    assert y.tobytes() == canonical.transposed_product(weights, x[:, 7:107]).tobytes()
    alone = np.empty((1, 48), np.float32)
    for t in range(5):
        compiled[f"{name}.absorb"](rows.data, rows.at, 0, 48, 100, x[t : t + 1], 7, alone)
        assert alone.tobytes() == y[t].tobytes()


@pytest.mark.parametrize(("name", "width"), FORMATS_AND_WIDTHS)
def test_a_token_alone_has_the_bits_it_has_in_a_tile(name: str, width: int, compiled: dict[str, Kernel]) -> None:
    product = compiled[f"{name}.product"]
    rng = np.random.default_rng(3)
    rows = random_rows(rng, name, ROWS, width)
    x = normal(rng, 9, width)
    alone = np.empty((9, ROWS), np.float32)
    for t in range(9):
        product(rows.data, rows.at, rows.scale_at, width, 0, ROWS, x[t : t + 1], alone[t : t + 1], 0)
    for tokens in range(2, 10):
        for begin in range(10 - tokens):
            tile = np.empty((tokens, ROWS), np.float32)
            product(rows.data, rows.at, rows.scale_at, width, 0, ROWS, x[begin : begin + tokens], tile, 0)
            assert tile.tobytes() == alone[begin : begin + tokens].tobytes()


@pytest.mark.parametrize("name", WIDTHS)
def test_row_ranges_may_be_split_anywhere(name: str, compiled: dict[str, Kernel]) -> None:
    product = compiled[f"{name}.product"]
    rng = np.random.default_rng(4)
    rows = random_rows(rng, name, 20, 96)
    x, whole = normal(rng, 5, 96), np.empty((5, 20), np.float32)
    product(rows.data, rows.at, rows.scale_at, 96, 0, 20, x, whole, 0)
    for cut in range(21):
        split = np.empty_like(whole)
        product(rows.data, rows.at, rows.scale_at, 96, 0, cut, x, split, 0)
        product(rows.data, rows.at, rows.scale_at, 96, cut, 20, x, split, 0)
        assert split.tobytes() == whole.tobytes()

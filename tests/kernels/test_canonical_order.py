"""Rule 1: the bits of a product depend on its weights and inputs, not on tiles, row ranges or neighbours."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from waste.kernels._tiles import INPUTS, TOKENS
from waste.kernels._tiles import ROWS as BLOCK_ROWS
from waste.kernels.kernel_set import Kernel

from . import canonical
from .cases import VECTOR_FORMATS, Rows, normal, random_rows, random_vectors

WIDTHS = {
    **dict.fromkeys(("BF16", "F16", "F32"), (8, 24, 128, 3104)),
    "MXFP4": (32, 64, 96, 3104),
    **dict.fromkeys(("Q8G", "Q4G"), (8, 128, 200, 3104)),
}
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
    if name in GROUPS:
        group = GROUPS[name]
        scales = scales_of(name, rows, width)
        # What was multiplied by a scale is a whole number of halves; dividing it comes out exact but for the last bit.
        unscaled = np.round(weights.astype(np.float64) / np.repeat(scales, group, axis=1)[:, :width] * 2) / 2
        expected = canonical.grouped_product(unscaled.astype(np.float32), scales, x, group)
    else:
        expected = canonical.product(weights, x)
    assert y.tobytes() == expected.tobytes()


GROUPS = {"MXFP4": 32, "Q8G": 128, "Q4G": 128}


def scales_of(name: str, rows: Rows, width: int) -> np.ndarray:
    count = ROWS * -(-width // GROUPS[name])
    if name == "MXFP4":
        exponents = rows.data[rows.scale_at : rows.scale_at + count].astype(np.int32)
        return (np.float32(2.0) ** (exponents - 127)).astype(np.float32).reshape(ROWS, -1)
    return rows.data[rows.scale_at : rows.scale_at + 2 * count].view("<f2").astype(np.float32).reshape(ROWS, -1)


@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "Q8G", "Q4G"])
def test_transposed_products_follow_the_canonical_order(name: str, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, name, 100, 48)
    x, y = normal(rng, 5, 120), np.empty((5, 48), np.float32)
    compiled[f"{name}.absorb"](rows.data, rows.at, rows.scale_at, 48, 100, x, 7, y)
    weights = np.empty((100, 48), np.float32)
    compiled[f"{name}.widen"](rows.data, rows.at, rows.scale_at, 48, 100, weights)
    assert y.tobytes() == canonical.transposed_product(weights, x[:, 7:107]).tobytes()
    alone = np.empty((1, 48), np.float32)
    for t in range(5):
        compiled[f"{name}.absorb"](rows.data, rows.at, rows.scale_at, 48, 100, x[t : t + 1], 7, alone)
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


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS + 7, 2 * TOKENS + 9])
@pytest.mark.parametrize("name", WIDTHS)
def test_a_product_of_many_blocks_has_the_bits_of_its_tokens(
    name: str, tokens: int, compiled: dict[str, Kernel]
) -> None:
    product, rng = compiled[f"{name}.product"], np.random.default_rng(7)
    rows, width = 2 * BLOCK_ROWS + 5, 2 * INPUTS + (64 if name == "MXFP4" else 72)  # MXFP4 has whole groups only
    stored = random_rows(rng, name, rows, width)
    x, together, alone = normal(rng, tokens, width), *(np.empty((tokens, rows), np.float32) for _ in range(2))
    product(stored.data, stored.at, stored.scale_at, width, 0, rows, x, together, 0)
    for t in range(tokens):
        product(stored.data, stored.at, stored.scale_at, width, 0, rows, x[t : t + 1], alone[t : t + 1], 0)
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("block", [0, 64, 20])
@pytest.mark.parametrize("name", VECTOR_FORMATS)
def test_sums_of_vectors_of_many_blocks_have_the_bits_of_their_tokens(
    name: str, block: int, compiled: dict[str, Kernel]
) -> None:
    product, rng = compiled[f"{name}.product"], np.random.default_rng(8)
    rows, width, tokens = 69, 2 * INPUTS + 72, TOKENS + 7
    stored, books = random_vectors(rng, name, rows, width, block)
    place = (stored.data, stored.at, stored.scale_at, width, 3, rows, block, books)
    x, together, alone = normal(rng, tokens, width), *(np.zeros((tokens, rows), np.float32) for _ in range(2))
    product(*place, x, together)
    for t in range(tokens):
        product(*place, x[t : t + 1], alone[t : t + 1])
    assert together.tobytes() == alone.tobytes()


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


@pytest.mark.parametrize("block", [0, 64])
@pytest.mark.parametrize("name", VECTOR_FORMATS)
def test_sums_of_vectors_follow_the_canonical_order(name: str, block: int, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(5)
    vector_bytes, stages, entries = VECTOR_FORMATS[name]
    rows, books = random_vectors(rng, name, ROWS, 104, block)
    x, y = normal(rng, 9, 104), np.empty((9, ROWS), np.float32)
    compiled[f"{name}.product"](rows.data, rows.at, rows.scale_at, 104, 0, ROWS, block, books, x, y)
    tables = books.reshape(stages, entries, 8)
    weights = np.empty((ROWS, 104), np.float32)
    for r in range(ROWS):
        for v in range(13):
            at = rows.at + (v * block + r if block else r * 13 + v) * vector_bytes
            stored = int.from_bytes(rows.data[at : at + vector_bytes].tobytes(), "little")
            bits = 6 if name == "VQ4P" else 8
            total = tables[0][stored & (1 << bits) - 1]
            for stage in range(1, stages):
                total = total + tables[stage][stored >> bits * stage & (1 << bits) - 1]
            weights[r, 8 * v : 8 * v + 8] = total
    scales = rows.data[rows.scale_at : rows.scale_at + 2 * ROWS].view("<f2").astype(np.float32)
    assert y.tobytes() == (canonical.product(weights, x) * scales).tobytes()
    widened = np.empty((ROWS, 104), np.float32)
    compiled[f"{name}.widen"](rows.data, rows.at, rows.scale_at, 104, ROWS, block, books, widened)
    assert widened.tobytes() == (weights * scales[:, None]).tobytes()


@pytest.mark.parametrize("block", [0, 64, 10])
@pytest.mark.parametrize("name", VECTOR_FORMATS)
def test_sums_of_vectors_depend_on_no_neighbour(name: str, block: int, compiled: dict[str, Kernel]) -> None:
    product = compiled[f"{name}.product"]
    rng = np.random.default_rng(6)
    rows, books = random_vectors(rng, name, 75, 40, block)
    x, alone = normal(rng, 18, 40), np.empty((18, 75), np.float32)
    place = (rows.data, rows.at, rows.scale_at, 40)
    for t in range(18):
        product(*place, 0, 75, block, books, x[t : t + 1], alone[t : t + 1])
    for tokens in range(2, 19):
        tile = np.empty((tokens, 75), np.float32)
        product(*place, 0, 75, block, books, x[:tokens], tile)
        assert tile.tobytes() == alone[:tokens].tobytes()
    for cut in (1, 7, 10, 64, 66, 74):
        split = np.empty_like(alone)
        product(*place, 0, cut, block, books, x, split)
        product(*place, cut, 75, block, books, x, split)
        assert split.tobytes() == alone.tobytes()

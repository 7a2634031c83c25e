"""Group quantizers against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.convert.slow_container import E2M1
from waste.convert.quantize import quantize_groups, quantize_mxfp4
from waste.errors import DamagedError, UnsupportedError


@pytest.mark.parametrize(("name", "top"), [("Q8G", 127), ("Q4G", 7)])
@pytest.mark.parametrize("columns", [128, 200, 8])
def test_groups_are_within_half_a_step(name: str, top: int, columns: int) -> None:
    values = np.random.default_rng(columns).standard_normal((6, columns)).astype(np.float32)
    values[2] = 0
    values[3] *= 1e-6  # its scales are subnormal
    stored = quantize_groups(values, name)
    groups = -(-columns // 128)
    scales = stored.scales.view("<f2").astype(np.float64).reshape(6, groups)
    if name == "Q8G":
        codes = stored.codes.view(np.int8).astype(np.float64)
    else:
        codes = np.stack((stored.codes & 15, stored.codes >> 4), -1).reshape(6, -1).astype(np.float64) - 8
    assert np.abs(codes).max() == top
    decoded = (codes.reshape(6, groups, 128) * scales[..., None]).reshape(6, -1)
    assert not decoded[:, columns:].any()
    allowed = np.repeat(0.5 * scales, 128, 1)[:, :columns] * (1 + 1e-5)
    clipped = np.abs(values) / top > np.repeat(scales, 128, 1)[:, :columns]
    assert ((np.abs(decoded[:, :columns] - values) <= allowed) | clipped).all()
    assert clipped[:3].sum() <= 3 * groups  # the largest itself, where its scale was rounded down
    assert not decoded[2].any()


def test_mxfp4_codes_are_the_nearest_and_exact_ones_stay() -> None:
    random = np.random.default_rng(1)
    values = random.standard_normal((64, 96)).astype(np.float32) * np.float32(2.0) ** random.integers(-20, 20, (64, 1))
    values = values.astype(np.float32)
    values[5] = 0
    stored = quantize_mxfp4(values)
    assert (stored.codes.shape, stored.scales.shape) == ((64, 48), (64, 3))
    codes = np.stack((stored.codes & 15, stored.codes >> 4), -1).reshape(64, 3, 32)
    scale = 2.0 ** (stored.scales.astype(np.float64) - 127)[..., None]
    grouped = values.astype(np.float64).reshape(64, 3, 32)
    best = np.abs(grouped[..., None] - E2M1 * scale[..., None]).min(-1)
    assert np.array_equal(np.abs(grouped - E2M1[codes] * scale), best)
    again = quantize_mxfp4((E2M1[codes] * scale).astype(np.float32).reshape(64, 96))
    largest = np.abs(E2M1[codes]).max(-1)
    same = (largest == 6) | (largest == 4)
    assert np.array_equal(again.scales[same], stored.scales[same])


def test_ends_of_the_range() -> None:
    tiny = np.full((1, 32), 1e-45, np.float32)
    assert quantize_mxfp4(tiny).scales.max() == 0
    huge = np.full((1, 32), 3e38, np.float32)
    assert quantize_mxfp4(huge).scales.min() == 252
    with pytest.raises(UnsupportedError, match="float16"):
        quantize_groups(huge, "Q8G")
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(DamagedError, match="NaN or an infinity"):
            quantize_groups(np.full((1, 128), bad, np.float32), "Q4G")

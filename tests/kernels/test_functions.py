"""Accuracy of our own exp, log1p, tanh, sigmoid, softplus and silu over the whole of float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from waste.kernels import _functions, load_kernels
from waste.kernels._jit import helper
from waste.kernels._lanes import load, store

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
INF = float("inf")
LEAST, MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max
EXP_LEAST = -86.5

EXACT: dict[str, Callable[[Doubles], Doubles]] = {
    "exp": np.exp,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
ULPS = {"exp": 1.0, "log1p": 1.0, "tanh": 1.5, "softplus": 2.0, "sigmoid": 2.5, "silu": 3.0}
"""What the module's docstring promises."""


@pytest.fixture(scope="module")
def ours() -> dict[str, Callable[[Floats], Floats]]:
    def elementwise(function: Callable[..., object]) -> Callable[[Floats], Floats]:
        @helper
        def run(x: Floats, y: Floats) -> None:
            for i in range(0, x.size, 8):
                store(y, i, function(load(x, i)))

        def call(x: Floats) -> Floats:
            padded = np.concatenate([x, np.ones(-x.size % 8, np.float32)])
            y = np.empty_like(padded)
            run(padded, y)
            return y[: x.size]

        return call

    return {name: elementwise(getattr(_functions, name)) for name in EXACT}


def sample(name: str) -> Floats:
    """Every 4,099th float32, every one beside the places where a formula changes, and a dense ordinary range."""
    every = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([1e-4, 0.3465736, 0.4142136, 0.625, 1.0, 16.6, 86.5, 88.72284, 89.0], np.float32).view(np.uint32)
    beside = (edges[:, None] + np.arange(-500, 500).astype(np.uint32)).ravel().view(np.float32)
    x = np.concatenate([every, beside, -beside, np.linspace(-20, 20, 100_001, dtype=np.float32)])
    x = x[np.isfinite(x)]
    return x[x >= 0] if name == "log1p" else x


@pytest.mark.parametrize("name", EXACT)
def test_accuracy(name: str, ours: dict[str, Callable[[Floats], Floats]]) -> None:
    x = sample(name)
    y = ours[name](x)
    assert y.dtype == np.float32
    with np.errstate(over="ignore"):
        exact = EXACT[name](x.astype(np.float64))
    size = np.abs(exact)
    above_cut = x >= EXP_LEAST if name in ("exp", "sigmoid", "softplus", "silu") else np.ones(x.shape, np.bool_)
    normal = (size >= LEAST) & (size <= MOST) & above_cut
    ulps = np.abs(y[normal] - exact[normal]) / np.spacing(size[normal].astype(np.float32))
    worst = ulps.argmax()
    assert ulps[worst] <= ULPS[name], f"{name}({x[normal][worst]!r}) is {ulps[worst]} ulp off"
    assert np.abs(y[~above_cut]).max(initial=0) == 0
    assert np.isinf(y[size > MOST]).all()
    assert np.abs(y[above_cut & (size < LEAST)] - exact[above_cut & (size < LEAST)]).max(initial=0) <= LEAST


@pytest.mark.parametrize("name", EXACT)
def test_nan_stays_nan(name: str, ours: dict[str, Callable[[Floats], Floats]]) -> None:
    quiet = np.array([np.nan, -np.nan], np.float32)
    assert np.isnan(ours[name](quiet)).all()


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("exp", [INF, -INF, 0, -0.0, 1e-45, 88.72283, 88.72284, 3e38], [INF, 0, 1, 1, 1, 3.402798e38, INF, INF]),
        ("log1p", [0, 1e-45, 1e-38, MOST], [0, 1e-45, 1e-38, 88.72284]),
        ("tanh", [INF, -INF, 0, -0.0, 1e-45, -1e-45, MOST, 9.5, -9.5], [1, -1, 0, 0, 1e-45, -1e-45, 1, 1, -1]),
        ("sigmoid", [INF, -INF, 0, -0.0, 1e-45, 20, MOST, -MOST], [1, 0, 0.5, 0.5, 0.5, 1, 1, 0]),
        ("softplus", [INF, -INF, 0, -0.0, MOST, -MOST], [INF, 0, 0.6931472, 0.6931472, MOST, 0]),
        ("silu", [INF, -INF, 0, -0.0, MOST, -MOST], [INF, np.nan, 0, 0, MOST, 0]),
    ],
)
def test_special_values(
    name: str, x: list[float], expected: list[float], ours: dict[str, Callable[[Floats], Floats]]
) -> None:
    np.testing.assert_allclose(ours[name](np.array(x, np.float32)), np.array(expected, np.float32), rtol=2e-7)


def test_tails_of_exponential_have_the_bits_of_whole_lanes(compiled: object) -> None:
    exponential = load_kernels("numba").exponential
    x = np.linspace(-30, 30, 64, dtype=np.float32)
    whole, part = np.empty(64, np.float32), np.empty(64, np.float32)
    exponential(x, whole)
    for size in range(1, 24):
        exponential(x[:size], part[:size])
        assert part[:size].tobytes() == whole[:size].tobytes()

"""Every compiled kernel against its numpy twin, on one table of inputs."""

from __future__ import annotations

import numpy as np
import pytest

from waste.kernels import load_kernels
from waste.kernels.choices import SIGMOID, SOFTMAX
from waste.kernels.kernel_set import Kernel

from .cases import CASES, Case

TWINS = load_kernels("numpy").by_name()


def test_every_kernel_of_both_sets_is_in_the_table() -> None:
    names = {case.kernel for case in CASES}
    assert names == set(TWINS)
    assert names == set(load_kernels("numba").by_name())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_twins_agree(case: Case, compiled: dict[str, Kernel]) -> None:
    fast, plain = case.run(compiled[case.kernel]), case.run(TWINS[case.kernel])
    for position, before in enumerate(case.arguments):
        if position in case.scratch:
            continue
        if position not in case.writes:
            np.testing.assert_array_equal(fast[position], before, err_msg=f"argument {position} is an input")
            np.testing.assert_array_equal(plain[position], before, err_msg=f"argument {position} is an input")
        else:
            assert np.isfinite(fast[position]).all()
            scale = np.abs(plain[position]).max(initial=0)
            np.testing.assert_allclose(fast[position], plain[position], rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("name", ["numba", "numpy"])
@pytest.mark.parametrize("activation", [SIGMOID, SOFTMAX])
def test_of_equal_experts_and_groups_the_lower_wins(name: str, activation: int, compiled: dict[str, Kernel]) -> None:
    route = (compiled if name == "numba" else TWINS)["route"]
    ids, weights = np.empty((1, 3), np.int64), np.empty((1, 3), np.float32)
    logits, bias = np.full((1, 12), 0.5, np.float32), np.zeros(12, np.float32)
    route(logits, bias, activation, 1, 1, 1, 1.0, ids, weights, 0, 1)
    assert ids.tolist() == [[0, 1, 2]]
    logits[0, [5, 9]] = 1.0
    route(logits, bias, activation, 1, 1, 1, 1.0, ids, weights, 0, 1)
    assert ids.tolist() == [[0, 5, 9]]
    # Groups of three: 1 and 3 hold the better experts, of 0 and 2 the lower one is third.
    route(logits, bias, activation, 4, 3, 1, 1.0, ids, weights, 0, 1)
    assert ids.tolist() == [[0, 5, 9]]
    logits[0, [5, 9]] = 0.5
    logits[0, 11] = 1.0
    route(logits, bias, activation, 4, 1, 1, 1.0, ids, weights, 0, 1)
    assert ids.tolist() == [[9, 10, 11]]


@pytest.mark.parametrize("name", ["numba", "numpy"])
def test_choice_is_with_bias_and_weights_without(name: str, compiled: dict[str, Kernel]) -> None:
    route = (compiled if name == "numba" else TWINS)["route"]
    logits, bias = np.array([[0, 0, 2, -1]], np.float32), np.array([0, 0, -5, 3], np.float32)
    ids, weights = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    route(logits, bias, SIGMOID, 1, 1, 0, 2.0, ids, weights, 0, 1)
    assert ids.tolist() == [[0, 3]]
    np.testing.assert_allclose(weights, [[1.0, 2 / (1 + np.e)]], rtol=1e-6)

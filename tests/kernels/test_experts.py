"""An expert's MLP in one call: the bits of its products and its activation one by one, and no answer of bad scales."""

from __future__ import annotations

import numpy as np
import pytest

from waste.kernels import load_kernels
from waste.kernels.choices import SILU, SITU, SITU_UNCAPPED
from waste.kernels.kernel_set import Kernel

from .cases import EXPERT_FORMATS, VECTOR_FORMATS, Expert, expert_arguments, f16_bytes, normal, random_expert

INPUTS, WIDTH, BLOCK = 96, 160, 64
TWINS = load_kernels("numpy").by_name()
CHECKED = ("MXFP4", *VECTOR_FORMATS)


def one_by_one(
    kernels: dict[str, Kernel], format_name: str, expert: Expert, x: np.ndarray, tokens: np.ndarray, kind: int
) -> np.ndarray:
    """What the separate kernels answer."""
    product, activate = kernels[f"{format_name}.product"], kernels["activate"]

    def multiply(matrix: int, columns: int, rows: int, x: np.ndarray, y: np.ndarray) -> None:
        place = (expert.data, int(expert.places[matrix]), int(expert.places[3 + matrix]), columns, 0, rows)
        if expert.books is None:
            product(*place, x, y, 0)
        else:
            product(*place, BLOCK, expert.books[matrix], x, y)

    gathered = np.take(x, tokens, axis=0)
    gate, up = (np.empty((tokens.size, WIDTH), np.float32) for _ in range(2))
    y = np.empty((tokens.size, INPUTS), np.float32)
    multiply(0, INPUTS, WIDTH, gathered, gate)
    multiply(1, INPUTS, WIDTH, gathered, up)
    activate(gate, up, kind, 4.0, 25.0, 0, WIDTH)
    multiply(2, WIDTH, INPUTS, gate, y)
    return y


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("name", EXPERT_FORMATS)
def test_an_expert_has_the_bits_of_its_parts(name: str, count: int, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(count)
    expert = random_expert(rng, name, INPUTS, WIDTH, BLOCK)
    rows = [(12, np.sort(rng.choice(12, count, replace=False)))]
    if count == 1:
        rows.append((1, np.zeros(1, np.int64)))
    for kind in (SILU, SITU, SITU_UNCAPPED):
        for height, tokens in rows:
            x = normal(rng, height, INPUTS, scale=0.1)
            arguments = expert_arguments(rng, expert, BLOCK, WIDTH, x, tokens, kind)
            *_, y, _, _, _, found = arguments
            compiled[f"{name}.expert"](*arguments)
            assert y.tobytes() == one_by_one(compiled, name, expert, x, tokens, kind).tobytes()
            assert found[0] == -1


@pytest.mark.parametrize("matrix", [0, 1, 2])
@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("name", CHECKED)
def test_a_bad_scale_is_named_and_nothing_computed(
    name: str, kernels: str, matrix: int, compiled: dict[str, Kernel]
) -> None:
    kernel = (compiled if kernels == "numba" else TWINS)[f"{name}.expert"]
    rng = np.random.default_rng(matrix)
    expert = random_expert(rng, name, INPUTS, WIDTH, BLOCK)
    rows = INPUTS if matrix == 2 else WIDTH
    count, size = (INPUTS * WIDTH // 32, 1) if name == "MXFP4" else (rows, 2)
    bad = np.array([255], np.uint8) if name == "MXFP4" else f16_bytes(np.array([-np.inf]))
    for position in (0, count // 2, count - 1):
        begin = expert.places[3 + matrix] + size * position
        kept = expert.data[begin : begin + size].copy()
        expert.data[begin : begin + size] = bad
        # Of two matrices the first is named, whatever the order of the places in the data.
        later = expert.places[5]
        kept_later = expert.data[later : later + size].copy()
        if matrix < 2:
            expert.data[later : later + size] = bad
        x = normal(rng, 12, INPUTS)
        arguments = expert_arguments(rng, expert, BLOCK, WIDTH, x, np.array([2, 5]), SILU)
        before = [a.copy() for a in arguments if isinstance(a, np.ndarray)]
        kernel(*arguments)
        after = [a for a in arguments if isinstance(a, np.ndarray)]
        assert after[-1].tolist() == [matrix, position]
        assert all(a.tobytes() == b.tobytes() for a, b in zip(after[:-1], before[:-1], strict=True))
        expert.data[later : later + size] = kept_later
        expert.data[begin : begin + size] = kept


@pytest.mark.parametrize("position", [-1, 1])
@pytest.mark.parametrize("name", CHECKED)
def test_bytes_beside_the_scales_are_not_taken_for_them(name: str, position: int, compiled: dict[str, Kernel]) -> None:
    """In a record of which no byte but the scales is a good one."""
    rng = np.random.default_rng(9)
    expert = random_expert(rng, name, INPUTS, WIDTH, BLOCK)
    size = 1 if name == "MXFP4" else 2
    for matrix, rows in enumerate((WIDTH, WIDTH, INPUTS)):
        begin = expert.places[3 + matrix]
        count = INPUTS * WIDTH // 32 if name == "MXFP4" else rows
        beside = begin - size if position < 0 else begin + size * count
        expert.data[beside : beside + size] = 255
    arguments = expert_arguments(rng, expert, BLOCK, WIDTH, normal(rng, 3, INPUTS), np.array([1]), SILU)
    for kernels in (compiled, TWINS):
        kernels[f"{name}.expert"](*arguments)
        assert arguments[-1][0] == -1

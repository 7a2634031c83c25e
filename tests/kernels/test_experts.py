"""Experts' MLPs in one call: the bits of their products and activation one by one, however many threads share them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from waste.kernels import load_kernels
from waste.kernels.choices import SILU, SITU, SITU_UNCAPPED
from waste.kernels.kernel_set import Kernel

from .cases import (
    EXPERT_FORMATS,
    VECTOR_FORMATS,
    Arguments,
    Expert,
    expert_arguments,
    f16_bytes,
    normal,
    random_expert,
)

INPUTS, WIDTH, BLOCK = 96, 160, 64
TWINS = load_kernels("numpy").by_name()
CHECKED = ("MXFP4", *VECTOR_FORMATS)


def one_by_one(
    kernels: dict[str, Kernel], format_name: str, expert: Expert, x: np.ndarray, tokens: list[int], kind: int
) -> np.ndarray:
    """What the separate kernels answer."""
    product, activate = kernels[f"{format_name}.product"], kernels["activate"]
    inputs, width = x.shape[1], WIDTH

    def multiply(matrix: int, columns: int, rows: int, x: np.ndarray, y: np.ndarray) -> None:
        place = (expert.data, int(expert.places[matrix]), int(expert.places[3 + matrix]), columns, 0, rows)
        if expert.books is None:
            product(*place, x, y, 0)
        else:
            product(*place, BLOCK, expert.books[matrix], x, y)

    gathered = np.take(x, tokens, axis=0)
    gate, up = (np.empty((len(tokens), width), np.float32) for _ in range(2))
    y = np.empty((len(tokens), inputs), np.float32)
    multiply(0, inputs, width, gathered, gate)
    multiply(1, inputs, width, gathered, up)
    activate(gate, up, kind, 4.0, 25.0, 0, width)
    multiply(2, width, inputs, gate, y)
    return y


def random_experts(rng: np.random.Generator, name: str, inputs: int, count: int) -> list[Expert]:
    """Of one layer, which share codebooks."""
    experts = [random_expert(rng, name, inputs, WIDTH, BLOCK) for _ in range(count)]
    return [replace(expert, books=experts[0].books) for expert in experts]


def run(kernel: Kernel, arguments: Arguments, threads: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Call it on so many threads; returns the answers and what each found."""
    *most, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found = arguments
    founds = [found.copy() for _ in range(threads)]

    def call(index: int) -> None:
        own = gathered.copy()
        kernel(*most, x, tokens, own, gate, up, answers, kind, beta, linear_beta, turns, founds[index])

    calls = [threading.Thread(target=call, args=(index,)) for index in range(threads)]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    return answers, founds


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("name", EXPERT_FORMATS)
def test_experts_have_the_bits_of_their_parts(name: str, threads: int, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(threads)
    # Inputs so many that each expert is several turns.
    inputs = 2048
    experts = random_experts(rng, name, inputs, 3)
    tokens = [[0], [2, 5, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5, 6, 7, 9]]
    for kind in (SILU, SITU, SITU_UNCAPPED):
        x = normal(rng, 12, inputs, scale=0.1)
        arguments = expert_arguments(rng, experts, BLOCK, WIDTH, x, tokens, kind)
        answers, founds = run(compiled[f"{name}.experts"], arguments, threads)
        expected = [one_by_one(compiled, name, *one, kind) for one in zip(experts, [x] * 3, tokens, strict=True)]
        assert answers[1:-1].tobytes() == np.concatenate(expected).tobytes()
        assert all(found[0] == -1 for found in founds)


@pytest.mark.parametrize("matrix", [0, 1, 2])
@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("name", CHECKED)
def test_a_bad_scale_is_named(name: str, kernels: str, matrix: int, compiled: dict[str, Kernel]) -> None:
    kernel = (compiled if kernels == "numba" else TWINS)[f"{name}.experts"]
    rng = np.random.default_rng(matrix)
    experts = random_experts(rng, name, INPUTS, 3)
    bad_one = experts[1]
    rows = INPUTS if matrix == 2 else WIDTH
    count, size = (INPUTS * WIDTH // 32, 1) if name == "MXFP4" else (rows, 2)
    bad = np.array([255], np.uint8) if name == "MXFP4" else f16_bytes(np.array([-np.inf]))
    for threads, position in ((1, 0), (2, count // 2), (3, count - 1)):
        begin = bad_one.places[3 + matrix] + size * position
        kept = bad_one.data[begin : begin + size].copy()
        bad_one.data[begin : begin + size] = bad
        # Of two matrices the first is named, whatever the order of the places in the data.
        later = bad_one.places[5]
        kept_later = bad_one.data[later : later + size].copy()
        if matrix < 2:
            bad_one.data[later : later + size] = bad
        arguments = expert_arguments(rng, experts, BLOCK, WIDTH, normal(rng, 12, INPUTS), [[2, 5], [3], [4]], SILU)
        _, founds = run(kernel, arguments, threads)
        told = [found[:3].tolist() for found in founds if found[0] >= 0]
        assert told == [[1, matrix, position]]
        bad_one.data[later : later + size] = kept_later
        bad_one.data[begin : begin + size] = kept


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
    for kernels in (compiled, TWINS):
        arguments = expert_arguments(rng, [expert], BLOCK, WIDTH, normal(rng, 3, INPUTS), [[1]], SILU)
        kernels[f"{name}.experts"](*arguments)
        assert arguments[-1][0] == -1


def test_an_error_of_one_thread_keeps_no_other_waiting() -> None:
    """Of the numpy kernels: compiled ones raise nothing."""
    rng = np.random.default_rng(5)
    experts = random_experts(rng, "F32", INPUTS, 2)
    *most, gathered, gate, up, answers, kind, beta, linear_beta, turns, found = expert_arguments(
        rng, experts, BLOCK, WIDTH, normal(rng, 12, INPUTS), [[2, 5], [3]], SILU
    )
    too_small = gathered[:0]
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(
                *(TWINS["F32.experts"], *most, too_small, gate, up, answers, kind, beta, linear_beta, turns),
                found.copy(),
            )
            for _ in range(2)
        ]
        errors = [call.exception(timeout=20) for call in calls]
    assert [type(error) for error in errors if error is not None] == [ValueError]

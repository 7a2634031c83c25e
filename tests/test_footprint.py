"""What the plan counts beside weights: never less than what is really allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.engine.harness import GOLDEN
from tests.kernels.cases import EXPERT_FORMATS, expert_arguments, random_expert
from waste.blueprint import Blueprint, draw
from waste.footprint import PIECE_BYTES, POSITION_BYTES, TILE_BYTES
from waste.io import backends
from waste.kernels import formats, load_kernels
from waste.kernels.choices import SILU, SITU
from waste.model.bundle import ModelBundle, load_bundle
from waste.model.decoder import Decoder
from waste.model.layout import lay_out
from waste.sched.plan import floor_bytes, make_plan
from waste.sched.ring import TrunkRing
from waste.settings import GIB, MIB, Settings
from waste.temporaries import ARGUMENT_COPIES, BYTES_PER_WEIGHT, DOUBLE_BYTES, LATENT_COPIES

NUMPY = load_kernels("numpy")


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    return load_bundle(GOLDEN / "tiny-kimi-linear")


def drawn(bundle: ModelBundle, **settings: Any) -> Blueprint:
    return draw(bundle, replace(Settings(ram=GIB, context=128, sessions=1, compute_threads=2), **settings))


def peak_bytes(work: Callable[[], object]) -> int:
    """Of what `work` allocates, numpy's arrays and Python's objects."""
    tracemalloc.start()
    try:
        kept = work()
        peak = tracemalloc.get_traced_memory()[1]
        del kept
        return peak
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tile_bytes", [1, 1000, 16_384])
def test_objects_of_tiles_and_pieces(bundle: ModelBundle, tile_bytes: int) -> None:
    """With every tile pinned, which takes the most: a slot and an array each."""

    class Scheduler:
        is_closed = False

    uses = list(Decoder(bundle.config, bundle.source, 4096).uses())
    counts: list[tuple[int, int]] = []

    def build() -> object:
        layout = lay_out(uses, bundle.source.tensors, tile_bytes=tile_bytes, align=4096)
        counts.append((len(layout.placements), len(layout.pieces)))
        ring = TrunkRing(cast(Any, Scheduler()), layout.placements, pinned=len(layout.placements), slots=0)
        return layout, layout.by_name, ring

    peak = peak_bytes(build)
    tiles, pieces = counts[0]
    # What does not grow with them: tensors, the ring itself.
    assert peak <= TILE_BYTES * tiles + PIECE_BYTES * pieces + 100_000


def test_small_tiles_cost_what_their_objects_do(bundle: ModelBundle) -> None:
    large, small = drawn(bundle), drawn(bundle, trunk_tile=1)
    more = len(small.layout.placements) - len(large.layout.placements)
    assert more > 1000
    assert small.plan.floor_bytes > large.plan.floor_bytes
    assert small.plan.parts["tiles"] - large.plan.parts["tiles"] >= TILE_BYTES * more


@pytest.mark.parametrize("name", [*NUMPY.formats, *NUMPY.codebook_formats])
def test_matrices_of_the_numpy_kernels(name: str) -> None:
    rows, columns, tokens = 256, 1024, 16
    x, y = np.zeros((tokens, columns), np.float32), np.zeros((tokens, rows), np.float32)
    if name in NUMPY.formats:
        form, kernels = getattr(formats, name), NUMPY.formats[name]
        scale_at = form.row_bytes(columns) * rows
        data = np.zeros(scale_at + form.scale_bytes(columns) * rows, np.uint8)
        peak = peak_bytes(lambda: kernels.product(data, 0, scale_at, columns, 0, rows, x, y, 0))
    else:
        data, books = np.zeros(rows * columns, np.uint8), np.zeros(4 * 256 * 8, np.float32)
        books = books[: 4 * 64 * 8] if name == "VQ4P" else books[: (2 if name == "VQ2R" else 3) * 256 * 8]
        product = NUMPY.codebook_formats[name].product
        peak = peak_bytes(lambda: product(data, 0, rows * columns // 2, columns, 0, rows, 0, books, x, y))
    # The views' own objects are in what is counted for the matrix product's buffers.
    assert peak <= BYTES_PER_WEIGHT[name] * rows * columns + DOUBLE_BYTES * tokens * (rows + columns) + 65_536


@pytest.mark.parametrize("name", EXPERT_FORMATS)
def test_an_expert_of_the_numpy_kernels_takes_what_one_of_its_matrices_does(name: str) -> None:
    inputs, width, tokens = 1024, 256, 16
    rng = np.random.default_rng(1)
    expert = random_expert(rng, name, inputs, width, 64)
    x = np.zeros((tokens + 4, inputs), np.float32)
    arguments = expert_arguments(rng, [expert], 64, width, x, [range(tokens)], SILU)
    peak = peak_bytes(lambda: NUMPY.by_name()[f"{name}.experts"](*arguments))
    assert peak <= BYTES_PER_WEIGHT[name] * inputs * width + DOUBLE_BYTES * tokens * (inputs + width) + 65_536


def test_row_operations_of_the_numpy_kernels() -> None:
    x, y, weight = np.zeros((32, 2048), np.float32), np.zeros((32, 2048), np.float32), np.ones(2048, np.float32)
    stream = np.zeros((9, 32, 512), np.float32)
    cache, query, out = (np.zeros(shape, np.float32) for shape in ((2048, 576), (8, 576), (8, 512)))
    works: list[tuple[int, Callable[[], object]]] = [
        (x.nbytes + y.nbytes, lambda: NUMPY.activate(x, y, SILU, 1.0, 1.0, 0, 2048)),
        (x.nbytes + y.nbytes, lambda: NUMPY.activate(x, y, SITU, 1.0, 1.0, 0, 2048)),
        (x.nbytes + y.nbytes, lambda: NUMPY.multiply_sigmoid(x, y, 0, 2048)),
        (x.nbytes + y.nbytes, lambda: NUMPY.rms_norm(x, 0, 2048, weight, 1e-5, y, 0, 32)),
        (stream.nbytes, lambda: NUMPY.mix_residuals(stream, 9, weight[:512], weight[:512], 1e-5, y[:, :512], 0, 32)),
    ]
    for size, work in works:
        assert peak_bytes(work) <= ARGUMENT_COPIES * size
    attend = peak_bytes(lambda: NUMPY.attend(cache, 2040, query, 0.1, 0, 8, out))
    assert attend <= LATENT_COPIES * cache.nbytes + MIB


def test_the_numpy_kernels_have_a_part_of_their_own_and_no_compiler(bundle: ModelBundle) -> None:
    compiled, plain = drawn(bundle), drawn(bundle, compute_kernels="numpy")
    assert compiled.plan.parts["temporaries"] == 0
    largest = max(piece.count * piece.tensor.columns for piece in plain.layout.pieces)
    assert plain.plan.parts["temporaries"] >= 8 * largest
    assert plain.plan.floor_bytes < compiled.plan.floor_bytes, "nothing is compiled for it"


@pytest.mark.parametrize("backend", ["threads", "mmap", "aiofiles", "simulated"])
def test_readers_and_their_windows(bundle: ModelBundle, backend: str) -> None:
    few, many = (drawn(bundle, io_backend=backend, io_queue_depth=depth).plan for depth in (8, 1024))
    assert many.parts["threads"] - few.parts["threads"] >= (1024 - 8) * 15_000
    if backend == "mmap":
        assert few.parts["threads"] >= 8 * MIB
        assert many.parts["threads"] < 100 * MIB, "many readers map less each"


def test_what_a_caller_holds_and_the_ids_of_a_context(bundle: ModelBundle) -> None:
    usual, reserved = drawn(bundle), drawn(bundle, reserve=5 * MIB)
    assert reserved.plan.total_bytes - usual.plan.total_bytes == 5 * MIB
    assert reserved.plan.floor_bytes - usual.plan.floor_bytes == 5 * MIB
    assert usual.plan.parts["ids"] == 128 * POSITION_BYTES


def test_a_wish_that_the_budget_cuts_is_noted(bundle: ModelBundle) -> None:
    demand = drawn(bundle, trunk_tile=4096).demand
    short, ample = floor_bytes(demand) + 4096, floor_bytes(demand) + GIB
    assert make_plan(demand, budget=short, floor=0, trunk=GIB).cut == {"trunk": GIB}
    assert make_plan(demand, budget=short, floor=0, experts=GIB).cut == {"experts": GIB}
    assert make_plan(demand, budget=short, floor=0, trunk=0, experts=1).cut == {}
    assert make_plan(demand, budget=ample, floor=0, trunk=2 * GIB, experts=2 * GIB).cut == {}, "it has all there is"


def test_an_unknown_backend_is_refused_before_anything_is_planned(bundle: ModelBundle) -> None:
    with pytest.raises(Exception, match=r"unknown io\.backend"):
        drawn(bundle, io_backend="bogus")
    assert "hanging" not in backends.names()

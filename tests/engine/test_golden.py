"""The numbers of an independent float64 program, within what float32 can keep."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from tests.engine.harness import MODELS, Golden, Recorder, all_logits, load_golden, logits_in_chunks, open_model
from waste.engine import Engine
from waste.model.bundle import model_path
from waste.model.scratch import FloatArray

pytestmark = pytest.mark.usefixtures("leaves_nothing")

LOGITS, HIDDEN, WEIGHTS = 2e-4, 4e-4, 1e-5


def assert_golden(golden: Golden, logits: FloatArray, seen: Recorder) -> None:
    assert np.abs(logits - golden.logits).max() <= LOGITS
    assert np.abs(seen.all_hidden - golden.hidden).max() <= HIDDEN
    order = np.argsort(golden.topk_ids, axis=-1)
    assert np.array_equal(seen.all_ids, np.take_along_axis(golden.topk_ids, order, axis=-1))
    assert np.abs(seen.all_weights - np.take_along_axis(golden.topk_weights, order, axis=-1)).max() <= WEIGHTS


async def greedy(engine: Engine, ids: list[int], count: int) -> list[int]:
    return [token.id async for token in engine.generate(ids, max_tokens=count)]


@pytest.mark.parametrize(("kernels", "chunk"), [("numba", None), ("numba", 1), ("numpy", None), ("numpy", 7)])
async def test_numbers(golden: Golden, chunk: int | None, kernels: str) -> None:
    async with open_model(golden.path, **{"compute.kernels": kernels}) as engine:
        seen = Recorder()
        if chunk is None:
            logits = await all_logits(engine, golden.ids, seen)
        else:
            logits = await logits_in_chunks(engine, golden.ids, chunk, seen)
        assert_golden(golden, logits, seen)


@pytest.mark.parametrize("name", MODELS)
async def test_greedy_tokens(name: str) -> None:
    golden = load_golden(name)
    async with open_model(name) as engine:
        found = await greedy(engine, golden.ids, len(golden.greedy))
    # An end id ends the engine's text; the golden text goes on.
    assert found
    assert found == golden.greedy[: len(found)]
    assert len(found) == len(golden.greedy) or found[-1] in end_ids(name)


def end_ids(name: str) -> set[int]:
    config = json.loads((load_golden(name).path / "config.json").read_text())
    end = config.get("text_config", config)["eos_token_id"]
    return set(end) if isinstance(end, list) else {end}


DEMO = model_path("demo")


async def test_demo() -> None:
    """All three prompts, and their greedy tokens side by side."""
    names = ("genesis", "bug", "pass")
    with np.load(DEMO / "golden.npz") as data:
        golden = {key: data[key] for key in data.files}
    async with open_model(DEMO) as engine:
        for name in names:
            logits = await all_logits(engine, golden[f"{name}_ids"].tolist())
            assert np.abs(logits - golden[f"{name}_logits"]).max() <= LOGITS
        found = await asyncio.gather(*(greedy(engine, golden[f"{name}_ids"].tolist(), 48) for name in names))
    assert found == [golden[f"{name}_greedy"].tolist() for name in names]


async def test_demo_reads_english() -> None:
    """The loss of some held-out text, as the float64 reference model has it."""
    documents = json.loads((DEMO / "val_ids.json").read_text())
    loss = 0.0
    async with open_model(DEMO) as engine:
        for document in documents[:3]:
            ids = document[:128]
            logits = (await all_logits(engine, ids[:-1])).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            chosen = logits[np.arange(len(logits)), ids[1:]]
            loss += float((np.log(np.exp(logits).sum(axis=1)) - chosen).sum())
    assert loss == pytest.approx(449.19545 + 422.59520 + 411.36509, abs=2e-3)

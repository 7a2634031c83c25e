"""Chunks of any length: the same bits as token by token, in logits and in what the session carries on."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.engine.harness import (
    GOLDEN,
    assert_idle,
    assert_same_bits,
    damage,
    feed,
    insides,
    logits_in_chunks,
    open_model,
)
from waste.io.source import open_source
from waste.model import expert_sweep
from waste.model.scratch import FloatArray
from waste.session import Session

TILE = 16
"""Tokens that an expert takes at a time here, so that short prompts have several of them."""
LENGTH = 2 * TILE + 5
CHUNKS = [7, TILE - 1, TILE, TILE + 1, 2 * TILE, 1000]
"""Around that, and more than there is."""

pytestmark = pytest.mark.usefixtures("leaves_nothing", "short_tiles")


@pytest.fixture
def short_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_sweep, "TILE", TILE)


def carried(session: Session) -> list[FloatArray]:
    """What the next token depends on, but for updates that a state is owed."""
    state = session.state
    return [state.latents[:, : state.length].copy(), state.past.copy()]


@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
@pytest.mark.parametrize("settings", [{}, {"experts": 1, "trunk": 0, "trunk.tile": "64KiB"}], ids=["roomy", "least"])
async def test_any_chunk_gives_the_same_bits(name: str, settings: dict[str, object]) -> None:
    rng = random.Random(name)
    async with open_model(name, context=LENGTH + 8, **settings, **{"prefill.chunk": LENGTH}) as engine:
        # Few different ids make some experts busy with more tokens than they take at a time.
        ids = [rng.randrange(engine.model.config.vocab_size) if i % 3 else 5 for i in range(LENGTH)]
        last = ids[:3]
        async with engine.session() as session:
            expected = await feed(engine, session, ids, 1)
            states = carried(session)
            going_on = await feed(engine, session, last, 1)
        for chunk in CHUNKS:
            async with engine.session() as session:
                assert_same_bits(await feed(engine, session, ids, chunk), expected)
                for found, state in zip(carried(session), states, strict=True):
                    assert np.array_equal(found, state)
                assert_same_bits(await feed(engine, session, last, 1), going_on)
        await assert_idle(engine)


async def test_a_chunk_reads_each_expert_once() -> None:
    """However few slots there are."""
    async with open_model("tiny-k3", context=LENGTH, experts=1, **{"prefill.chunk": LENGTH}) as engine:
        rng = random.Random(3)
        ids = [rng.randrange(engine.model.config.vocab_size) for _ in range(LENGTH)]
        async with engine.session() as session:
            await insides(engine).loop.step(session, ids, wanted=0)
        config, statistics = engine.model.config, insides(engine).memory.experts.statistics()
        assert config.moe is not None
        layers = sum(map(config.is_moe, range(config.num_hidden_layers)))
        assert statistics.slots < config.moe.num_experts
        assert statistics.misses <= layers * config.moe.num_experts


async def test_a_longer_chunk_fits_what_was_planned() -> None:
    async with open_model("tiny-k3", context=LENGTH, sessions=1, **{"prefill.chunk": LENGTH}) as engine:
        rows = engine.plan.parts["logits"] // (4 * engine.model.config.vocab_size)
        async with engine.session() as session:
            await insides(engine).loop.step(session, [1] * LENGTH, wanted=min(rows, LENGTH))
        peak, planned = insides(engine).memory.scratch.peak, engine.plan.parts["scratch"]
        assert planned - 4096 <= peak <= planned


async def test_a_chunk_of_many_tiles_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    length = expert_sweep.TILE + 70
    async with open_model("tiny-kimi-linear", context=length, **{"prefill.chunk": length}) as engine:
        ids = [1 + i % 7 for i in range(length)]
        async with engine.session() as session:
            expected = await feed(engine, session, ids, 64)
        async with engine.session() as session:
            assert_same_bits(await feed(engine, session, ids, length), expected)


def set_decay(folder: Path, bias: float) -> None:
    """Add to every dt_bias of a copied checkpoint: large, and states forget at once; far below 0, and never."""

    def add(values: np.memmap) -> None:
        floats = values.view(np.float32)
        floats += bias

    for name, info in open_source(folder).tensors.items():
        if name.endswith(".dt_bias"):
            assert info.dtype == "F32"
            damage(folder, name, add)


@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
@pytest.mark.parametrize("bias", [12.0, -30.0], ids=["strong", "weak"])
async def test_states_that_forget_at_once_and_never(tmp_path: Path, name: str, bias: float) -> None:
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    ids = [1 + number * 7 % 50 for number in range(LENGTH)]
    async with open_model(name, context=LENGTH) as engine:
        usual = await logits_in_chunks(engine, ids, 1)
    set_decay(folder, bias)
    async with open_model(folder, context=LENGTH, **{"prefill.chunk": LENGTH}) as engine:
        async with engine.session() as session:
            expected = await feed(engine, session, ids, 1)
            states = carried(session)
        assert np.isfinite(expected).all()
        assert not np.allclose(expected, usual, atol=1e-3)
        for chunk in (7, TILE, LENGTH):
            async with engine.session() as session:
                assert_same_bits(await feed(engine, session, ids, chunk), expected)
                for found, state in zip(carried(session), states, strict=True):
                    assert np.array_equal(found, state)


async def test_a_thousand_tokens_at_once() -> None:
    """Longer than a tile of attention, and than one of experts as they are in earnest."""
    length = 1010
    rng = random.Random(4)
    async with open_model(GOLDEN / "nano-kl.waste", context=length, **{"prefill.chunk": length}) as engine:
        ids = [rng.randrange(engine.model.config.vocab_size) for _ in range(length)]
        async with engine.session() as session:
            expected = await feed(engine, session, ids, 1)
            states = carried(session)
        for chunk in (7, 64, 1000, length):
            async with engine.session() as session:
                assert_same_bits(await feed(engine, session, ids, chunk), expected)
                for found, state in zip(carried(session), states, strict=True):
                    assert np.array_equal(found, state)

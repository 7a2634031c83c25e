"""Lookahead: it changes what is read when, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import waste
from waste.model.lookahead import Recall

from .harness import (
    STREAMING,
    assert_idle,
    assert_same_bits,
    feed,
    insides,
    load_golden,
    logits_in_chunks,
    open_model,
)

IDS = load_golden("tiny-k3").ids[:24]
DOCUMENTS = json.loads((Path(waste.__file__).parent / "demo" / "val_ids.json").read_text())


@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
@pytest.mark.parametrize("settings", [{}, {"experts": 1}, {"prefetch.width": 1}, STREAMING], ids=str)
async def test_the_same_bits_with_and_without(name: str, settings: dict[str, object]) -> None:
    async with open_model(name, **settings, **{"prefetch.policy": "none"}) as engine:
        expected = await logits_in_chunks(engine, IDS, 1)
        assert engine.stats().lookahead_recall == {}
    async with open_model(name, **settings, **{"prefetch.policy": "router"}) as engine:
        assert_same_bits(await logits_in_chunks(engine, IDS, 1), expected)
        assert_same_bits(await logits_in_chunks(engine, IDS, 5), expected)
        await assert_idle(engine)


async def test_every_layer_is_guessed_for_single_tokens_and_none_for_chunks() -> None:
    async with open_model("tiny-k3", **{"prefetch.policy": "router"}) as engine:
        config = engine.model.config
        await logits_in_chunks(engine, IDS, 8)
        assert engine.stats().lookahead_recall == {}
        await logits_in_chunks(engine, IDS, 1)
        recall = engine.stats().lookahead_recall
        assert config.moe is not None
        layers = [layer for layer in range(1, config.num_hidden_layers) if config.is_moe(layer)]
        assert list(recall) == layers
        assert all(found.tokens == len(IDS) and len(found.by_rank) == config.moe.top_k for found in recall.values())


async def test_where_the_trunk_streams_nothing_is_guessed() -> None:
    async with open_model("tiny-k3", **STREAMING, **{"prefetch.policy": "router"}) as engine:
        await logits_in_chunks(engine, IDS, 1)
        assert engine.stats().lookahead_recall == {}
        assert engine.stats().reads["lookahead"] == 0


async def test_what_is_read_ahead_is_put_to_use_or_counted_as_wasted() -> None:
    async with open_model("demo", ram="512MiB", experts="4MiB", **{"prefetch.policy": "router"}) as engine:
        await logits_in_chunks(engine, DOCUMENTS[1][:40], 1)
        stats, cache = engine.stats(), insides(engine).memory.experts.statistics()
        assert stats.lookahead_issued > stats.lookahead_used > 0
        assert cache.lookahead_bytes > cache.lookahead_used_bytes > 0
        assert stats.lookahead_wasted_bytes == cache.lookahead_bytes - cache.lookahead_used_bytes


async def test_the_demo_is_foreseen() -> None:
    """A small sample of the held-out documents; the whole of them is measured, not tested."""
    async with open_model("demo", ram="1GiB", **{"prefetch.policy": "router", "context": 512}) as engine:
        for document in DOCUMENTS[:4]:
            async with engine.session() as session:
                await feed(engine, session, document[:60])
        found = insides(engine).memory.lookahead
        assert found is not None
        layers: list[Recall] = list(found.recall().values())
        right = sum(sum(layer.hits) for layer in layers)
        assert right / sum(layer.tokens * len(layer.hits) for layer in layers) > 0.7
        # The likelier a guess is said to be, the more often it is right.
        first, last = (sum(layer.hits[rank] for layer in layers) for rank in (0, -1))
        assert first > 1.3 * last

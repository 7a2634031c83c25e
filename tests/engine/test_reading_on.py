"""What is read for a walk that nobody has asked for: nothing after the last, the first tiles before the next."""

from __future__ import annotations

import pytest

import waste
from tests.engine.harness import GOLDEN, insides, settle

pytestmark = pytest.mark.usefixtures("leaves_nothing")

STREAMED: dict[str, object] = {"trunk": 0, "trunk.tile": "64KiB", "context": 128, "experts": "auto"}


@pytest.mark.parametrize("tokens", [1, 2, 5])
async def test_a_generation_reads_the_trunk_once_a_token(tokens: int) -> None:
    async with waste.open(GOLDEN / "tiny-k3", ram="1GiB", **STREAMED) as engine:
        placements = insides(engine).memory.layout.placements
        walk = sum(read.length for tile in placements for read in tile.reads)
        assert len([token async for token in engine.generate([3, 5, 7], max_tokens=tokens)]) == tokens
        await settle(engine)
        assert engine.stats().bytes_read["trunk"] == tokens * walk


async def test_between_tokens_the_ring_fills_for_the_next() -> None:
    async with waste.open(GOLDEN / "tiny-k3", ram="1GiB", **STREAMED) as engine:
        generation = engine.generate([3, 5, 7])
        await anext(generation)
        await settle(engine)
        ring = insides(engine).memory.ring.statistics()
        placements = insides(engine).memory.layout.placements
        assert ring.read == len(placements) + ring.slots
        await generation.aclose()


async def test_a_chunk_without_logits_leaves_the_head_where_it_is() -> None:
    async with waste.open(GOLDEN / "tiny-k3", ram="1GiB", **STREAMED) as engine, engine.session() as session:
        loop, layout = insides(engine).loop, insides(engine).memory.layout
        await loop.step(session, [3, 5], wanted=0, is_last=True)
        await settle(engine)
        whole = sum(read.length for tile in layout.placements for read in tile.reads)
        head = layout.by_name["language_model.lm_head.weight"]
        last_tile = layout.placements[head[-1].tile]
        assert engine.stats().bytes_read["trunk"] <= whole - sum(read.length for read in last_tile.reads)
        assert engine.stats().steps == 1

"""Rule 8: a step that failed never happened, and the error says where: file, layer, expert."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import (
    STREAMING,
    Script,
    assert_idle,
    assert_same_bits,
    damage,
    feed,
    insides,
    load_golden,
    logits_in_chunks,
    open_model,
    scripted,
    settle,
)
from waste.engine import Engine
from waste.errors import DamagedError, ModelError, ReadError
from waste.io.backends.base import ReadOp
from waste.model import kda
from waste.model.experts import expert_key
from waste.model.scratch import IntArray
from waste.model.step import Tap

pytestmark = pytest.mark.usefixtures("leaves_nothing")

IDS = load_golden("tiny-k3").ids


def failing(op: ReadOp) -> None:
    raise OSError(5, "Input/output error")


def failing_at(k: int) -> Callable[[int, ReadOp], None]:
    return lambda number, op: failing(op) if number == k else None


def trunk_ops(engine: Engine) -> set[tuple[int, int]]:
    """(file, offset) of every read of the trunk."""
    return {(read.file, read.offset) for tile in insides(engine).memory.layout.placements for read in tile.reads}


def expert_ops(engine: Engine, layer: int, expert: int) -> set[tuple[int, int]]:
    placement = insides(engine).memory.experts._place(expert_key(layer, expert))
    return {(read.file, read.offset) for read in placement.reads}


class Routing(Tap):
    """Which experts each row of each layer chose."""

    def __init__(self) -> None:
        self.chosen: dict[int, IntArray] = {}

    def routing(self, layer: int, ids: IntArray, weights: object) -> None:
        self.chosen[layer] = ids.copy()


async def route(engine: Engine, ids: list[int]) -> Routing:
    seen = Routing()
    await logits_in_chunks(engine, ids, 64, seen)
    return seen


class TestReadErrors:
    async def test_trunk(self) -> None:
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            await settle(engine)
            bad = trunk_ops(engine)
            script.before = lambda number, op: failing(op) if (op.file, op.offset) in bad else None
            with pytest.raises(ReadError, match=r"trunk tile \d+, from language_model\..*safetensors.*Input/output"):
                await feed(engine, session, IDS[:4])
            assert session.length == 0
            script.before = lambda number, op: None
            assert_same_bits(await feed(engine, session, IDS, 5), expected)
            await assert_idle(engine, sessions=1)

    async def test_expert(self) -> None:
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            expert = int((await route(engine, IDS[:4])).chosen[3][2, 0])
            # Two slots: every expert is read again each time.
            bad = expert_ops(engine, 3, expert)
            script.before = lambda number, op: failing(op) if (op.file, op.offset) in bad else None
            with pytest.raises(ReadError, match=rf"layer 3, expert {expert}: .*safetensors.*Input/output") as caught:
                await feed(engine, session, IDS[:4], 4)
            assert caught.value.key == expert_key(3, expert)
            assert session.length == 0
            script.before = lambda number, op: None
            assert_same_bits(await feed(engine, session, IDS, 5), expected)
            await assert_idle(engine, sessions=1)

    async def test_embedding(self) -> None:
        script = Script()
        async with open_model("tiny-k3", **scripted(script)) as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, [3, 200, 7, 9], 64)
            await feed(engine, session, [3], 1)
            place = insides(engine).memory.embeddings._place(200).reads[0]
            await crowd_out(engine)
            script.before = lambda number, op: failing(op) if op.offset == place.offset else None
            with pytest.raises(ReadError, match=r"embedding of token 200: .*safetensors"):
                await feed(engine, session, [200], 1)
            assert session.length == 1
            script.before = lambda number, op: None
            assert_same_bits(await feed(engine, session, [200, 7, 9], 2), expected[1:])
            await assert_idle(engine, sessions=1)

    @pytest.mark.parametrize("chunk", [1, 6], ids=["decode", "prompt"])
    async def test_exact_after_every_read_failed_once(self, chunk: int) -> None:
        script = Script()
        settings = {**STREAMING, "trunk.tile": "200KiB", **scripted(script)}
        async with open_model("tiny-k3", **settings) as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            await feed(engine, session, IDS[:9], 9)
            failed = k = 0
            while True:
                await settle(engine)
                script.restart()
                script.before = failing_at(k)
                try:
                    found = await feed(engine, session, IDS[9 : 9 + chunk], chunk)
                except ReadError:
                    failed += 1
                    assert session.length == 9
                else:
                    break
                k += 3
            script.before = lambda number, op: None
            # A read ahead for the next walk may be the one that failed; that one would hear of it.
            await settle(engine)
            assert failed > 8
            assert_same_bits(found, expected[9 : 9 + chunk])
            assert_same_bits(await feed(engine, session, IDS[9 + chunk :], 4), expected[9 + chunk :])
            await assert_idle(engine, sessions=1)

    async def test_truncated_after_opening(self, tmp_path: Path) -> None:
        folder = copied(tmp_path)
        async with open_model(folder, **STREAMING, **{"io.direct": "off"}) as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS[:6], 64)
            await settle(engine)
            shard = folder / "model-00002-of-00003.safetensors"
            whole = shard.read_bytes()
            os.truncate(shard, 4096)
            with pytest.raises(ReadError, match=r"00002-of-00003\.safetensors.*cut short"):
                await feed(engine, session, IDS[:6], 6)
            shard.write_bytes(whole)
            assert_same_bits(await feed(engine, session, IDS[:6], 6), expected)
            await assert_idle(engine, sessions=1)

    async def test_generation_goes_on_after_one(self) -> None:
        """The error reaches the consumer; the token that was to be fed back still waits to be."""
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine, engine.session() as session:
            whole = [token.id async for token in engine.generate(IDS[:5], max_tokens=8)]
            found = []
            with pytest.raises(ReadError):  # noqa: PT012
                async for token in engine.generate(IDS[:5], session=session):
                    found.append(token.id)
                    if len(found) == 3:
                        script.before = lambda number, op: failing(op)
            script.before = lambda number, op: None
            found += [token.id async for token in engine.generate([], session=session, max_tokens=5)]
            assert found == whole


async def crowd_out(engine: Engine) -> None:
    """Fill the embedding cache with other rows."""
    cache = insides(engine).memory.embeddings
    with cache.lease(list(range(100, 100 + cache.slots))) as lease:
        while lease.pending:
            for key, _, _ in await lease.wait():
                lease.release(key)


class TestCompany:
    async def test_only_those_who_need_it_fail(self) -> None:
        """A broken expert ends the session whose token chose it; the other in the batch gets its exact answer."""
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine:
            first, second = await route(engine, [IDS[0]]), await route(engine, [IDS[3]])
            expected = await logits_in_chunks(engine, [IDS[3]], 64)
            again = await logits_in_chunks(engine, [IDS[0]], 64)
            layer, expert = next(
                (layer, int(expert))
                for layer in first.chosen
                for expert in first.chosen[layer][0]
                if expert not in second.chosen[layer][0]
            )
            bad = expert_ops(engine, layer, expert)
            script.before = lambda number, op: failing(op) if (op.file, op.offset) in bad else None
            victim, other = engine.session(), engine.session()
            results = await asyncio.gather(
                feed(engine, victim, [IDS[0]]), feed(engine, other, [IDS[3]]), return_exceptions=True
            )
            assert isinstance(results[0], ReadError)
            assert f"layer {layer}, expert {expert}" in str(results[0])
            assert not isinstance(results[1], BaseException)
            assert_same_bits(results[1], expected)
            script.before = lambda number, op: None
            assert_same_bits(await feed(engine, victim, [IDS[0]]), again)
            victim.close()
            other.close()
            await assert_idle(engine)

    async def test_what_all_need_fails_for_all(self) -> None:
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine:
            expected = await logits_in_chunks(engine, IDS[:5], 64)
            await settle(engine)
            sessions = [engine.session() for _ in range(3)]
            script.before = lambda number, op: failing(op)
            results = await asyncio.gather(*(feed(engine, s, IDS[:5], 5) for s in sessions), return_exceptions=True)
            assert all(isinstance(error, ReadError) for error in results)
            assert len({id(error) for error in results}) == 3
            script.before = lambda number, op: None
            for session in sessions:
                assert_same_bits(await feed(engine, session, IDS[:5], 5), expected)
                session.close()
            await assert_idle(engine)


def copied(tmp_path: Path, name: str = "tiny-k3") -> Path:
    folder = tmp_path / name
    shutil.copytree(load_golden(name).path, folder)
    return folder


class TestDamage:
    @pytest.mark.parametrize("matrix", ["w1", "w2", "w3"])
    async def test_scale_that_is_not_a_number(self, tmp_path: Path, matrix: str) -> None:
        folder = copied(tmp_path)
        async with open_model(folder) as engine:
            expert = int((await route(engine, IDS[:4])).chosen[2][1, 1])
            healthy = await logits_in_chunks(engine, IDS[:4], 64)
        name = f"language_model.model.layers.2.block_sparse_moe.experts.{expert}.{matrix}.weight_scale"

        def spoil(values: np.memmap) -> None:
            spoil.was = int(values[-3])  # type: ignore[attr-defined]
            values[-3] = 255

        def mend(values: np.memmap) -> None:
            values[-3] = spoil.was  # type: ignore[attr-defined]

        damage(folder, name, spoil)
        settings = STREAMING | {"io.direct": "off"}
        async with open_model(folder, **settings) as engine, engine.session() as session:
            for chunk in (4, 4):
                with pytest.raises(DamagedError, match=rf"layer 2, expert {expert}: scale \d+ of {matrix} is 255"):
                    await feed(engine, session, IDS[:4], chunk)
                assert session.length == 0
            damage(folder, name, mend)
            await settle(engine)
            # Two slots, so the damaged record is not there any more.
            assert_same_bits(await feed(engine, session, IDS[:4], 4), healthy)
            await assert_idle(engine, sessions=1)

    async def test_a_log_tail(self, tmp_path: Path) -> None:
        folder = copied(tmp_path)
        damage(folder, "language_model.model.layers.1.self_attn.A_log", lambda values: values.__setitem__(-2, 63))
        async with open_model(folder) as engine, engine.session() as session:
            with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.A_log holds values past its 5 heads"):
                await feed(engine, session, IDS[:2], 2)
            assert session.length == 0
            await assert_idle(engine, sessions=1)

    async def test_infinite_logits(self, tmp_path: Path) -> None:
        """Numbers that are no numbers end the generation with an error, not with a token."""
        folder = copied(tmp_path)

        def spoil(values: np.memmap) -> None:
            values[:2] = np.frombuffer(np.uint16(0x7FC0).tobytes(), np.uint8)

        damage(folder, "language_model.lm_head.weight", spoil)
        async with open_model(folder) as engine:
            with pytest.raises(ModelError, match="logit of token 0 is nan"):
                await anext(engine.generate(IDS[:3]))
            await assert_idle(engine)


@pytest.mark.parametrize("failing", [0, 1, 5])
async def test_a_job_that_fails_half_way_leaves_the_session_as_it_was(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Some heads have brought in what they were owed by then, others have not."""
    keep, calls = kda._keep_owed, 0

    def fail_once(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise MemoryError
        keep(*arguments)

    async with open_model("tiny-k3") as engine:
        expected = await logits_in_chunks(engine, IDS[:8], 1)
        async with engine.session() as session:
            before = await feed(engine, session, IDS[:4], 1)
            monkeypatch.setattr(kda, "_keep_owed", fail_once)
            with pytest.raises(MemoryError):
                await feed(engine, session, IDS[4:5], 1)
            assert session.length == 4
            after = await feed(engine, session, IDS[4:8], 1)
        assert_same_bits(np.concatenate([before, after]), expected)
        await assert_idle(engine)

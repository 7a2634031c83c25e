"""Rule 9: whatever ends early, nothing is left of it, and everybody else goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import waste
from tests.engine.harness import (
    IDS,
    PROMPT,
    STREAMING,
    Golden,
    Script,
    all_logits,
    assert_clean,
    assert_idle,
    assert_same_bits,
    collect,
    feed,
    insides,
    load_golden,
    logits_in_chunks,
    open_model,
    scripted,
    still_right,
    until,
)
from waste.engine import Engine
from waste.errors import BudgetError, ClosedError, InputError, ModelError
from waste.io import arena

pytestmark = pytest.mark.usefixtures("leaves_nothing")


class TestConsumers:
    """Of `generate`, each leaving in another way."""

    async def test_break(self) -> None:
        async with open_model("tiny-k3") as engine:
            async for _ in engine.generate(PROMPT):
                break
            # Nothing was awaited since: the session is free for all that.
            assert engine.stats().sessions_open == 0
            await still_right(engine)

    async def test_break_leaves_the_session_to_the_next_call(self) -> None:
        async with open_model("tiny-k3") as engine, engine.session() as session:
            for _ in range(3):
                async for _ in engine.generate(PROMPT, session=session):
                    break
            assert list(session.ids).count(PROMPT[0]) >= 3
            assert session.length == len(session.ids)

    async def test_all_sessions_can_be_broken_out_of(self) -> None:
        async with open_model("tiny-k3", sessions=1) as engine:
            for _ in range(4):
                async for _ in engine.generate(PROMPT):
                    break

    async def test_aclose(self) -> None:
        async with open_model("tiny-k3") as engine:
            tokens = engine.generate(PROMPT)
            await anext(tokens)
            await tokens.aclose()
            await tokens.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(tokens)
            await still_right(engine)

    async def test_never_begun(self) -> None:
        async with open_model("tiny-k3", sessions=1) as engine:
            tokens = engine.generate(PROMPT)
            assert engine.stats().sessions_open == 1
            del tokens
            assert engine.stats().sessions_open == 0
            await engine.generate(PROMPT).aclose()
            await still_right(engine)

    async def test_abandoned_in_a_cycle_and_collected_elsewhere(self) -> None:
        async with open_model("tiny-k3") as engine:
            tokens: Any = engine.generate(PROMPT)
            await anext(tokens)
            tokens.itself = tokens
            del tokens
            collector = threading.Thread(target=gc.collect)
            collector.start()
            collector.join()
            assert engine.stats().sessions_open == 0
            await still_right(engine)

    async def test_abandoned_logits(self) -> None:
        async with open_model("tiny-k3", **{"prefill.chunk": 4}) as engine:
            async for _ in engine.logits(IDS):
                break
            assert engine.stats().sessions_open == 0
            await still_right(engine)

    async def test_only_one_may_wait(self) -> None:
        async with open_model("tiny-k3") as engine:
            tokens = engine.generate(PROMPT, max_tokens=2)
            first = asyncio.ensure_future(anext(tokens))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="waits"):
                await anext(tokens)
            with pytest.raises(RuntimeError, match="waits"):
                await tokens.aclose()
            assert (await first).finish_reason is None
            assert [token.finish_reason async for token in tokens] == ["length"]
            await still_right(engine)

    async def test_body_error_arrives_as_itself(self) -> None:
        class MineError(Exception):
            pass

        with pytest.raises(MineError):  # noqa: PT012
            async with open_model("tiny-k3") as engine:
                async for _ in engine.generate(PROMPT):
                    raise MineError
        assert_clean()

    async def test_cancelled_body(self) -> None:
        async def body() -> None:
            async with open_model("tiny-k3") as engine:
                async for _ in engine.generate(PROMPT, max_tokens=2):
                    pass
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_clean()


class TestStop:
    async def test_from_another_thread(self) -> None:
        async with open_model("tiny-k3", context=2048) as engine, engine.session() as session:
            found = []
            async for token in engine.generate(PROMPT, session=session):
                found.append(token)
                if len(found) == 3:
                    stopper = threading.Thread(target=engine.stop, args=(session,))
                    stopper.start()
            stopper.join()
            assert 3 <= len(found) < 20
            assert found[-1].finish_reason is None
            # The stop is used up.
            assert len(await collect(engine, session, 3)) == 3
            await assert_idle(engine, sessions=1)

    async def test_during_a_step(self) -> None:
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine, engine.session() as session:
            await collect(engine, session, 2)
            script.restart()
            script.after = lambda number, op: engine.stop(session) if number == 20 else None
            assert await collect(engine, session, 5) == []
            script.after = lambda number, op: None
            assert len(await collect(engine, session, 2)) == 2

    async def test_between_tokens(self) -> None:
        async with open_model("tiny-k3") as engine, engine.session() as session:
            found = []
            async for token in engine.generate(PROMPT, session=session):
                found.append(token)
                if len(found) == 2:
                    engine.stop(session)
                    await asyncio.sleep(0)
            assert len(found) == 2
            assert session.pending == [found[-1].id]
            assert len(await collect(engine, session, 2)) == 2

    async def test_of_an_idle_session_is_forgotten(self) -> None:
        async with open_model("tiny-k3") as engine, engine.session() as session:
            engine.stop(session)
            await asyncio.sleep(0)
            assert len(await collect(engine, session, 2)) == 2


class TestEngine:
    async def test_twice(self) -> None:
        engine = open_model("tiny-k3")
        async with engine:
            with pytest.raises(ClosedError, match="once"):
                await engine.__aenter__()
            await still_right(engine)
        with pytest.raises(ClosedError, match="once"):
            async with engine:
                pass

    async def test_use_outside(self) -> None:
        engine = open_model("tiny-k3")
        for use in uses(engine):
            with pytest.raises(ClosedError):
                use()
        async with engine:
            session = engine.session()
        for use in uses(engine):
            with pytest.raises(ClosedError):
                use()
        assert session.is_closed
        with pytest.raises(ClosedError):
            session.length  # noqa: B018
        assert engine.stats().sessions_open == 0
        assert engine.plan.total_bytes > 0

    async def test_closed_while_generating(self) -> None:
        async def consume(engine: Engine) -> None:
            async for _ in engine.generate(PROMPT):
                pass

        async with open_model("tiny-k3", context=2048) as engine:
            consumers = [asyncio.create_task(consume(engine)) for _ in range(3)]
            await until(lambda: engine.stats().steps >= 5)
        ended = await asyncio.gather(*consumers, return_exceptions=True)
        assert all(isinstance(error, ClosedError) for error in ended), ended

    async def test_closed_between_tokens(self) -> None:
        async with open_model("tiny-k3") as engine:
            tokens = engine.generate(PROMPT)
            await anext(tokens)
        with pytest.raises(ClosedError):
            await anext(tokens)

    async def test_two_at_once(self, golden: Golden) -> None:
        async with open_model("tiny-k3") as one, open_model(golden.path) as other:
            pair = await asyncio.gather(all_logits(one, IDS), all_logits(other, golden.ids))
            alone = (await all_logits(one, IDS), await all_logits(other, golden.ids))
        for found, expected in zip(pair, alone, strict=True):
            assert_same_bits(found, expected)

    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({"io.backend": "tape"}, InputError),
            ({"io.direct": "maybe"}, InputError),
            ({"cache.policy": "guess"}, InputError),
            ({"compute.kernels": "abacus"}, InputError),
            ({"ram": "1MiB"}, BudgetError),
        ],
    )
    async def test_opening_that_fails(self, settings: dict[str, Any], error: type[Exception]) -> None:
        engine = waste.open(load_golden("tiny-k3").path, **{"ram": "1GiB", **settings})
        with pytest.raises(error):
            async with engine:
                pytest.fail("it opened")
        assert_clean()

    async def test_missing_shard(self, tmp_path: Path) -> None:
        for file in load_golden("tiny-k3").path.iterdir():
            if "00002" not in file.name:
                (tmp_path / file.name).symlink_to(file)
        with pytest.raises(ModelError, match="00002"):
            async with open_model(tmp_path):
                pytest.fail("it opened")
        assert_clean()

    async def test_cancelled_opening(self) -> None:
        for delay in (0.0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03):
            engine = open_model("tiny-k3")
            task = asyncio.create_task(engine.__aenter__())
            await asyncio.sleep(delay)
            if not task.done():
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await engine.__aexit__(None, None, None)
            assert_clean()

    async def test_memory_is_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also while somebody keeps the engine and its sessions for their numbers."""
        mappings: list[weakref.ref[Any]] = []
        plain = arena._map

        def noting(size: int) -> Any:
            mapping = plain(size)
            mappings.append(weakref.ref(mapping))
            return mapping

        def alive() -> int:
            return sum((mapping := ref()) is not None and not mapping.closed for ref in mappings)

        monkeypatch.setattr(arena, "_map", noting)
        async with open_model("tiny-k3", sessions=2) as engine:
            empty = alive()
            kept = []
            for _ in range(3):
                # A committed chunk trades memory with the pool of spares.
                async with engine.session() as session:
                    await feed(engine, session, IDS, 16)
                kept.append(session)
                assert alive() == empty
        assert mappings
        assert alive() == 0
        assert engine.stats().tokens == 3 * len(IDS)


def uses(engine: Engine) -> list[Callable[[], object]]:
    return [engine.session, lambda: engine.generate(PROMPT), lambda: engine.logits(PROMPT), lambda: engine.stop(NONE)]


NONE: Any = None


class TestSessions:
    async def test_limit(self) -> None:
        async with open_model("tiny-k3", sessions=2) as engine:
            first, second = engine.session(), engine.session()
            with pytest.raises(InputError, match="2 sessions are open"):
                engine.session()
            with pytest.raises(InputError, match="2 sessions are open"):
                engine.generate(PROMPT)
            first.close()
            first.close()
            assert engine.stats().sessions_open == 1
            second.close()
            await still_right(engine)

    async def test_of_another_engine(self) -> None:
        async with open_model("tiny-k3") as one, open_model("tiny-groups") as other:
            session = other.session()
            with pytest.raises(InputError, match="another engine"):
                one.generate(PROMPT, session=session)
            session.close()

    async def test_used_twice_at_once(self) -> None:
        async with open_model("tiny-k3") as engine, engine.session() as session:
            tokens = engine.generate(PROMPT, session=session, max_tokens=2)
            await anext(tokens)
            with pytest.raises(InputError, match="generating already"):
                engine.generate(PROMPT, session=session)
            assert [token.finish_reason async for token in tokens] == ["length"]
            assert len(await collect(engine, session, 2)) == 2

    async def test_closed(self) -> None:
        async with open_model("tiny-k3") as engine:
            session = engine.session()
            tokens = engine.generate(PROMPT, session=session)
            await anext(tokens)
            session.close()
            with pytest.raises(ClosedError, match="session was closed"):
                await anext(tokens)
            with pytest.raises(ClosedError, match="session was closed"):
                engine.generate(PROMPT, session=session)
            await still_right(engine)

    @pytest.mark.parametrize("company", [False, True])
    async def test_closed_during_its_step(self, company: bool) -> None:
        """Its step ends at once with ClosedError; the other in the batch never notices."""
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine:
            expected = await logits_in_chunks(engine, IDS[:8], 4)
            session, other = engine.session(), engine.session()
            loop = asyncio.get_running_loop()
            script.restart()

            def close_in_the_middle(number: int, op: object) -> None:
                if number == 30:
                    loop.call_soon_threadsafe(session.close)

            script.after = close_in_the_middle
            doomed = asyncio.create_task(feed(engine, session, IDS[:8]))
            undisturbed = asyncio.create_task(feed(engine, other, IDS[:8])) if company else None
            with pytest.raises(ClosedError, match="session was closed"):
                await doomed
            if undisturbed is not None:
                assert_same_bits(await undisturbed, expected)
            other.close()
            await still_right(engine)


async def test_our_tasks_cancelled_by_somebody_else() -> None:
    """As by one who cancels every task of the loop: who waits gets an error, not a hang."""
    async with open_model("tiny-k3", context=2048) as engine:

        async def consume() -> None:
            async for _ in engine.generate(PROMPT):
                pass

        consumer = asyncio.create_task(consume())
        await until(lambda: bool(engine.stats().steps >= 3 and insides(engine).loop._batch))
        for task in asyncio.all_tasks():
            if task.get_name().startswith("waste"):
                task.cancel()
        with pytest.raises(ClosedError):
            await consumer
        with pytest.raises(ClosedError):
            await all_logits(engine, PROMPT)

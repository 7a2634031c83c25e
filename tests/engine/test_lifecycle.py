"""Rule 9: whatever ends early, nothing is left of it, and everybody else goes on."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import waste
from tests.engine.harness import (
    STREAMING,
    Golden,
    Script,
    all_logits,
    assert_clean,
    assert_idle,
    assert_same_bits,
    feed,
    insides,
    load_golden,
    logits_in_chunks,
    open_model,
    our_threads,
    scripted,
    settle,
    until,
)
from waste.engine import Engine
from waste.errors import BudgetError, ClosedError, InputError, ModelError
from waste.io import arena, backends
from waste.io.backends.base import ReadOp
from waste.io.backends.hanging import HangingBackend
from waste.model.scratch import FloatArray

pytestmark = pytest.mark.usefixtures("leaves_nothing")

IDS = load_golden("tiny-k3").ids
PROMPT = IDS[:5]


async def still_right(engine: Engine) -> None:
    """The engine is idle, and answers as a fresh one does."""
    await assert_idle(engine)
    found = [token.id async for token in engine.generate(IDS, max_tokens=3)]
    assert found == load_golden("tiny-k3").greedy[:3]
    await assert_idle(engine)


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


async def collect(engine: Engine, session: waste.Session, count: int) -> list[int]:
    return [token.id async for token in engine.generate(PROMPT, session=session, max_tokens=count)]


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


def hanging_disk(created: list[HangingBackend]) -> dict[str, object]:
    """Settings for an engine whose disk hangs; the backend is put into `created` when it is."""

    def create(depth: int) -> HangingBackend:
        created.append(HangingBackend(depth))
        return created[-1]

    backends.register("hanging-for-test", create)
    return {"io.backend": "hanging-for-test"}


@pytest.fixture
async def hanging() -> AsyncIterator[tuple[Engine, HangingBackend]]:
    """An engine whose disk is about to hang. Everything must be clean once the hang is released."""
    created: list[HangingBackend] = []
    async with open_model("tiny-k3", **STREAMING, **hanging_disk(created)) as engine:
        created[0].release()
        await all_logits(engine, PROMPT)
        await settle(engine)
        yield engine, created[0]
        created[0].release()
        await still_right(engine)
    assert_clean()


async def until_hanging(disk: HangingBackend) -> None:
    await until(lambda: disk.reads_hanging > 0)


class TestHang:
    async def test_consumer_is_cancelled_promptly(self, hanging: tuple[Engine, HangingBackend]) -> None:
        engine, disk = hanging
        disk.hold()
        task = asyncio.create_task(all_logits(engine, IDS))
        await until_hanging(disk)
        task.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await task
            # Nobody wants the walk any more: it ends, and does not wait for the disk.
            await until(lambda: not insides(engine).loop._batch)
        assert disk.reads_hanging

    async def test_session_is_closed_promptly(self, hanging: tuple[Engine, HangingBackend]) -> None:
        engine, disk = hanging
        disk.hold()
        session, other = engine.session(), engine.session()
        tasks = [asyncio.create_task(feed(engine, used, IDS)) for used in (session, other)]
        await until_hanging(disk)
        session.close()
        async with asyncio.timeout(1):
            with pytest.raises(ClosedError, match="session was closed"):
                await tasks[0]
        # The walk goes on for the other, and has the closed one's memory until it ends.
        assert engine.stats().sessions_open == 2
        disk.release()
        assert_same_bits(await tasks[1], await logits_in_chunks(engine, IDS, 64))
        assert engine.stats().sessions_open == 1
        other.close()

    async def test_timeout(self, hanging: tuple[Engine, HangingBackend]) -> None:
        engine, disk = hanging
        async with engine.session() as session:
            tokens = engine.generate(PROMPT, session=session)
            await anext(tokens)
            disk.hold()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(tokens), 0.05)
            length = session.length
            disk.release()
            assert len(await collect(engine, session, 2)) == 2
            assert session.length > length

    async def test_engine_closes_when_released(self) -> None:
        created: list[HangingBackend] = []

        async def body() -> None:
            async with open_model("tiny-k3", **hanging_disk(created)) as engine:
                async for _ in engine.generate(PROMPT):
                    pass

        task = asyncio.create_task(body())
        await until(lambda: bool(created))
        await until_hanging(created[0])
        task.cancel()
        await asyncio.sleep(0.02)
        # The device still writes to our memory: leaving has to wait for it …
        assert not task.done()
        task.cancel()
        # … unless somebody insists.
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await task
        created[0].release()
        await until(lambda: not our_threads())
        assert_clean()


def cancelling_at(k: int, task: asyncio.Task[Any]) -> Callable[[int, ReadOp], None]:
    loop = asyncio.get_running_loop()

    def after(number: int, op: ReadOp) -> None:
        if number == k:
            loop.call_soon_threadsafe(task.cancel)

    return after


class TestCancelEverywhere:
    """A step is cancelled after its k-th read, for every k: the session is as before and its next answer exact."""

    @pytest.mark.parametrize("chunk", [1, 6], ids=["decode", "prompt"])
    async def test_exact_afterwards(self, chunk: int) -> None:
        script = Script()
        history, part = IDS[:10], IDS[10 : 10 + chunk]
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            await feed(engine, session, history, 5)
            cancelled = k = 0
            while True:
                await settle(engine)
                task = asyncio.create_task(feed(engine, session, part, chunk))
                script.restart()
                script.after = cancelling_at(k, task)
                try:
                    found = await task
                except asyncio.CancelledError:
                    cancelled += 1
                    assert session.length == len(history)
                else:
                    break
                k += 1 if k < 8 else 5
            script.after = lambda number, op: None
            assert cancelled > 10
            assert_same_bits(found, expected[10 : 10 + chunk])
            assert_same_bits(await feed(engine, session, IDS[10 + chunk :], 7), expected[10 + chunk :])
            await assert_idle(engine, sessions=1)

    @pytest.mark.parametrize("chunk", [1, 6], ids=["decode", "prompt"])
    async def test_exact_after_any_job(self, chunk: int) -> None:
        """The same, cancelled while the k-th piece of work is on the compute threads: it ends, and the step does."""
        history, part = IDS[:10], IDS[10 : 10 + chunk]
        async with open_model("tiny-k3") as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            await feed(engine, session, history[:-1], 5)
            await feed(engine, session, history[-1:])
            loop, workers = asyncio.get_running_loop(), insides(engine).workers
            submit, started = workers.submit, 0
            for k in itertools.count(0, 2 if chunk == 1 else 5):
                started = 0
                task = asyncio.create_task(feed(engine, session, part, chunk))

                def cancelling(jobs: Any, done: Any, task: asyncio.Task[Any] = task, k: int = k) -> None:
                    nonlocal started
                    submit(jobs, done)
                    if started == k:
                        loop.call_soon(task.cancel)
                    started += 1

                workers.submit = cancelling  # type: ignore[method-assign]
                try:
                    found = await task
                    break
                except asyncio.CancelledError:
                    assert session.length == len(history)
                    await settle(engine)
            workers.submit = submit  # type: ignore[method-assign]
            assert k > 60
            assert_same_bits(found, expected[10 : 10 + chunk])
            assert_same_bits(await feed(engine, session, IDS[10 + chunk :], 7), expected[10 + chunk :])
            await assert_idle(engine, sessions=1)

    async def test_company_is_undisturbed(self) -> None:
        script = Script()
        async with open_model("tiny-k3", **STREAMING, **scripted(script)) as engine:
            expected = await logits_in_chunks(engine, IDS, 64)
            victim, other = engine.session(), engine.session()
            rows: list[FloatArray] = []
            for k in range(0, 60, 9):
                steps = engine.stats().steps
                task = asyncio.create_task(feed(engine, victim, IDS[:6], 6))
                company = asyncio.create_task(feed(engine, other, [IDS[len(rows)]]))
                await asyncio.sleep(0)
                script.restart()
                script.after = cancelling_at(k, task)
                rows.append((await company)[0])
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert engine.stats().steps == steps + 1
                assert victim.length == 0
            script.after = lambda number, op: None
            assert_same_bits(np.stack(rows), expected[: len(rows)])
            assert_same_bits(await feed(engine, victim, IDS, 9), expected)
            victim.close()
            other.close()
            await still_right(engine)

    async def test_between_outcome_and_delivery(self) -> None:
        """Cancelled in the very moment in which the walk is done: still nothing has happened."""
        async with open_model("tiny-k3") as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            loop = insides(engine).loop
            deliver = loop._deliver
            for chunk in (1, 6):
                task = asyncio.create_task(feed(engine, session, IDS[:chunk], chunk))

                def cancelling(*args: Any, task: asyncio.Task[Any] = task) -> None:
                    deliver(*args)
                    task.cancel()

                loop._deliver = cancelling  # type: ignore[assignment,method-assign]
                with pytest.raises(asyncio.CancelledError):
                    await task
                loop._deliver = deliver  # type: ignore[method-assign]
                assert session.length == 0
                assert list(session.ids) == []
                await assert_idle(engine, sessions=1)
            assert_same_bits(await feed(engine, session, IDS, 6), expected)

    async def test_at_any_time(self) -> None:
        """Whole generations, cancelled after so many turns of the loop."""
        async with open_model("tiny-k3", **STREAMING, sessions=3) as engine, engine.session() as session:

            async def consume() -> None:
                async for _ in engine.generate(PROMPT, session=session):
                    pass

            for turns in range(1, 400, 23):
                task = asyncio.create_task(consume())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await assert_idle(engine, sessions=1)
            expected = await logits_in_chunks(engine, [*session.ids, *PROMPT], 64)
            found = await feed(engine, session, PROMPT, 5)
            assert_same_bits(found, expected[-len(PROMPT) :])


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

"""Rule 9 where it is hardest: a disk that hangs, and a cancellation after every single read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import (
    IDS,
    PROMPT,
    STREAMING,
    Script,
    all_logits,
    assert_clean,
    assert_idle,
    assert_same_bits,
    collect,
    feed,
    insides,
    logits_in_chunks,
    open_model,
    our_threads,
    scripted,
    settle,
    still_right,
    until,
)
from waste.engine import Engine
from waste.errors import ClosedError
from waste.io import backends
from waste.io.backends.base import ReadOp
from waste.io.backends.hanging import HangingBackend
from waste.model.scratch import FloatArray

pytestmark = pytest.mark.usefixtures("leaves_nothing")


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
        """The same, cancelled when the k-th piece of work is done on a compute thread: no further stage begins."""
        history, part = IDS[:10], IDS[10 : 10 + chunk]
        async with open_model("tiny-k3") as engine, engine.session() as session:
            expected = await logits_in_chunks(engine, IDS, 64)
            await feed(engine, session, history[:-1], 5)
            await feed(engine, session, history[-1:])
            loop, workers = asyncio.get_running_loop(), insides(engine).workers
            for k in itertools.count(0, 5):
                task = asyncio.create_task(feed(engine, session, part, chunk))
                jobs = itertools.count()

                def cancel(
                    *job: object, task: asyncio.Task[Any] = task, k: int = k, jobs: Iterator[int] = jobs
                ) -> None:
                    if next(jobs) == k:
                        loop.call_soon_threadsafe(task.cancel)

                workers.watch = cancel
                try:
                    found = await task
                    break
                except asyncio.CancelledError:
                    assert session.length == len(history)
                    await settle(engine)
            workers.watch = None
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

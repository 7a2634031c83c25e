"""What a walk hands to the compute threads, and in which order it runs there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Hashable, Sequence

import pytest

from waste.kernels.workers import Job, Stage, Workers
from waste.model.backlog import Backlog
from waste.model.compute import Compute, Started


@pytest.fixture(params=[1, 3])
async def compute(request: pytest.FixtureRequest) -> AsyncIterator[Compute]:
    workers = Workers(request.param)
    yield Compute(workers)
    await asyncio.to_thread(workers.close)


class Company:
    """Work beside a backlog: a job that waits for `gate`."""

    def __init__(self, compute: Compute, order: list[str], *, fails: bool = False) -> None:
        self.gate = threading.Event()
        self.calls: list[str] = []
        self._order, self._fails = order, fails
        self.started: Sequence[Started] = [compute.start([Stage("beside", [self._job])])]

    def _job(self, worker: int) -> None:
        self.gate.wait(20)
        self._order.append("beside")
        if self._fails:
            raise ArithmeticError("broken")

    async def all_started(self) -> None:
        self.calls.append("all_started")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        assert all(started.is_ended for started in self.started)
        self.calls.append("close")


def note(order: list[str], what: str) -> Job:
    return lambda worker: order.append(what)


async def test_everything_runs_in_the_order_it_was_added(compute: Compute) -> None:
    order: list[str] = []
    backlog = Backlog(compute)
    for part in range(4):
        backlog.add([note(order, f"{part}a")])
        with backlog.part("other part"):
            backlog.add([note(order, f"{part}b")])
            backlog.add([note(order, f"{part}c")])
        if part % 2:
            await backlog.hand_over()
    await backlog.run()
    assert order == [f"{part}{job}" for part in range(4) for job in "abc"]
    await backlog.settle()


async def test_a_mark_is_reached_while_the_work_after_it_goes_on(compute: Compute) -> None:
    order: list[str] = []
    gate = threading.Event()
    backlog = Backlog(compute)
    mark = compute.mark(lambda: order.append("told"))
    backlog.add([note(order, "before")], then=mark.put)
    backlog.add([lambda worker: gate.wait(20), note(order, "after")])
    await backlog.until(mark)
    assert order[0] == "before"
    assert "told" in order
    gate.set()
    await backlog.run()
    assert sorted(order) == ["after", "before", "told"]
    await backlog.until(mark)  # long reached
    await backlog.settle()


async def test_what_is_added_later_comes_after_the_work_beside(compute: Compute) -> None:
    order: list[str] = []
    backlog = Backlog(compute)
    backlog.add([note(order, "before")])
    await backlog.hand_over()
    company = Company(compute, order)
    backlog.beside(company)
    mark = compute.mark(lambda: None)
    backlog.add([note(order, "after")], then=mark.put)
    await backlog.hand_over()
    assert company.calls == ["all_started"]
    company.gate.set()
    await backlog.until(mark)
    assert order == ["before", "beside", "after"]
    assert company.calls == ["all_started", "close"]
    await backlog.settle()


async def test_an_error_beside_leaves_out_what_comes_after_and_is_raised(compute: Compute) -> None:
    order: list[str] = []
    backlog = Backlog(compute)
    company = Company(compute, order, fails=True)
    backlog.beside(company)
    mark = compute.mark(lambda: order.append("told"))
    backlog.add([note(order, "after")], then=mark.put)
    company.gate.set()
    with pytest.raises(ArithmeticError, match="broken"):
        await backlog.until(mark)
    await backlog.settle()
    assert order == ["beside"]
    assert company.calls[-1] == "close"


async def test_what_is_raised_at_a_mark_is_raised_where_it_is_waited_for(compute: Compute) -> None:
    def fail() -> None:
        raise ArithmeticError("no lease")

    backlog = Backlog(compute)
    mark = compute.mark(fail)
    backlog.add([lambda worker: None], then=mark.put)
    with pytest.raises(ArithmeticError, match="no lease"):
        await backlog.until(mark)
    await backlog.settle()


async def test_settling_waits_for_what_runs_and_leaves_out_the_rest(compute: Compute) -> None:
    order: list[str] = []
    backlog = Backlog(compute)
    company = Company(compute, order)
    backlog.beside(company)
    backlog.add([note(order, "after")])
    await backlog.hand_over()
    backlog.add([note(order, "never")])
    mark = compute.mark(lambda: order.append("told"))
    mark.call_off()
    asyncio.get_running_loop().call_later(0.05, company.gate.set)
    walk = asyncio.create_task(backlog.settle())
    await asyncio.sleep(0)
    walk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walk
    assert order == ["beside"]
    assert company.calls[-1] == "close"


async def test_a_routine_is_what_was_added_the_first_time(compute: Compute) -> None:
    order: list[str] = []
    routine: dict[Hashable, Sequence[Stage]] = {}
    for _ in range(3):
        backlog = Backlog(compute, routine)
        backlog.add([note(order, "own")])
        if not backlog.recall("part"):
            backlog.add([note(order, "kept one")])
            backlog.add([note(order, "kept two")])
            backlog.keep()
        backlog.add([note(order, "own again")])
        await backlog.run()
        await backlog.settle()
    assert order == ["own", "kept one", "kept two", "own again"] * 3
    assert [len(stage.jobs) for stage in routine["part"]] == [1]


async def test_without_a_routine_nothing_is_kept(compute: Compute) -> None:
    backlog = Backlog(compute)
    assert not backlog.recall("part")
    backlog.add([lambda worker: None])
    backlog.keep()
    assert not backlog.recall("part")
    await backlog.run()
    await backlog.settle()


async def test_what_joins_the_next_runs_beside_it(compute: Compute) -> None:
    order: list[str] = []
    both = threading.Barrier(2)
    backlog = Backlog(compute)
    backlog.add([note(order, "before")])
    backlog.add_beside_next(lambda worker: meet(both, compute))
    backlog.add([lambda worker: meet(both, compute)], then=lambda: order.append("both"))
    backlog.add([note(order, "after")])
    await backlog.run()
    assert order == ["before", "both", "after"]
    await backlog.settle()


def meet(both: threading.Barrier, compute: Compute) -> None:
    """Fails unless somebody else comes, where there is anybody else."""
    if compute.threads > 1:
        both.wait(20)


async def test_what_joins_the_next_runs_alone_if_nothing_is_added(compute: Compute) -> None:
    order: list[str] = []
    backlog = Backlog(compute)
    backlog.add_beside_next(note(order, "alone"))
    await backlog.run()
    backlog.add([note(order, "before")])
    backlog.add_beside_next(note(order, "alone"))
    await backlog.hand_over()
    backlog.add([])
    backlog.add_beside_next(note(order, "and"))
    backlog.add([])
    await backlog.run()
    assert order == ["alone", "before", "alone", "and"]
    backlog.add_beside_next(note(order, "never"))
    await backlog.settle()
    await backlog.run()
    assert "never" not in order


async def test_what_joins_is_not_kept(compute: Compute) -> None:
    order: list[str] = []
    routine: dict[Hashable, Sequence[Stage]] = {}
    for walk in range(3):
        backlog = Backlog(compute, routine)
        backlog.add_beside_next(note(order, f"joined {walk}"))
        if not backlog.recall("key"):
            backlog.add([note(order, "kept")])
            backlog.keep()
        await backlog.run()
        await backlog.settle()
    assert [len(stages[0].jobs) for stages in routine.values()] == [1]
    assert sorted(order) == ["joined 0", "joined 1", "joined 2", "kept", "kept", "kept"]


async def test_a_trifle_goes_with_the_job_before_and_other_work_does_not(compute: Compute) -> None:
    order: list[str] = []
    routine: dict[Hashable, Sequence[Stage]] = {}
    backlog = Backlog(compute, routine)
    backlog.recall("key")
    with backlog.part("part"):
        backlog.add([note(order, "a")])
    backlog.add([note(order, "b")])
    with backlog.part("another"):
        backlog.add([note(order, "c")])
    backlog.keep()
    await backlog.run()
    assert [stage.family for stage in routine["key"]] == ["part", "another"]
    assert order == ["a", "b", "c"]
    await backlog.settle()


async def test_more_than_one_range_is_never_asked_of_too_few_items(compute: Compute) -> None:
    for least in (0, 1, 4, 1000):
        parts = compute.split(64, 8, least=least)
        assert [parts[0][0], parts[-1][1]] == [0, 64]
        assert len(parts) <= max(1, min(compute.threads, 64 // max(1, least)))

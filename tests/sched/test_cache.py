from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.fakes import FakeDisk, is_right, piece, pieces, run, settle, started
from waste.errors import BudgetError, ClosedError, ReadError, WasteError
from waste.io.extents import Placement
from waste.sched import policies
from waste.sched.cache import ExpertCache
from waste.sched.lease import Lease
from waste.sched.priority import Priority
from waste.sched.scheduler import ReadScheduler

Handed = list[tuple[Hashable, npt.NDArray[np.uint8], Placement]]


def where(key: Hashable) -> Placement:
    """Records of 40 bytes in one read, every third in two."""
    assert isinstance(key, int)
    begin = key * 1024
    return pieces((begin, 20), (begin + 512, 20)) if key % 3 == 0 else piece(begin, 40)


async def made(*, slots: int, queue_depth: int = 4) -> tuple[FakeDisk, ReadScheduler, ExpertCache]:
    disk, scheduler = await started(queue_depth=queue_depth)
    cache = ExpertCache(scheduler, slots=slots, slot_bytes=64, policy=policies.create("lru"), place=where)
    return disk, scheduler, cache


async def ended(scheduler: ReadScheduler, cache: ExpertCache) -> None:
    cache.check_integrity()
    scheduler.check_integrity()
    cache.close()
    await scheduler.close()
    cache.check_integrity()
    counted = cache.statistics()
    assert counted.queued == counted.reading == counted.pinned == 0


async def compute(cache: ExpertCache, keys: Sequence[int], seen: list[Hashable]) -> None:
    """What a layer does: every record once, released after use."""
    with cache.lease(keys) as lease:
        while lease.pending:
            for key, buffer, placement in await lease.wait():
                await asyncio.sleep(0)
                assert is_right(buffer, placement)
                assert placement == where(key)
                seen.append(key)
                lease.release(key)


def test_a_lease_hands_out_hits_first_and_each_record_once() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=4)
        warm = asyncio.create_task(compute(cache, [5, 2], []))
        await settle()
        disk.finish_all()
        await warm
        lease = cache.lease([1, 2, 4, 5])
        assert [key for key, _, _ in await lease.wait()] == [2, 5]
        waiter = asyncio.create_task(lease.wait())
        await settle()
        disk.finish(1)
        assert [key for key, _, _ in await waiter] == [4]
        disk.finish(0)
        assert [key for key, _, _ in await lease.wait()] == [1]
        assert not lease.pending
        assert await lease.wait() == []
        lease.close()
        await ended(scheduler, cache)

    run(main)


def test_misses_of_a_lease_are_one_submission_in_file_order() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=8, queue_depth=8)
        lease = cache.lease([7, 1, 4])
        assert [[op.offset // 1024 for op in ops] for ops in disk.submissions] == [[1, 4, 7]]
        disk.finish_all()
        assert scheduler.statistics().bytes_read["experts"] == 3 * 48
        lease.close()
        await ended(scheduler, cache)

    run(main)


@given(
    leases=st.lists(st.lists(st.integers(0, 9), unique=True, max_size=8), min_size=1, max_size=4),
    slots=st.integers(1, 6),
    depth=st.integers(1, 5),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=50, deadline=None)
def test_leases_at_once_all_get_all_their_records(leases: list[list[int]], slots: int, depth: int, seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        disk, scheduler, cache = await made(slots=slots, queue_depth=depth)
        seen: list[list[Hashable]] = [[] for _ in leases]
        tasks = [asyncio.create_task(compute(cache, keys, got)) for keys, got in zip(leases, seen, strict=True)]
        for _ in range(400):
            await settle()
            cache.check_integrity()
            if all(task.done() for task in tasks):
                break
            cache.prefetch([chance.randrange(10)])
            count = len(disk.in_flight)
            disk.finish(*chance.sample(range(count), chance.randint(min(1, count), count)))
        await asyncio.gather(*tasks)
        assert [sorted(map(str, got)) for got in seen] == [sorted(map(str, keys)) for keys in leases]
        disk.finish_all()
        await ended(scheduler, cache)

    run(main)


@given(
    keys=st.lists(st.lists(st.integers(0, 9), unique=True, max_size=8), min_size=3, max_size=3),
    script=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_cancelled_failed_and_closed_leases_leave_nothing_behind(
    keys: list[list[int]], script: list[tuple[int, int]]
) -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=3)
        tasks = [asyncio.create_task(compute(cache, wanted, [])) for wanted in keys]
        for action, argument in script:
            await asyncio.sleep(0)
            if action == 0:
                tasks[argument % 3].cancel()
            elif disk.in_flight:
                position = argument % len(disk.in_flight)
                disk.finish(position, fail=[position] if action == 1 else [])
            cache.check_integrity()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, ReadError | asyncio.CancelledError) for result in results)
        disk.finish_all()
        cache.check_integrity()
        counted = cache.statistics()
        assert counted.free + counted.resident == 3
        again = asyncio.create_task(compute(cache, range(9), []))
        for _ in range(20):
            await settle()
            disk.finish_all()
        await again
        await ended(scheduler, cache)

    run(main)


def test_cancelling_a_wait_loses_no_record() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2)
        lease = cache.lease([1, 2])
        waiter = asyncio.create_task(lease.wait())
        await settle()
        with pytest.raises(RuntimeError, match="one task at a time"):
            await lease.wait()
        waiter.cancel()
        await settle()
        assert waiter.cancelled()
        waiter = asyncio.create_task(lease.wait())
        await settle()
        disk.finish(0)
        waiter.cancel()  # the record is ready, the waiter does not know yet
        await settle()
        assert waiter.cancelled()
        lease.release(next(key for key, _, _ in await lease.wait()))
        waiter = asyncio.create_task(lease.wait())
        await settle()
        waiter.cancel()
        disk.finish(0)  # the record comes for a waiter that is about to notice
        await settle()
        assert waiter.cancelled()
        assert [key for key, _, _ in await lease.wait()] == [2]
        lease.close()
        await ended(scheduler, cache)

    run(main)


def test_a_read_error_names_the_key_and_a_new_lease_reads_again() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2)
        lease = cache.lease([4, 5])
        other = cache.lease([4])
        disk.finish(0, fail=[0])
        for broken in (lease, lease, other):
            with pytest.raises(ReadError, match="no bytes at 4096") as caught:
                await broken.wait()
            assert caught.value.key == 4
        lease.close()
        other.close()
        retry = cache.lease([4])
        disk.finish_all()
        ((_, buffer, placement),) = await retry.wait()
        assert is_right(buffer, placement)
        retry.close()
        await ended(scheduler, cache)

    run(main)


def test_an_error_nobody_waits_for_is_silent() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2)
        with cache.lease([1]) as lease:
            waiter = asyncio.create_task(lease.wait())
            await settle()
            waiter.cancel()
            disk.finish(0, fail=[0])
            await settle()
        del lease, waiter
        gc.collect()
        await ended(scheduler, cache)

    run(main)


def test_waiting_for_more_while_holding_every_slot_is_an_error() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2)
        lease = cache.lease([1, 2, 4])
        disk.finish_all()
        assert len(await lease.wait()) == 2
        with pytest.raises(BudgetError, match="all 2 slots"):
            await lease.wait()
        lease.release(1)
        disk.finish_all()
        assert [key for key, _, _ in await lease.wait()] == [4]
        with pytest.raises(KeyError):
            lease.release(1)
        lease.close()
        await ended(scheduler, cache)

    run(main)


def test_a_lease_that_closes_gives_its_slots_to_who_waits() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=1)
        with cache.lease([1]) as holder:
            disk.finish_all()
            await holder.wait()
            waiter = asyncio.create_task(compute(cache, [2], []))
            await settle()
            assert not disk.in_flight
        await settle()
        disk.finish_all()
        await waiter
        await ended(scheduler, cache)

    run(main)


def test_a_closed_lease_keeps_its_slot_until_the_device_returns() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=1)
        cache.lease([1]).close()
        assert cache.statistics().reading == 1
        waiter = asyncio.create_task(compute(cache, [2], []))
        await settle()
        assert [op.offset for op in disk.in_flight.values()] == [1024]
        disk.finish(0)
        assert [op.offset for op in disk.in_flight.values()] == [2048]
        disk.finish(0)
        await waiter
        assert cache.statistics().evictions == 1
        await ended(scheduler, cache)

    run(main)


def test_lookahead_yields_to_demand_and_is_promoted_by_it() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=8, queue_depth=1)
        cache.prefetch([1, 2, 4, 5])
        lease = cache.lease([5, 7])
        cache.drop_lookahead()
        offsets = []
        while disk.in_flight:
            offsets += [op.offset // 1024 for op in disk.in_flight.values()]
            disk.finish(0)
        assert offsets == [1, 5, 7]
        reads = scheduler.statistics().reads
        assert (reads[Priority.DEMAND], reads[Priority.LOOKAHEAD]) == (2, 1)
        lease.close()
        await ended(scheduler, cache)

    run(main)


def test_who_is_told_of_news_is_told_of_records_errors_and_the_end() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=3)
        told: list[object] = []

        def look(lease: Lease) -> None:
            try:
                told.append([key for key, _, _ in lease.take()])
            except WasteError as error:
                told.append(type(error))

        leases = [cache.lease([key]) for key in (1, 2, 3)]
        for lease in leases:
            lease.on_news(partial(look, lease))
        disk.finish(0)
        disk.finish(0, fail=[0])
        assert told == [[1], ReadError]
        cache.close()
        assert told[2:] == [ClosedError] * 3
        disk.finish_all()
        await ended(scheduler, cache)

    run(main)


def test_close_wakes_waiters_and_keeps_memory_while_the_device_writes() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2, queue_depth=1)
        lease = cache.lease([1, 2, 4])
        waiters = [asyncio.create_task(lease.wait()), asyncio.create_task(compute(cache, [5], []))]
        await settle()
        cache.close()
        cache.close()
        errors = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(error) for error in errors] == [ClosedError] * 2
        for call in (lambda: cache.lease([1]), lambda: cache.prefetch([1])):
            with pytest.raises(ClosedError):
                call()
        closing = asyncio.create_task(scheduler.close())
        await settle()
        assert not closing.done()
        assert cache._arrays  # a slot of it is being written
        disk.finish(0)
        await closing
        assert not cache._arrays
        cache.check_integrity()
        with pytest.raises(ClosedError):
            await lease.wait()

    run(main)


def test_a_scheduler_closed_first_ends_leases_too() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2, queue_depth=1)
        leases = [cache.lease(keys) for keys in ([1, 2, 4], [5, 7])]
        waiters = [asyncio.create_task(lease.wait()) for lease in leases]
        await settle()
        closing = asyncio.create_task(scheduler.close())
        await settle()
        disk.finish_all()
        await closing
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(result) for result in results] == [ClosedError, ClosedError]
        cache.check_integrity()
        cache.close()
        cache.check_integrity()

    run(main)


def test_a_record_that_does_not_fit_is_refused_before_anything_happens() -> None:
    async def main() -> None:
        disk, scheduler, cache = await made(slots=2)
        small = ExpertCache(scheduler, slots=1, slot_bytes=32, policy=policies.create("lru"), place=where)
        with pytest.raises(ValueError, match="record 1 takes 48 bytes, a slot has 32"):
            small.lease([1])
        with pytest.raises(ValueError, match="twice"):
            cache.lease([1, 1])
        assert not disk.in_flight
        small.close()
        lease: Lease = cache.lease([])
        assert not lease.pending
        lease.close()
        await ended(scheduler, cache)

    run(main)

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.fakes import FakeDisk, is_right, piece, pieces, run, settle, started
from waste.errors import ClosedError, ReadError
from waste.io.extents import Placement
from waste.sched.priority import Priority
from waste.sched.ring import TrunkRing, pinned_bytes, ring_bytes
from waste.sched.scheduler import ReadScheduler


def cut(count: int) -> list[Placement]:
    """Tiles of different sizes; every third comes in two reads."""
    return [
        pieces((i * 65536, 100 + i), (i * 65536 + 8192, 60)) if i % 3 == 2 else piece(i * 65536 + i, 4090 + i)
        for i in range(count)
    ]


async def made(
    *, tiles: int, pinned: int, slots: int, queue_depth: int = 4
) -> tuple[FakeDisk, ReadScheduler, TrunkRing]:
    disk, scheduler = await started(queue_depth=queue_depth)
    return disk, scheduler, TrunkRing(scheduler, cut(tiles), pinned=pinned, slots=slots)


async def ended(disk: FakeDisk, scheduler: ReadScheduler, ring: TrunkRing) -> None:
    ring.check_integrity()
    ring.close()
    disk.finish_all()
    await scheduler.close()
    ring.check_integrity()
    counted = ring.statistics()
    assert counted.queued == counted.reading == 0
    assert not ring._arrays


async def walk(ring: TrunkRing, tiles: Sequence[Placement], *, upto: int | None = None) -> None:
    """What a step does. `upto`: the walk stops there, holding a tile."""
    ring.begin()
    for index in range(len(tiles)):
        buffer = await ring.acquire(index)
        if index == upto:
            return
        await asyncio.sleep(0)
        assert is_right(buffer, tiles[index])
        ring.release(index)


def tiles_in_flight(disk: FakeDisk) -> list[int]:
    return sorted({op.offset // 65536 for op in disk.in_flight.values()})


async def driven(disk: FakeDisk, task: asyncio.Task[None], ring: TrunkRing) -> None:
    """Return reads one at a time until the task is done."""
    for _ in range(500):
        await settle()
        ring.check_integrity()
        if task.done():
            break
        if disk.in_flight:
            disk.finish(0)
    task.result()


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("pinned", [0, 1, 4, 7])
def test_each_walk_reads_each_unpinned_tile_once_and_pinned_ones_never_again(pinned: int, slots: int) -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=7, pinned=pinned, slots=slots)
        tiles = cut(7)
        for number in range(1, 4):
            await driven(disk, asyncio.create_task(walk(ring, tiles)), ring)
            disk.finish_all()
            ahead = min(slots, 7 - pinned)
            expected = 7 + (number - 1) * (7 - pinned) + ahead if slots < 7 - pinned else 7
            assert ring.statistics().read == expected
        await ended(disk, scheduler, ring)

    run(main)


def test_reads_go_ahead_of_the_walk_as_far_as_slots_go() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=9, pinned=2, slots=3, queue_depth=20)
        ring.begin()
        assert tiles_in_flight(disk) == [0, 1, 2, 3, 4]
        disk.finish_all()
        for index in range(3):
            await ring.acquire(index)
        assert tiles_in_flight(disk) == []
        ring.release(0)
        ring.release(1)
        assert tiles_in_flight(disk) == []
        ring.release(2)
        assert tiles_in_flight(disk) == [5]
        assert ring.statistics().stalled == 0
        await ended(disk, scheduler, ring)

    run(main)


def test_one_slot_waits_for_a_release() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=4, pinned=0, slots=1)
        ring.begin()
        disk.finish_all()
        await ring.acquire(0)
        waiter = asyncio.create_task(ring.acquire(1))
        await settle()
        assert not disk.in_flight
        ring.release(0)
        assert tiles_in_flight(disk) == [1]
        disk.finish_all()
        assert is_right(await waiter, cut(4)[1])
        await ended(disk, scheduler, ring)

    run(main)


def test_tiles_may_be_acquired_ahead_of_their_turn_by_several_tasks() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=6, pinned=1, slots=1)
        tiles = cut(6)
        ring.begin()

        async def use(index: int) -> None:
            assert is_right(await ring.acquire(index), tiles[index])
            await asyncio.sleep(0)
            ring.release(index)

        both = asyncio.gather(*(use(index) for index in (3, 0, 5, 1)))
        for _ in range(30):
            await settle()
            ring.check_integrity()
            disk.finish_all()
        await both
        await ended(disk, scheduler, ring)

    run(main)


def test_a_tile_somebody_waits_for_overtakes_what_is_queued() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=6, pinned=6, slots=0, queue_depth=1)
        ring.begin()
        waiter = asyncio.create_task(ring.acquire(4))
        await settle()
        disk.finish(0)
        assert tiles_in_flight(disk) == [4]
        assert scheduler.statistics().reads[Priority.DEMAND] == 1
        disk.finish(0)
        await waiter
        await ended(disk, scheduler, ring)

    run(main)


@given(
    tiles=st.integers(1, 7),
    pinned=st.integers(0, 7),
    slots=st.integers(1, 7),
    depth=st.integers(1, 5),
    walks=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=5),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=80, deadline=None)
def test_walks_aborted_anywhere_and_failing_reads_never_give_a_wrong_tile(
    tiles: int, pinned: int, slots: int, depth: int, walks: list[tuple[int, bool]], seed: int
) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        disk, scheduler, ring = await made(tiles=tiles, pinned=min(pinned, tiles), slots=slots, queue_depth=depth)

        async def drive(task: asyncio.Task[None], *, steps: int, fail: float) -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
                ring.check_integrity()
                if task.done():
                    return
                count = len(disk.in_flight)
                some = chance.sample(range(count), chance.randint(0, count))
                disk.finish(*some, fail=[position for position in some if chance.random() < fail])

        for upto, leave in walks:
            task = asyncio.create_task(walk(ring, cut(tiles), upto=upto))
            await drive(task, steps=chance.randint(0, 12), fail=0.2)
            if not leave:
                task.cancel()
            await drive(task, steps=200, fail=0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        disk.finish_all()  # a read that failed in part may still be out
        last = asyncio.create_task(walk(ring, cut(tiles)))
        await drive(last, steps=500, fail=0)
        assert last.result() is None
        await ended(disk, scheduler, ring)

    run(main)


def test_a_cancelled_acquire_leaves_the_tile_for_the_next() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=3, pinned=1, slots=1)
        ring.begin()
        for index in (0, 1):
            waiter = asyncio.create_task(ring.acquire(index))
            await settle()
            waiter.cancel()
            await settle()
            assert waiter.cancelled()
            waiter = asyncio.create_task(ring.acquire(index))
            await settle()
            disk.finish(0)
            waiter.cancel()  # the tile was handed over, the waiter does not know yet
            assert ring.statistics().held == 1
            await settle()
            assert waiter.cancelled()
            assert ring.statistics().held == 0
            ring.check_integrity()
            assert is_right(await ring.acquire(index), cut(3)[index])
            ring.release(index)
        assert ring.statistics().read == 2
        await ended(disk, scheduler, ring)

    run(main)


def test_a_failed_tile_is_told_once_and_read_again_by_the_next_walk() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=5, pinned=1, slots=2, queue_depth=8)
        ring.begin()
        disk.finish(0, 1, 2, fail=[0, 1])  # pinned 0 and tile 1; tile 2 comes in two reads
        disk.finish_all()
        assert tiles_in_flight(disk) == []  # not tried again before anybody asks
        for index in (0, 1):
            with pytest.raises(ReadError, match="no bytes") as caught:
                await ring.acquire(index)
            assert caught.value.key == index
        await driven(disk, asyncio.create_task(walk(ring, cut(5))), ring)
        assert ring.statistics().failed == 2
        await ended(disk, scheduler, ring)

    run(main)


def test_a_tile_that_fails_while_waited_for_can_be_acquired_again() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=3, pinned=0, slots=1)
        ring.begin()
        for _ in range(2):
            waiter = asyncio.create_task(ring.acquire(0))
            await settle()
            if tiles_in_flight(disk) == [1]:
                disk.finish(0)  # read ahead when tile 0 had failed; its slot is wanted back
            assert tiles_in_flight(disk) == [0]
            disk.finish(0, fail=[0])
            with pytest.raises(ReadError):
                await waiter
            ring.check_integrity()
        waiter = asyncio.create_task(ring.acquire(0))
        await settle()
        disk.finish_all()
        assert is_right(await waiter, cut(3)[0])
        await ended(disk, scheduler, ring)

    run(main)


def test_a_failure_that_nobody_awaits_is_silent() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=3, pinned=0, slots=1)
        ring.begin()
        waiter = asyncio.create_task(ring.acquire(0))
        await settle()
        disk.finish(0, fail=[0])
        waiter.cancel()
        await settle()
        del waiter
        gc.collect()
        await ended(disk, scheduler, ring)

    run(main)


def test_a_stale_read_in_flight_keeps_its_slot_until_it_returns() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=6, pinned=0, slots=2, queue_depth=1)
        ring.begin()
        disk.finish(0)
        await ring.acquire(0)
        ring.release(0)  # 1 is in flight, 2 is queued
        ring.begin()
        assert tiles_in_flight(disk) == [1]
        assert scheduler.statistics().queue.dropped == 1
        disk.finish(0)
        assert tiles_in_flight(disk) == [0]
        await ended(disk, scheduler, ring)

    run(main)


def test_a_stale_read_that_returns_makes_room_for_the_next_tile() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=6, pinned=0, slots=2)
        ring.begin()
        disk.finish_all()
        await ring.acquire(0)
        ring.release(0)
        ring.begin()  # 1 is there, 2 in flight and of no use, so 0 gets the slot of 1
        assert tiles_in_flight(disk) == [0, 2]
        while tiles_in_flight(disk)[-1] == 2:
            disk.finish(0)
        assert tiles_in_flight(disk) == [0, 1]
        await ended(disk, scheduler, ring)

    run(main)


def test_the_tile_waited_for_gets_the_first_slot_that_returns() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=6, pinned=0, slots=2)
        ring.begin()
        disk.finish(0)
        both = [asyncio.create_task(ring.acquire(3))]
        await settle()
        disk.finish(1)
        await both[0]  # held; tile 1 still is in flight
        both.append(asyncio.create_task(ring.acquire(0)))
        await settle()
        assert tiles_in_flight(disk) == [1]
        disk.finish(0)
        assert tiles_in_flight(disk) == [0]
        disk.finish(0)
        assert is_right(await both[1], cut(6)[0])
        await ended(disk, scheduler, ring)

    run(main)


def test_a_tile_that_comes_for_a_waiter_just_cancelled_is_held_by_nobody() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=2, pinned=1, slots=1)
        ring.begin()
        waiter = asyncio.create_task(ring.acquire(0))
        await settle()
        waiter.cancel()
        disk.finish_all()
        ring.check_integrity()
        await settle()
        assert waiter.cancelled()
        assert ring.statistics().held == 0
        await ended(disk, scheduler, ring)

    run(main)


def test_a_second_walk_takes_over_from_one_that_still_waits() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=3, pinned=0, slots=1)
        ring.begin()
        waiter = asyncio.create_task(ring.acquire(0))
        await settle()
        disk.finish(0)  # handed over, not yet noticed
        ring.begin()
        with pytest.raises(RuntimeError, match="another walk began"):
            await waiter
        assert is_right(await ring.acquire(0), cut(3)[0])
        await ended(disk, scheduler, ring)

    run(main)


def test_misuse_is_refused() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=3, pinned=1, slots=2)
        ring.begin()
        disk.finish_all()
        await ring.acquire(0)
        with pytest.raises(RuntimeError, match="tile 0 is held"):
            await ring.acquire(0)
        with pytest.raises(RuntimeError, match="tile 1 is not held"):
            ring.release(1)
        for index in (-1, 3):
            with pytest.raises(IndexError):
                await ring.acquire(index)
        for pinned, slots in ((4, 1), (-1, 1), (2, 0)):
            with pytest.raises(ValueError, match="do not carry 3 tiles"):
                TrunkRing(scheduler, cut(3), pinned=pinned, slots=slots)
        with pytest.raises(ValueError, match="nothing to read"):
            TrunkRing(scheduler, [pieces()], pinned=1, slots=0)
        await ended(disk, scheduler, ring)

    run(main)


def test_close_wakes_waiters_and_keeps_memory_while_the_device_writes() -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=4, pinned=1, slots=2, queue_depth=1)
        ring.begin()
        first = asyncio.create_task(ring.acquire(0))
        waiters = [asyncio.create_task(ring.acquire(index)) for index in (1, 3)]
        await settle()
        disk.finish(0)
        ring.close()  # tile 0 was handed over, but its waiter has not noticed
        ring.close()
        results = await asyncio.gather(first, *waiters, return_exceptions=True)
        assert [type(result) for result in results] == [ClosedError] * 3
        for call in (ring.begin, lambda: ring.release(0)):
            with pytest.raises((ClosedError, RuntimeError)):
                call()
        with pytest.raises(ClosedError):
            await ring.acquire(0)
        closing = asyncio.create_task(scheduler.close())
        await settle()
        assert not closing.done()
        assert ring._arrays
        disk.finish(0)
        await closing
        await ended(disk, scheduler, ring)

    run(main)


@pytest.mark.parametrize(("pinned", "slots"), [(0, 1), (0, 3), (2, 2), (5, 9), (7, 0), (7, 3)])
def test_what_is_allocated_is_what_was_foretold(pinned: int, slots: int) -> None:
    async def main() -> None:
        disk, scheduler, ring = await made(tiles=7, pinned=pinned, slots=slots)
        tiles = cut(7)
        foretold = pinned_bytes(tiles, pinned=pinned) + ring_bytes(tiles, pinned=pinned, slots=slots)
        assert ring.allocated_bytes == foretold
        assert foretold % 4096 == 0
        assert foretold >= sum(tile.buffer_bytes for tile in tiles[:pinned])
        await ended(disk, scheduler, ring)

    run(main)

"""Scheduler, ring and cache on real files, with the backend that ships."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.sched.fakes import content
from waste.errors import ClosedError
from waste.io import backends
from waste.io.backends.hanging import HangingBackend
from waste.io.extents import Extent, Placement, place
from waste.io.files import FileSet
from waste.sched import policies
from waste.sched.cache import ExpertCache
from waste.sched.queue import ReadQueue
from waste.sched.ring import TrunkRing
from waste.sched.scheduler import ReadScheduler

FILE_BYTES = 300_000


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = []
    for number in range(2):
        path = tmp_path / f"part-{number}"
        path.write_bytes(content(number, 0, FILE_BYTES).tobytes())
        found.append(path)
    return found


def at(file: int, offset: int, length: int) -> Placement:
    return place([Extent(file, offset, length)], align=FileSet.alignment, max_gap=0)


def expert(key: object) -> Placement:
    assert isinstance(key, int)
    return at(1, key * 9000, 9000)


def assert_right(buffer: np.ndarray, placement: Placement, extent: Extent) -> None:
    begin = placement.starts[0]
    assert (buffer[begin : begin + extent.length] == content(extent.file, extent.offset, extent.length)).all()


async def test_walks_and_leases_share_the_disk(paths: list[Path]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    scheduler = ReadScheduler(
        backends.create("threads", queue_depth=3), ReadQueue(queue_depth=3, max_bytes_in_flight=40_000)
    )
    await scheduler.start(FileSet(paths, warn=lambda text: None))
    extents = [Extent(0, begin, min(23_456, FILE_BYTES - begin)) for begin in range(0, FILE_BYTES, 23_456)]
    tiles = [place([extent], align=FileSet.alignment, max_gap=0) for extent in extents]
    ring = TrunkRing(scheduler, tiles, pinned=3, slots=2)
    cache = ExpertCache(scheduler, slots=4, slot_bytes=16_384, policy=policies.create("lru"), place=expert)
    try:
        for _ in range(3):
            ring.begin()
            for index, tile in enumerate(tiles):
                assert_right(await ring.acquire(index), tile, extents[index])
                ring.release(index)
                with cache.lease([(index * 5 + step) % 33 for step in range(6)]) as lease:
                    while lease.pending:
                        for key, buffer, placement in await lease.wait():
                            assert isinstance(key, int)
                            assert_right(buffer, placement, Extent(1, key * 9000, 9000))
                            lease.release(key)
        cache.check_integrity()
        ring.check_integrity()
        statistics = scheduler.statistics()
        assert statistics.queue.peak_bytes_in_flight <= 40_000
        assert statistics.bytes_read["trunk"] > FILE_BYTES
        assert statistics.bytes_read["experts"] > 0
    finally:
        ring.close()
        cache.close()
        await scheduler.close()
    assert cache.statistics().reading == ring.statistics().reading == 0
    scheduler.check_integrity()


async def test_a_hanging_disk_does_not_keep_waiters(paths: list[Path]) -> None:
    backend = backends.create("hanging", queue_depth=2)
    assert isinstance(backend, HangingBackend)
    scheduler = ReadScheduler(backend, ReadQueue(queue_depth=2, max_bytes_in_flight=1 << 20))
    await scheduler.start(FileSet(paths, warn=lambda text: None))
    cache = ExpertCache(scheduler, slots=4, slot_bytes=16_384, policy=policies.create("lru"), place=expert)
    lease = cache.lease([1, 2, 3])
    waiter = asyncio.create_task(lease.wait())
    await asyncio.sleep(0)
    cache.close()
    with pytest.raises(ClosedError):
        await waiter
    closing = asyncio.create_task(scheduler.close())
    await asyncio.sleep(0)
    assert not closing.done()
    assert cache.statistics().reading == 2
    backend.release()
    await closing
    assert cache.statistics().reading == 0
    cache.check_integrity()

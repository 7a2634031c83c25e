"""The `simulated` backend: the contract, and speed, order and faults as they were asked for."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from waste.errors import InputError, ReadError
from waste.io.arena import Arena
from waste.io.backends import create
from waste.io.backends.base import Backend, BackendStatistics, Completion, Deliver, ReadOp
from waste.io.backends.contract import BLOCK, BackendContract, Inbox, write_file
from waste.io.backends.faults import Faults, parse_faults
from waste.io.backends.ledger import Ledger
from waste.io.backends.mmap import MmapBackend
from waste.io.backends.simulated import SimulatedBackend
from waste.io.backends.threads import read_fully
from waste.io.files import FileSet


class TestSimulated(BackendContract):
    def make(self) -> Backend:
        return create("simulated", queue_depth=3)


class TestSimulatedSlowDisk(BackendContract):
    def make(self) -> Backend:
        return create("simulated", queue_depth=3, faults="latency=1ms,bandwidth=50MB/s,depth=2,reorder")


class TestSimulatedAroundMmap(BackendContract):
    def make(self) -> Backend:
        return SimulatedBackend(3, make_inner=MmapBackend)


class ImmediateBackend:
    """Reads while it is asked to, on the loop: beside a virtual clock, threads would return at no known time."""

    def __init__(self, queue_depth: int) -> None:
        self._ledger = Ledger()

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        files.open()
        self._files, self._deliver = files, deliver

    def submit(self, ops: Sequence[ReadOp]) -> None:
        self._ledger.submit(ops, self._files)
        for op in ops:
            self._ledger.add(Completion(op.token, None), read_fully(self._files, op))
        asyncio.get_running_loop().call_soon(self._ledger.deliver, self._deliver)

    async def close(self) -> None:
        self._ledger.deliver(self._deliver)
        self._files.close()

    def statistics(self) -> BackendStatistics:
        return self._ledger.statistics(direct_obtained=False)


class Timed(Inbox):
    """An inbox that notes when, by the loop's clock, each read was delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[int, float] = {}

    def __call__(self, batch: list[Completion]) -> None:
        now = asyncio.get_running_loop().time()
        self.times.update((completion.token, now) for completion in batch)
        super().__call__(batch)


def first_block(path: Path) -> bytes:
    return path.read_bytes()[:BLOCK]


async def deliveries(path: Path, faults: str, *, count: int = 8) -> tuple[dict[int, float], dict[int, Completion]]:
    """Submit `count` block reads at once. When each was delivered, in order, in seconds; and the completions."""
    backend, inbox = SimulatedBackend(4, faults=parse_faults(faults), make_inner=ImmediateBackend), Timed()
    await backend.start(FileSet((path,), direct="off"), inbox)
    arena = Arena(count, BLOCK)
    begin = asyncio.get_running_loop().time()
    backend.submit([ReadOp(token, 0, 0, BLOCK, BLOCK, arena.slot(token).data) for token in range(count)])
    completions = await inbox.wait_for(count, timeout_s=None)
    await backend.close()
    content = first_block(path)
    for token, completion in completions.items():
        assert (arena.slot(token).tobytes() == content) == (completion.error is None), "a failed read looks whole"
    return {token: time - begin for token, time in inbox.times.items()}, completions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_file(tmp_path / "a.bin", seed=1)
    return tmp_path / "a.bin"


@pytest.mark.looptime
async def test_latencies_overlap(path: Path) -> None:
    times, _ = await deliveries(path, "latency=5s")
    assert list(times.values()) == pytest.approx([5.0] * 8, abs=1e-3)


@pytest.mark.looptime
async def test_depth_makes_reads_wait(path: Path) -> None:
    times, _ = await deliveries(path, "latency=5s,depth=2")
    assert list(times.values()) == pytest.approx([5, 5, 10, 10, 15, 15, 20, 20], abs=1e-3)


@pytest.mark.looptime
async def test_bandwidth_is_shared(path: Path) -> None:
    times, _ = await deliveries(path, f"latency=5s,bandwidth={BLOCK // 2}B/s")
    assert list(times.values()) == pytest.approx([5 + 2 * n for n in range(1, 9)], abs=1e-3)


@pytest.mark.looptime
async def test_reordering_is_seeded(path: Path) -> None:
    orders = [list((await deliveries(path, f"latency=1s,depth=3,reorder,seed={s}"))[0]) for s in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(8)) for order in orders)


async def failing(path: Path, faults: str, *, count: int = 8) -> list[int]:
    _, completions = await deliveries(path, faults, count=count)
    return sorted(token for token, completion in completions.items() if completion.error is not None)


async def test_scripted_faults_hit_the_reads_they_name(path: Path) -> None:
    _, completions = await deliveries(path, "fail-at=2,fail-at=4:enodev,short-at=7")
    errors = {token: str(c.error) for token, c in completions.items() if c.error is not None}
    assert set(errors) == {1, 3, 6}
    assert os.strerror(errno.EIO) in errors[1]
    assert os.strerror(errno.ENODEV) in errors[3]
    assert f"only {BLOCK // 2:,} of {BLOCK:,} bytes" in errors[6]
    for error in errors.values():
        assert "a.bin" in error
        assert "simulated" in error


async def test_random_faults_are_seeded_and_as_frequent_as_asked(path: Path) -> None:
    first = await failing(path, "fail=20%,seed=3", count=400)
    assert first == await failing(path, "fail=20%,seed=3,depth=3,reorder", count=400), "order has no say in luck"
    assert first != await failing(path, "fail=20%,seed=4", count=400)
    assert 50 <= len(first) <= 110
    assert await failing(path, "fail=0%") == []
    assert await failing(path, "fail=100%") == list(range(8))


async def test_a_failing_read_never_reaches_the_disk(path: Path) -> None:
    backend, inbox = create("simulated", queue_depth=2, faults="fail-at=1"), Inbox()
    await backend.start(FileSet((path,)), inbox)
    arena = Arena(2, BLOCK)
    backend.submit([ReadOp(token, 0, 0, BLOCK, BLOCK, arena.slot(token).data) for token in range(2)])
    await inbox.wait_for(2)
    assert isinstance(backend, SimulatedBackend)
    assert backend._inner.statistics().submitted == 1
    assert (backend.statistics().failed, backend.statistics().bytes_read) == (1, BLOCK)
    await backend.close()


async def test_close_does_not_wait_for_simulated_time(path: Path) -> None:
    loop, inbox = asyncio.get_running_loop(), Inbox()
    faults = Faults(latency_s=3600.0, depth=2, fail_at={1: errno.EIO})
    backend = SimulatedBackend(2, faults=faults, make_inner=ImmediateBackend)
    await backend.start(FileSet((path,), direct="off"), inbox)
    arena = Arena(4, BLOCK)
    begin = loop.time()
    backend.submit([ReadOp(token, 0, 0, BLOCK, BLOCK, arena.slot(token).data) for token in range(4)])
    await backend.close()
    assert loop.time() - begin < 60
    assert len(inbox.completions) == 4
    assert [inbox.completions[token].error is None for token in range(4)] == [False, True, False, False]
    assert isinstance(inbox.completions[3].error, ReadError)
    assert "closed" in str(inbox.completions[3].error)


@pytest.mark.parametrize("name", ["auto", "threads", "mmap", "hanging"])
def test_a_real_disk_takes_no_faults(name: str) -> None:
    with pytest.raises(InputError, match=r"io\.faults.*'simulated'"):
        create(name, queue_depth=1, faults="latency=1ms")


def test_malformed_faults_fail_at_once() -> None:
    with pytest.raises(InputError, match="latency=fast"):
        create("simulated", queue_depth=1, faults="latency=fast")

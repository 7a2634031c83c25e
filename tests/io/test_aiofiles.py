"""The `aiofiles` backend: the contract, and what becomes of its tasks and threads."""

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from waste.errors import BudgetError
from waste.io.arena import Arena
from waste.io.backends import create
from waste.io.backends.base import Backend, ReadOp
from waste.io.backends.contract import BLOCK, BackendContract, Inbox, open_files, write_file
from waste.io.files import FileSet


class TestAiofiles(BackendContract):
    def make(self) -> Backend:
        return create("aiofiles", queue_depth=3)


class GatedFiles(FileSet):
    """Files whose opening, or reading, waits until a test lets it."""

    def __init__(self, path: Path, *, gate_open: bool = False) -> None:
        super().__init__((path,), direct="off")
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self._gate_open = gate_open

    def open(self) -> None:
        if self._gate_open:
            self.gate.wait()
        super().open()

    def read_into(self, file: int, buffer: memoryview, offset: int) -> int:
        self.begun.release()
        self.gate.wait()
        return super().read_into(file, buffer, offset)


async def a_read_begins(files: GatedFiles) -> None:
    async with asyncio.timeout(10):
        while not files.begun.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_file(tmp_path / "a.bin", seed=1)
    return tmp_path / "a.bin"


def ops(count: int) -> list[ReadOp]:
    arena = Arena(count, BLOCK)
    return [ReadOp(token, 0, 0, BLOCK, BLOCK, arena.slot(token).data) for token in range(count)]


async def test_queue_depth_is_how_many_reads_are_under_way(path: Path) -> None:
    files, inbox = GatedFiles(path), Inbox()
    backend = create("aiofiles", queue_depth=2)
    await backend.start(files, inbox)
    backend.submit(ops(6))
    for _ in range(2):
        await a_read_begins(files)
    await asyncio.sleep(0.02)
    assert not files.begun.acquire(blocking=False), "a third read began"
    files.gate.set()
    await inbox.wait_for(6)
    await backend.close()


async def test_cancelled_close_still_closes(path: Path) -> None:
    before, threads, tasks = open_files(), set(threading.enumerate()), asyncio.all_tasks()
    files, inbox = GatedFiles(path), Inbox()
    backend = create("aiofiles", queue_depth=2)
    await backend.start(files, inbox)
    backend.submit(ops(5))
    await a_read_begins(files)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await backend.close()
    files.gate.set()
    completions = await inbox.wait_for(5)
    await backend.close()
    assert sum(completion.error is None for completion in completions.values()) == 2
    assert open_files() <= before
    assert set(threading.enumerate()) <= threads
    assert asyncio.all_tasks() <= tasks


async def test_cancelled_start_leaves_nothing(path: Path) -> None:
    before, threads, tasks = open_files(), set(threading.enumerate()), asyncio.all_tasks()
    files = GatedFiles(path, gate_open=True)
    backend = create("aiofiles", queue_depth=2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await backend.start(files, Inbox())
    files.gate.set()
    await backend.close()
    assert open_files() <= before
    assert set(threading.enumerate()) <= threads
    assert asyncio.all_tasks() <= tasks


async def test_a_system_without_threads_to_spare(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set(threading.enumerate())
    real, started = threading.Thread.start, iter(range(9))

    def start(thread: threading.Thread) -> None:
        if next(started) == 2:
            raise RuntimeError("can't start new thread")
        real(thread)

    backend = create("aiofiles", queue_depth=4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(BudgetError, match=r"refused 4 reader threads.*io\.queue_depth"):
            await backend.start(FileSet((path,)), Inbox())
    await backend.close()
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10)
    assert set(threading.enumerate()) <= threads


async def test_an_idle_lane_holds_no_buffer(path: Path) -> None:
    backend, inbox = create("aiofiles", queue_depth=1), Inbox()
    await backend.start(FileSet((path,)), inbox)
    arena = Arena(1, BLOCK)
    backend.submit([ReadOp(0, 0, 20 * BLOCK, BLOCK, BLOCK, arena.slot(0).data)])
    assert (await inbox.wait_for(1))[0].error is not None
    arena.close()
    await asyncio.sleep(0.01)
    gc.collect()
    assert arena._mapping.closed
    await backend.close()

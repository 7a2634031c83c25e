"""The `threads` backend: the contract, and what is its own: short reads, long reads, wake-ups, a lost loop."""

import asyncio
import errno
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from waste.errors import BudgetError, ReadError
from waste.io.arena import Arena
from waste.io.backends import create, threads
from waste.io.backends.base import Backend, ReadOp
from waste.io.backends.contract import (
    BLOCK,
    BackendContract,
    Inbox,
    open_files,
    run_reads,
    write_file,
)
from waste.io.backends.hanging import HangingBackend
from waste.io.files import FileSet


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("waste-read-")}


class TestThreads(BackendContract):
    def make(self) -> Backend:
        return create("threads", queue_depth=3)


class TestHangingOnceReleased(BackendContract):
    def make(self) -> Backend:
        backend = HangingBackend(3)
        backend.release()
        return backend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_file(tmp_path / "a.bin", seed=1)
    return tmp_path / "a.bin"


def whole_file(path: Path) -> tuple[ReadOp, bytes]:
    """A read of all of `path`, and what it should bring."""
    content = path.read_bytes()
    length = -(-len(content) // BLOCK) * BLOCK
    return ReadOp(0, 0, 0, length, len(content), Arena(1, length).slot(0).data), content


def block_until(condition: Callable[[], bool]) -> None:
    """Keep the event loop from running until the readers have got somewhere."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the readers never got there"
        time.sleep(0.001)


def shorten(monkeypatch: pytest.MonkeyPatch, limit: Callable[[int], int]) -> list[int]:
    """Let every os.preadv return at most `limit(call)` bytes; collects the sizes asked for."""
    real, asked = os.preadv, []

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        asked.append(len(buffers[0]))
        return real(descriptor, [buffers[0][: limit(len(asked))]], offset)

    monkeypatch.setattr(os, "preadv", preadv)
    return asked


@pytest.mark.parametrize("step", [1000, BLOCK, BLOCK + 1])
async def test_short_buffered_reads_go_on(path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    asked = shorten(monkeypatch, lambda call: step)
    op, content = whole_file(path)
    completions = await run_reads(create("threads", queue_depth=1), FileSet((path,), direct="off"), [op])
    assert completions[0].error is None
    assert bytes(op.buffer[: len(content)]) == content
    assert len(asked) == -(-len(content) // step)


async def test_short_direct_reads_go_on_at_a_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, lambda call: 2 * BLOCK - 512)
    op, content = whole_file(path)
    files = FileSet((path,), warn=lambda message: None)
    completions = await run_reads(create("threads", queue_depth=1), files, [op])
    assert completions[0].error is None
    assert bytes(op.buffer[: len(content)]) == content


async def test_no_single_read_is_above_the_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_READ_BYTES", 2 * BLOCK)
    asked = shorten(monkeypatch, lambda call: 1 << 30)
    op, content = whole_file(path)
    completions = await run_reads(create("threads", queue_depth=1), FileSet((path,), direct="off"), [op])
    assert completions[0].error is None
    assert bytes(op.buffer[: len(content)]) == content
    assert asked == [2 * BLOCK] * 3


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), RuntimeError("a bug")])
async def test_whatever_fails_is_a_read_error_and_the_reader_lives(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    real, failures = os.preadv, iter([failure])

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        for error in failures:
            raise error
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    backend, inbox = create("threads", queue_depth=1), Inbox()
    await backend.start(FileSet((path,), direct="off"), inbox)
    op, _ = whole_file(path)
    backend.submit([op])
    error = (await inbox.wait_for(1))[0].error
    assert isinstance(error, ReadError)
    assert "a.bin" in str(error)
    assert failure.args[-1] in str(error)
    assert error.__cause__ is failure
    backend.submit([ReadOp(1, 0, 0, op.length, op.need, op.buffer)])
    assert (await inbox.wait_for(2))[1].error is None
    await backend.close()


async def test_completions_share_wakeups(path: Path) -> None:
    backend, inbox = HangingBackend(4), Inbox()
    await backend.start(FileSet((path,), direct="off"), inbox)
    buffers = Arena(64, BLOCK)
    backend.submit([ReadOp(token, 0, 0, BLOCK, BLOCK, buffers.slot(token).data) for token in range(64)])
    backend.release()
    # The loop is kept from running until all have returned; then one callback brings them.
    block_until(lambda: backend._ledger.returned == 64)
    await inbox.wait_for(64)
    assert inbox.batches == [64]
    assert backend.statistics().wakeups == 1
    await backend.close()


async def test_an_idle_reader_holds_no_buffer(path: Path) -> None:
    backend, inbox = create("threads", queue_depth=1), Inbox()
    await backend.start(FileSet((path,)), inbox)
    arena = Arena(1, BLOCK)
    backend.submit([ReadOp(0, 0, 20 * BLOCK, BLOCK, BLOCK, arena.slot(0).data)])
    completions = await inbox.wait_for(1)
    assert completions[0].error is not None, "the error is kept, and must not keep the buffer either"
    arena.close()
    gc.collect()
    assert arena._mapping.closed
    await backend.close()


async def test_cancelled_start_leaves_nothing(path: Path) -> None:
    before = open_files()
    gate = threading.Event()

    class SlowFiles(FileSet):
        def open(self) -> None:
            gate.wait()
            super().open()

    backend = create("threads", queue_depth=2)
    starting = asyncio.ensure_future(backend.start(SlowFiles((path,), direct="off"), Inbox()))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    gate.set()
    await backend.close()
    assert not reading_threads()
    assert open_files() <= before


async def test_cancelled_close_still_closes(path: Path) -> None:
    before = open_files()
    backend, inbox = HangingBackend(2), Inbox()
    await backend.start(FileSet((path,), direct="off"), inbox)
    buffers = Arena(5, BLOCK)
    backend.submit([ReadOp(token, 0, 0, BLOCK, BLOCK, buffers.slot(token).data) for token in range(5)])
    block_until(lambda: backend.reads_hanging == 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await backend.close()
    assert len(reading_threads()) == 2, "the device has not returned yet"
    backend.release()
    completions = await inbox.wait_for(5)
    await backend.close()
    begun = [token for token, completion in completions.items() if completion.error is None]
    assert len(begun) == 2
    assert not reading_threads()
    assert open_files() <= before


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_a_loop_that_is_gone_is_not_an_error(path: Path, capfd: pytest.CaptureFixture[str], library: str) -> None:
    """The hung device returns after the program gave up on it: quiet, and the files still get closed."""
    before = open_files()
    backend = HangingBackend(2)
    op, content = whole_file(path)
    loop = pytest.importorskip(library).new_event_loop()

    async def submit() -> None:
        await backend.start(FileSet((path,), direct="off"), lambda batch: None)
        backend.submit([op])
        block_until(lambda: backend.reads_hanging == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await backend.close()

    loop.run_until_complete(submit())
    loop.close()
    backend.release()
    for thread in reading_threads():
        thread.join(timeout=10)
    assert not reading_threads()
    assert bytes(op.buffer[: len(content)]) == content
    assert open_files() <= before
    assert capfd.readouterr() == ("", "")


def test_a_system_without_threads_to_spare(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = threading.Thread.start, iter(range(9))

    def start(thread: threading.Thread) -> None:
        if next(started) == 2:
            raise RuntimeError("can't start new thread")
        real(thread)

    async def main() -> None:
        backend = create("threads", queue_depth=4)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(BudgetError, match=r"reader thread 3 of 4.*io\.queue_depth"):
                await backend.start(FileSet((path,)), Inbox())
        await backend.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    assert not reading_threads()


@pytest.mark.parametrize(("length", "need", "buffer_bytes"), [(10, 0, 10), (10, 11, 10), (10, 10, 9), (10, 10, 11)])
def test_a_read_must_fit_its_buffer(length: int, need: int, buffer_bytes: int) -> None:
    with pytest.raises(ValueError, match="buffer"):
        ReadOp(0, 0, 0, length, need, memoryview(bytearray(buffer_bytes)))

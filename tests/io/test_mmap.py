"""The `mmap` backend: the contract, and that mapped pages are neither trusted nor kept."""

import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from waste.errors import ReadError, UnsupportedError
from waste.io.arena import Arena
from waste.io.backends import create
from waste.io.backends.base import Backend, ReadOp
from waste.io.backends.contract import BLOCK, BackendContract, Inbox, run_reads, write_file
from waste.io.backends.mmap import WINDOW_BYTES, WINDOWS_BYTES, windows_bytes
from waste.io.files import FileSet


class TestMmap(BackendContract):
    def make(self) -> Backend:
        return create("mmap", queue_depth=3)


class TestMmapWithoutAdvice(BackendContract):
    @pytest.fixture(autouse=True)
    def _no_advice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
        for name in [name for name in vars(mmap) if name.startswith("MADV_")]:
            monkeypatch.delattr(mmap, name)

    def make(self) -> Backend:
        return create("mmap", queue_depth=3)


@pytest.mark.parametrize("queue_depth", [1, 8, 16, 256, 1024])
def test_many_readers_share_what_few_have(queue_depth: int) -> None:
    assert windows_bytes(queue_depth) <= WINDOWS_BYTES + 2 * queue_depth * mmap.ALLOCATIONGRANULARITY


async def test_a_small_window_reads_the_same(tmp_path: Path) -> None:
    content = write_file(tmp_path / "a.bin", seed=3, size=WINDOW_BYTES + 77)
    op = ReadOp(0, 0, BLOCK, WINDOW_BYTES, WINDOW_BYTES + 77 - BLOCK, Arena(1, WINDOW_BYTES).slot(0).data)
    await run_reads(create("mmap", queue_depth=300), FileSet((tmp_path / "a.bin",)), [op])
    assert bytes(op.buffer[: op.need]) == content[BLOCK:]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


async def test_a_read_longer_than_a_window(tmp_path: Path) -> None:
    size = 3 * WINDOW_BYTES + 77
    content = write_file(tmp_path / "a.bin", seed=3, size=size + BLOCK)
    op = ReadOp(0, 0, BLOCK, size + BLOCK, size, Arena(1, size + BLOCK).slot(0).data)
    completions = await run_reads(create("mmap", queue_depth=1), FileSet((tmp_path / "a.bin",)), [op])
    assert completions[0].error is None
    assert bytes(op.buffer[:size]) == content[BLOCK:]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident and mapped")
async def test_no_page_stays(tmp_path: Path) -> None:
    """Reading 32 MiB adds no more to the process than the buffer and a window a reader."""
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(32 * WINDOW_BYTES))
    buffer = Arena(1, WINDOW_BYTES)
    buffer.slot(0)[:] = 1
    backend, inbox = create("mmap", queue_depth=2), Inbox()
    await backend.start(FileSet((path,)), inbox)
    before = resident_bytes()
    for step in range(32):
        backend.submit([ReadOp(step, 0, step * WINDOW_BYTES, WINDOW_BYTES, WINDOW_BYTES, buffer.slot(0).data)])
        await inbox.wait_for(step + 1)
    assert resident_bytes() - before < 8 * WINDOW_BYTES
    assert not is_mapped(path)
    await backend.close()
    assert not np.any(buffer.slot(0))


async def test_a_file_cut_short_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_file(path, seed=1, size=8 * BLOCK)
    backend, inbox = create("mmap", queue_depth=1), Inbox()
    await backend.start(FileSet((path,)), inbox)
    os.truncate(path, 2 * BLOCK)
    arena = Arena(2, 4 * BLOCK)
    backend.submit([ReadOp(token, 0, token * BLOCK, 4 * BLOCK, 4 * BLOCK, arena.slot(token).data) for token in (0, 1)])
    completions = await inbox.wait_for(2)
    await backend.close()
    for completion in completions.values():
        assert isinstance(completion.error, ReadError)
        assert "cut short" in str(completion.error)


async def test_it_is_not_direct_and_says_so(tmp_path: Path) -> None:
    write_file(tmp_path / "a.bin", seed=1)
    files = FileSet((tmp_path / "a.bin",), direct="auto")
    backend = create("mmap", queue_depth=1)
    await backend.start(files, Inbox())
    assert not files.direct_obtained
    assert not backend.statistics().direct_obtained
    await backend.close()
    refused = create("mmap", queue_depth=1)
    with pytest.raises(UnsupportedError, match=r"mmap.*io\.direct"):
        await refused.start(FileSet((tmp_path / "a.bin",), direct="on"), Inbox())
    await refused.close()


async def test_pages_are_copied_without_the_interpreter_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a reader's thread, and by numpy: a page fault there keeps no other thread from running."""
    write_file(tmp_path / "a.bin", seed=1)
    real, copied_on = np.copyto, set()

    def copyto(target: object, source: object) -> None:
        copied_on.add(threading.current_thread().name)
        real(target, source)  # type: ignore[call-overload]

    monkeypatch.setattr(np, "copyto", copyto)
    op = ReadOp(0, 0, 0, BLOCK, BLOCK, Arena(1, BLOCK).slot(0).data)
    await run_reads(create("mmap", queue_depth=1), FileSet((tmp_path / "a.bin",)), [op])
    assert copied_on == {"waste-read-0"}

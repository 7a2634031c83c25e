"""What every read backend must hold to, as tests: subclass `BackendContract` in a test file and give `make`.

Needs pytest and pytest-asyncio (mode auto); nothing else in the package imports this module.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from waste.errors import ClosedError, ModelError, ReadError
from waste.io.arena import Arena
from waste.io.backends.base import Backend, Completion, ReadOp
from waste.io.files import FileSet

BLOCK = FileSet.alignment
FILE_BYTES = 5 * BLOCK + 123


class Inbox:
    """A `deliver` that keeps completions by token and lets a test wait for them."""

    def __init__(self) -> None:
        self.completions: dict[int, Completion] = {}
        self.batches: list[int] = []
        self._thread = threading.get_ident()
        self._arrived = asyncio.Event()

    def __call__(self, batch: list[Completion]) -> None:
        assert threading.get_ident() == self._thread, "delivered off the event loop's thread"
        assert batch, "delivered nothing"
        for completion in batch:
            assert completion.token not in self.completions, f"read {completion.token} delivered twice"
            self.completions[completion.token] = completion
        self.batches.append(len(batch))
        self._arrived.set()

    async def wait_for(self, count: int, *, timeout_s: float | None = 10.0) -> dict[int, Completion]:
        """Everything delivered so far, once there are `count`."""
        async with asyncio.timeout(timeout_s):
            while len(self.completions) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.completions


def write_file(path: Path, *, seed: int, size: int = FILE_BYTES) -> bytes:
    """A file of seeded noise; returns its content."""
    content = random.Random(seed).randbytes(size)
    path.write_bytes(content)
    return content


def open_files() -> set[Path]:
    """Regular files this process has open, where the platform lists them."""
    found: set[Path] = set()
    folder = Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.exists() else ():
        with suppress(OSError):  # the listing's own descriptor is gone by now
            found.add(entry.readlink())
    return {path for path in found if path.is_file()}


class BackendContract:
    """Subclass as `class TestMine(BackendContract)` and override `make`."""

    def make(self) -> Backend:
        """A new backend with a queue depth of 3."""
        raise NotImplementedError

    @pytest.fixture
    def contents(self, tmp_path: Path) -> dict[Path, bytes]:
        paths = [tmp_path / name for name in ("a.bin", "b.bin")]
        return {path: write_file(path, seed=seed) for seed, path in enumerate(paths)}

    @pytest.fixture
    def arena(self) -> Arena:
        return Arena(24, 2 * BLOCK)

    async def test_every_read_lands_once(self, contents: dict[Path, bytes], arena: Arena) -> None:
        backend, inbox = self.make(), Inbox()
        await backend.start(FileSet(tuple(contents)), inbox)
        wanted = {token: (token % 2, token % 4 * BLOCK) for token in range(24)}
        backend.submit([_op(arena, token, *where) for token, where in wanted.items()])
        completions = await inbox.wait_for(24)
        await backend.close()
        for token, (file, offset) in wanted.items():
            assert completions[token].error is None
            assert arena.slot(token).tobytes() == list(contents.values())[file][offset : offset + 2 * BLOCK]

    async def test_last_block_may_end_with_the_file(self, contents: dict[Path, bytes], arena: Arena) -> None:
        backend, inbox = self.make(), Inbox()
        await backend.start(FileSet(tuple(contents)), inbox)
        backend.submit([_op(arena, 0, 0, 4 * BLOCK, need=BLOCK + 123)])
        completions = await inbox.wait_for(1)
        await backend.close()
        assert completions[0].error is None
        content = next(iter(contents.values()))
        assert arena.slot(0)[: BLOCK + 123].tobytes() == content[4 * BLOCK :]

    async def test_a_read_past_the_end_fails_alone(self, contents: dict[Path, bytes], arena: Arena) -> None:
        backend, inbox = self.make(), Inbox()
        await backend.start(FileSet(tuple(contents)), inbox)
        backend.submit([_op(arena, 0, 1, 4 * BLOCK), _op(arena, 1, 1, 9 * BLOCK), _op(arena, 2, 1, 0)])
        completions = await inbox.wait_for(3)
        await backend.close()
        for token in (0, 1):
            error = completions[token].error
            assert isinstance(error, ReadError)
            assert "b.bin" in str(error)
        assert completions[2].error is None
        assert backend.statistics().failed == 2

    async def test_missing_file_fails_start(self, contents: dict[Path, bytes], tmp_path: Path) -> None:
        threads, files = set(threading.enumerate()), open_files()
        backend = self.make()
        with pytest.raises(ModelError, match=r"missing\.bin"):
            await backend.start(FileSet((*contents, tmp_path / "missing.bin")), Inbox())
        await backend.close()
        await backend.close()
        assert set(threading.enumerate()) <= threads
        assert open_files() <= files

    async def test_close_leaves_nothing(self, contents: dict[Path, bytes], arena: Arena) -> None:
        threads, files = set(threading.enumerate()), open_files()
        backend, inbox = self.make(), Inbox()
        await backend.start(FileSet(tuple(contents)), inbox)
        backend.submit([_op(arena, token, 0, 0) for token in range(24)])
        await asyncio.gather(backend.close(), backend.close())
        await backend.close()
        assert len(inbox.completions) == 24, "a read was neither carried out nor given back"
        assert set(threading.enumerate()) <= threads
        assert open_files() <= files
        arena.close()

    async def test_submit_needs_a_running_backend(self, contents: dict[Path, bytes], arena: Arena) -> None:
        backend = self.make()
        with pytest.raises(ClosedError):
            backend.submit([_op(arena, 0, 0, 0)])
        await backend.start(FileSet(tuple(contents)), Inbox())
        for file in (-1, 2):
            with pytest.raises(ValueError, match="of 2"):
                backend.submit([_op(arena, 0, 0, 0), _op(arena, 1, file, 0)])
        assert backend.statistics().submitted == 0
        await backend.close()
        with pytest.raises(ClosedError):
            backend.submit([_op(arena, 0, 0, 0)])

    async def test_close_without_start(self) -> None:
        backend = self.make()
        await backend.close()
        with pytest.raises(ClosedError):
            await backend.start(FileSet(()), Inbox())

    async def test_statistics_conserve_reads(self, contents: dict[Path, bytes], arena: Arena) -> None:
        backend, inbox = self.make(), Inbox()
        await backend.start(FileSet(tuple(contents), direct="off"), inbox)
        backend.submit([_op(arena, token, 0, 0) for token in range(10)])
        during = backend.statistics()
        assert (during.submitted, during.in_flight, during.peak_in_flight) == (10, 10, 10)
        await inbox.wait_for(10)
        after = backend.statistics()
        await backend.close()
        assert (after.completed, after.in_flight, after.failed) == (10, 0, 0)
        assert after.bytes_read == 10 * 2 * BLOCK
        assert after.wakeups == len(inbox.batches) <= 10
        assert not after.direct_obtained


def _op(arena: Arena, token: int, file: int, offset: int, *, need: int = 2 * BLOCK) -> ReadOp:
    """A read of two blocks into the slot of its token."""
    return ReadOp(token, file, offset, 2 * BLOCK, need, arena.slot(token).data)


async def run_reads(backend: Backend, files: FileSet, ops: Sequence[ReadOp]) -> dict[int, Completion]:
    """Carry out `ops` on a backend not yet started, from start to close."""
    inbox = Inbox()
    try:
        await backend.start(files, inbox)
        backend.submit(ops)
        return await inbox.wait_for(len(ops))
    finally:
        await backend.close()

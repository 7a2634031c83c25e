"""Measuring a disk: what is read, through what, and that a temporary file never outlives the measurement."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waste import disk
from waste.disk import RECORD_BYTES, DepthRate, Sweep, measure_depths, scratch_file
from waste.errors import InputError, ReadError
from waste.io.files import FileSet

MIB = 1 << 20


class Stopped(Exception):  # noqa: N818
    """By the test."""


def go_on() -> None:
    """Nobody wants to stop."""


def stop_after(calls: int) -> Callable[[], None]:
    left = [None] * calls

    def check() -> None:
        if not left:
            raise Stopped
        left.pop()

    return check


def sweep(*paths: Path, check: Callable[[], None] = go_on) -> Sweep:
    return measure_depths(paths, depths=(1, 4), seconds=0.01, check=check)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files as small as they get."""
    monkeypatch.setattr(disk, "SCRATCH_BYTES", disk.LEAST_SCRATCH_BYTES)


def test_reads_of_a_records_size_at_every_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3 * RECORD_BYTES))
    (tmp_path / "little").write_bytes(b"x" * 5000)
    seen: list[tuple[int, int, int]] = []
    read_into = FileSet.read_into

    def noting(files: FileSet, file: int, buffer: memoryview, offset: int) -> int:
        seen.append((file, buffer.nbytes, offset))
        return read_into(files, file, buffer, offset)

    monkeypatch.setattr(FileSet, "read_into", noting)
    found = sweep(tmp_path / "large", tmp_path / "little")
    assert (found.block_bytes, found.file_bytes) == (RECORD_BYTES, 3 * RECORD_BYTES + 5000)
    assert [rate.depth for rate in found.rates] == [1, 4]
    assert all(rate.bytes_per_s > 0 and rate.reads >= rate.depth for rate in found.rates)
    blocks = [each for each in seen if each[1] > 4096]  # the others are those of opening
    assert len(blocks) == sum(rate.reads for rate in found.rates)
    assert {(file, size) for file, size, _ in blocks} == {(0, RECORD_BYTES)}
    assert all(offset % 4096 == 0 and offset <= 2 * RECORD_BYTES for _, _, offset in blocks)


def test_a_file_below_a_record_and_one_below_a_block(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(10_000))
    assert sweep(tmp_path / "a").block_bytes == 8192
    (tmp_path / "a").write_bytes(b"x")
    assert sweep(tmp_path / "a").rates == ()


def test_holes_are_noticed(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(4 * MIB)
    assert sweep(tmp_path / "a").is_sparse
    (tmp_path / "b").write_bytes(os.urandom(4 * MIB))
    assert not sweep(tmp_path / "b").is_sparse


def test_refused_direct_reads_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSet, "_open_direct", lambda files, path: False)
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    found = sweep(tmp_path / "a")
    assert not found.is_direct
    assert len(found.rates) == 2


def test_a_failing_disk_is_a_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    read_at = FileSet._read_at

    def fail(files: FileSet, descriptor: int, buffer: memoryview, offset: int) -> int:
        if buffer.nbytes > 4096:
            raise OSError(5, "Input/output error")
        return read_at(files, descriptor, buffer, offset)

    monkeypatch.setattr(FileSet, "_read_at", fail)
    with pytest.raises(ReadError, match=r"a: Input/output error"):
        sweep(tmp_path / "a")


def test_reading_can_be_called_off(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    with pytest.raises(Stopped):
        measure_depths([tmp_path / "a"], depths=(16,), seconds=1000, check=stop_after(40))


def test_the_rate_at_a_depth_is_the_nearest_below() -> None:
    found = Sweep(1, 1, True, False, tuple(DepthRate(depth, 1, depth * 10.0) for depth in (2, 4, 16)))
    assert [found.at_depth(depth) for depth in (1, 2, 8, 99)] == [None, 20.0, 40.0, 160.0]


@pytest.mark.usefixtures("small")
def test_a_temporary_file_can_be_read_and_is_gone(tmp_path: Path) -> None:
    with scratch_file(tmp_path, check=go_on) as path:
        assert sweep(path).file_bytes == disk.LEAST_SCRATCH_BYTES
        assert not sweep(path).is_sparse
        if sys.platform == "linux":
            assert list(tmp_path.iterdir()) == [], "whatever ends the process ends the file"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("has_proc", [True, False])
def test_no_file_is_left_if_writing_it_is_called_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_proc: bool
) -> None:
    """Without /proc, as on macOS, the file has its name while it is there."""
    if not has_proc:
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("/proc/") and exists(path))
    seen: list[int] = []

    def check() -> None:
        seen.append(len(list(tmp_path.iterdir())))
        if len(seen) == 5:
            raise Stopped

    with pytest.raises(Stopped), scratch_file(tmp_path, check=check):
        raise AssertionError("it must not be there")
    if not has_proc:
        assert seen == [1] * 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "wanted"), [(100 * MIB, None), (200 * MIB, 50 * MIB), (100 << 30, 256 * MIB)])
def test_no_more_than_a_quarter_of_what_is_free_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, wanted: int | None
) -> None:
    written: list[int] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(disk, "_write_noise", lambda descriptor, size, check: written.append(size))
    if wanted is None:
        with pytest.raises(InputError, match="104,857,600 bytes are free, 134,217,728 are needed"):
            scratch_file(tmp_path, check=go_on).__enter__()
    else:
        with scratch_file(tmp_path, check=go_on):
            assert written == [wanted]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_disk_that_fills_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "write", full)
    with pytest.raises(ReadError, match="No space left"):
        scratch_file(tmp_path, check=go_on).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        scratch_file(tmp_path / "nowhere", check=go_on).__enter__()

"""Direct reads where the system grants them, and every way it can refuse."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from waste.errors import ClosedError, InputError, ModelError, ReadError, UnsupportedError
from waste.io.arena import Arena
from waste.io.backends.contract import open_files, write_file
from waste.io.files import FileSet

BLOCK = FileSet.alignment


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, ...]:
    for seed, name in enumerate(("a.bin", "b.bin")):
        write_file(tmp_path / name, seed=seed)
    return tmp_path / "a.bin", tmp_path / "b.bin"


def grants_direct(path: Path) -> bool:
    """Whether this filesystem takes direct reads, asked without the code under test."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except (AttributeError, OSError):
        return False
    try:
        return os.preadv(descriptor, [Arena(1, BLOCK).slot(0).data], 0) > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def read_block(files: FileSet, file: int) -> bytes:
    buffer = Arena(1, BLOCK).slot(0)
    assert files.read_into(file, buffer.data, BLOCK) == BLOCK
    return buffer.tobytes()


def check_reads(files: FileSet) -> None:
    for number, path in enumerate(files.paths):
        assert read_block(files, number) == path.read_bytes()[BLOCK : 2 * BLOCK]


def refuse(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Let `os.open` or `os.preadv` refuse direct reads the way a filesystem does."""
    real_open, real_preadv = os.open, os.preadv
    direct = getattr(os, "O_DIRECT", None)
    if direct is None:
        pytest.skip("no O_DIRECT here")

    def open_(path: Path, flags: int, *args: int) -> int:
        if flags & direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *args)

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, call, open_ if call == "open" else preadv)


def test_direct_is_what_the_filesystem_grants(paths: tuple[Path, ...]) -> None:
    warnings: list[str] = []
    files = FileSet(paths, direct="auto", warn=warnings.append)
    assert not files.direct_obtained
    files.open()
    files.open()
    granted = all(grants_direct(path) for path in paths)
    check_reads(files)
    assert files.direct_obtained == granted
    assert len(warnings) == (0 if granted else 1)
    files.close()
    assert files.direct_obtained == granted, "still true of what was read"


def test_off_does_not_try(paths: tuple[Path, ...]) -> None:
    warnings: list[str] = []
    files = FileSet(paths, direct="off", warn=warnings.append)
    files.open()
    check_reads(files)
    assert not files.direct_obtained
    assert not warnings
    files.close()


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_refused_at_open_or_first_read(paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    refuse(monkeypatch, call)
    before = open_files()
    warnings: list[str] = []
    files = FileSet(paths, direct="auto", warn=warnings.append)
    files.open()
    check_reads(files)
    assert not files.direct_obtained
    assert len(warnings) == 1
    assert "page cache" in warnings[0]
    files.close()
    with pytest.raises(UnsupportedError, match=r"a\.bin.*io\.direct"):
        FileSet(paths, direct="on").open()
    assert open_files() <= before


def test_refused_later(paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that takes the first direct read and not a later one."""
    if not grants_direct(paths[0]):
        pytest.skip("no direct reads here")
    warnings: list[str] = []
    files = FileSet(paths, direct="auto", warn=warnings.append)
    files.open()
    refuse(monkeypatch, "preadv")
    check_reads(files)
    assert not files.direct_obtained
    assert len(warnings) == 1
    files.close()


@pytest.mark.parametrize("absent", [("O_DIRECT",), ("preadv",), ("O_DIRECT", "preadv")])
def test_platforms_that_lack_it(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...]
) -> None:
    for name in absent:
        monkeypatch.delattr(os, name, raising=False)
    files = FileSet(paths, direct="auto", warn=lambda message: None)
    files.open()
    check_reads(files)
    if "O_DIRECT" in absent and os.uname().sysname == "Linux":
        assert not files.direct_obtained
    files.close()


def test_a_platform_without_positional_reads(paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: readers share one position, and must not read at each other's."""
    for name in ("O_DIRECT", "preadv", "pread"):
        monkeypatch.delattr(os, name, raising=False)
    files = FileSet(paths, warn=lambda message: None)
    files.open()
    wanted = paths[0].read_bytes()

    def read_many(block: int) -> None:
        buffer = bytearray(BLOCK)
        for _ in range(200):
            assert files.read_into(0, memoryview(buffer), block * BLOCK) == BLOCK
            assert buffer == wanted[block * BLOCK :][:BLOCK]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read_many, range(4)))
    files.close()


def test_the_page_cache_may_be_chosen_before_opening(paths: tuple[Path, ...]) -> None:
    warnings: list[str] = []
    files = FileSet(paths, warn=warnings.append)
    files.use_page_cache("maps files")
    files.open()
    check_reads(files)
    assert not files.direct_obtained
    assert not warnings, "it was chosen, not refused"
    files.close()
    with pytest.raises(UnsupportedError, match=r"maps files.*io\.direct"):
        FileSet(paths, direct="on").use_page_cache("maps files")


def test_interrupted_reads_begin_again(paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    real, interruptions = os.preadv, iter([True, True, False])

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if next(interruptions, False):
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return real(descriptor, buffers, offset)

    files = FileSet(paths, direct="off")
    files.open()
    monkeypatch.setattr(os, "preadv", preadv)
    check_reads(files)
    files.close()


def test_open_failures_are_ours_and_leave_nothing_open(
    paths: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files()
    with pytest.raises(ModelError, match=r"gone\.bin"):
        FileSet((*paths, tmp_path / "gone.bin"), warn=lambda message: None).open()

    def too_many(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_many)
        with pytest.raises(ReadError, match=r"a\.bin: Too many open files"):
            FileSet(paths).open()
    assert open_files() <= before


def test_closed_files_do_not_read(paths: tuple[Path, ...]) -> None:
    files = FileSet(paths, direct="off")
    buffer = memoryview(bytearray(BLOCK))
    with pytest.raises(ClosedError):
        files.read_into(0, buffer, 0)
    files.open()
    files.close()
    files.close()
    with pytest.raises(ClosedError):
        files.read_into(0, buffer, 0)
    with pytest.raises(ClosedError):
        files.open()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InputError, match="auto, on, off"):
        FileSet((), direct="yes")  # type: ignore[arg-type]

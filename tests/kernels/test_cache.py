"""The policy for compiled kernels: where they are kept, and that nothing depends on their being kept."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from waste.kernels import _jit, load_kernels, prepare
from waste.kernels.kernel_set import Kernel

from .hash_kernels import hash_outputs
from .processes import ROOT, Report, output_of, report_of, start_hashing, start_python

NAMES = ("add", "exponential")


def run(folder: Path, *names: str) -> Report:
    return report_of(start_hashing(*(names or NAMES), WASTE_CACHE_DIR=str(folder)))


@pytest.fixture(scope="module")
def hashes(compiled: dict[str, Kernel]) -> dict[str, str]:
    return hash_outputs(compiled, NAMES)


def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path, hashes: dict[str, str]) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert (first.cache_hits, second.cache_hits) == (0, len(NAMES))
    assert first.hashes == second.hashes == hashes
    assert first.folder == second.folder
    assert [str(path) for path in tmp_path.iterdir()] == [first.folder]


def test_a_kernel_that_calls_others_is_loaded_with_them(tmp_path: Path, compiled: dict[str, Kernel]) -> None:
    name = "F32.experts"
    first, second = run(tmp_path, name), run(tmp_path, name)
    assert (first.cache_hits, second.cache_hits) == (0, 1)
    assert first.hashes == second.hashes == hash_outputs(compiled, [name])
    entries = [path.name.split("-")[0] for path in Path(first.folder).rglob("*.nbi")]
    assert sorted(entries) == ["f32.experts", "f32.product", "vectors.activate"]


def test_the_folder_is_named_by_a_hash_of_all_kernel_sources() -> None:
    sources = sorted((ROOT / "waste" / "kernels").rglob("*.py"))
    assert len(sources) > 20
    folder = _jit.folder_name(sources)
    assert folder.startswith("kernels-")
    assert _jit.folder_name(sources) == folder
    assert _jit.folder_name(sources[1:]) != folder


def test_one_changed_source_changes_the_folder(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    sources = [tmp_path / "a.py", tmp_path / "b.py"]
    before = _jit.folder_name(sources)
    (tmp_path / "b.py").write_text("x = 2\n")
    assert _jit.folder_name(sources) != before


def test_an_unwritable_folder_is_no_error(tmp_path: Path, hashes: dict[str, str]) -> None:
    """Kernels are kept in a temporary folder of the user's own then, so that a child can still compile them."""
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    beside = set((ROOT / "waste" / "kernels").rglob("*.nb?"))
    below = str(blocker / "cache")
    where = {"WASTE_CACHE_DIR": below, "TMPDIR": str(temporary)}
    report = report_of(start_hashing(*NAMES, **where))
    assert Path(report.folder).is_relative_to(temporary)
    assert report.hashes == hashes
    assert (temporary / f"waste-cache-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    assert blocker.read_text() == "not a folder"
    assert set((ROOT / "waste" / "kernels").rglob("*.nb?")) == beside
    again = report_of(start_hashing(*NAMES, **where))
    assert again.cache_hits == len(NAMES)


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"waste-cache-{os.getuid()}"
    folder.mkdir(mode=0o700)
    assert _jit._temporary_cache() == folder
    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        _jit._temporary_cache()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(PermissionError):
        _jit._temporary_cache()


def test_without_any_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise PermissionError

    monkeypatch.setattr(_jit, "_user_cache", refuse)
    monkeypatch.setattr(_jit, "_temporary_cache", refuse)
    assert _jit.cache_folder.__wrapped__() is None


def test_damaged_files_are_compiled_again(tmp_path: Path, hashes: dict[str, str]) -> None:
    folder = Path(run(tmp_path).folder)
    files = [path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert len(files) == 2 * len(NAMES)
    for path in files:
        path.write_bytes(path.read_bytes()[: 100 if path.suffix == ".nbc" else 3])
    damaged = run(tmp_path)
    assert (damaged.cache_hits, damaged.hashes) == (0, hashes)
    run(tmp_path)
    mended = run(tmp_path)
    assert (mended.cache_hits, mended.hashes) == (len(NAMES), hashes)


def test_two_processes_may_compile_into_one_cold_folder(tmp_path: Path, hashes: dict[str, str]) -> None:
    both = [start_hashing(*NAMES, WASTE_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    reports = [report_of(process) for process in both]
    assert reports[0].hashes == reports[1].hashes == hashes
    assert run(tmp_path).cache_hits == len(NAMES)


def test_folders_that_nobody_used_for_a_month_are_removed(tmp_path: Path) -> None:
    now = time.time()
    for name, days in (("kernels-old", 31), ("kernels-recent", 29), ("other", 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("compiled")
        os.utime(tmp_path / name, (now, now - days * 24 * 3600))
    folder = tmp_path / "kernels-current"
    folder.mkdir()
    _jit.remove_unused(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels-current", "kernels-recent", "other"]


def test_numba_settings_of_the_application_stay() -> None:
    assert os.environ.get("NUMBA_CACHE_DIR", "") == _jit.numba.config.CACHE_DIR


def test_preparing_a_set_tells_its_progress_and_is_done_once(compiled: dict[str, Kernel]) -> None:
    told: list[tuple[str, int]] = []

    def progress(phase: str, done: int) -> None:
        told.append((phase, done))

    prepare(load_kernels("numba"), progress)
    # Before that, if the cache was empty, how far the compiling child was.
    assert told[-len(compiled) - 1 :] == [("loading kernels", done) for done in range(len(compiled) + 1)]
    told.clear()
    prepare(load_kernels("numpy"), progress)
    assert told == []


CALLED_OFF = """
import time
from waste.kernels import load_kernels, prepare

class CalledOff(Exception):
    pass

calls = []
def progress(phase, done):
    calls.append(time.monotonic())
    if len(calls) == 5:
        raise CalledOff

try:
    prepare(load_kernels("numba"), progress)
except CalledOff:
    print(round(time.monotonic() - calls[0], 1) < 5.0)
"""


def test_compiling_can_be_called_off_at_once(tmp_path: Path) -> None:
    assert output_of(start_python("-c", CALLED_OFF, WASTE_CACHE_DIR=str(tmp_path))).strip() == "True"


def test_a_kernel_called_with_other_types_is_an_error(compiled: dict[str, Kernel]) -> None:
    wide = np.zeros(8)
    with pytest.raises(TypeError, match="No matching definition"):
        compiled["exponential"](wide, wide)


def test_a_kernel_that_came_with_its_caller_has_one_signature_too(compiled: dict[str, Kernel]) -> None:
    wide = np.zeros((1, 8))
    with pytest.raises(TypeError, match="No matching definition"):
        compiled["activate"](wide, wide, 0, 1.0, 1.0, 0, 8)

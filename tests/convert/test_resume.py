"""A conversion that was cut short goes on where it stopped, and comes to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.convert.conversions import TINY_K3, contents, convert, options
from waste.convert import durable
from waste.convert.converter import Converter
from waste.convert.jobs import StoppedError
from waste.convert.workspace import UNFINISHED
from waste.errors import DamagedError, InputError, ModelError, WasteError
from waste.io.source import open_source

ROOT = Path(__file__).parents[2]


class EnoughError(Exception):
    """Raised by a test to end a conversion."""


def stop_after(out: Path, units: int, **changes: object) -> None:
    """Convert until so many units are done."""
    ledger = out / UNFINISHED / "ledger.jsonl"

    def progress(what: str, done: int, total: int) -> None:
        if ledger.exists() and ledger.read_bytes().count(b"\n") >= units:
            raise EnoughError

    with pytest.raises(EnoughError):
        convert(TINY_K3, out, jobs=1, layers=3, progress=progress, **changes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_killed_at_thirty_points(tmp_path: Path) -> None:
    arguments = ["-m", "tests.convert.kill_conversions", str(tmp_path / "c"), "30", "7"]
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    killed, runs = map(int, result.stdout.split())
    assert killed == 30
    assert runs >= 2


def test_what_is_done_is_kept(tmp_path: Path) -> None:
    convert(TINY_K3, tmp_path / "whole", layers=3)
    stop_after(tmp_path / "c", 4)
    kept = tmp_path / "c" / "experts-L1.bin"
    before = kept.stat().st_mtime_ns, kept.stat().st_ino
    done = convert(TINY_K3, tmp_path / "c", layers=3)
    assert done.resumed >= 4
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == before
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_an_unfinished_one_shows_and_does_not_open(tmp_path: Path) -> None:
    stop_after(tmp_path / "c", 3)
    assert (tmp_path / "c" / UNFINISHED).is_dir()
    with pytest.raises(ModelError, match=UNFINISHED):
        open_source(tmp_path / "c")


@pytest.mark.parametrize("damaged", ["experts-L1.bin", f"{UNFINISHED}/trunk.bin", f"{UNFINISHED}/codebooks-L1.bin"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_the_ledger_is_not_trusted(tmp_path: Path, damaged: str, how: str) -> None:
    convert(TINY_K3, tmp_path / "whole", layers=3)
    stop_after(tmp_path / "c", 4)
    path = tmp_path / "c" / damaged
    if how == "flipped":
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    elif how == "cut":
        os.truncate(path, 90)
    else:
        path.unlink()
    assert convert(TINY_K3, tmp_path / "c", layers=3).resumed < 6
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_a_line_cut_short_counts_as_not_written(tmp_path: Path) -> None:
    convert(TINY_K3, tmp_path / "whole", layers=3)
    stop_after(tmp_path / "c", 3)
    ledger = tmp_path / "c" / UNFINISHED / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-10])
    assert convert(TINY_K3, tmp_path / "c", layers=3).resumed >= 2
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_other_options_are_refused_and_forced_ones_begin_anew(tmp_path: Path) -> None:
    stop_after(tmp_path / "c", 3)
    before = contents(tmp_path / "c")
    for changes, words in (({"trunk": "Q4G"}, "--trunk was q8g and is now q4g"), ({"seed": 3}, "--seed was 0")):
        with pytest.raises(InputError, match=words):
            convert(TINY_K3, tmp_path / "c", layers=3, **changes)
    assert contents(tmp_path / "c") == before
    done = convert(TINY_K3, tmp_path / "c", layers=3, seed=3, is_forced=True)
    assert done.resumed == 0
    convert(TINY_K3, tmp_path / "whole", layers=3, seed=3)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_a_source_that_changed_is_refused(tmp_path: Path) -> None:
    stop_after(tmp_path / "c", 3)
    plan = tmp_path / "c" / UNFINISHED / "plan.json"
    saved = json.loads(plan.read_text())
    saved["source"]["shards"][0][2] += 1
    plan.write_text(json.dumps(saved))
    with pytest.raises(InputError, match="has changed"):
        convert(TINY_K3, tmp_path / "c", layers=3)
    plan.write_text(json.dumps(saved | {"source": {"shards": 3}}))
    with pytest.raises(DamagedError, match=r"plan\.json"):
        convert(TINY_K3, tmp_path / "c", layers=3)


@pytest.mark.parametrize("fails_at", [1, 5, 12, 24, 40])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    convert(TINY_K3, tmp_path / "whole", layers=3)
    calls = []

    def write_at(descriptor: int, data: memoryview, position: int) -> None:
        calls.append(position)
        if len(calls) >= fails_at:
            original(descriptor, data[:10], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor, data, position)

    original = durable.write_at
    monkeypatch.setattr(durable, "write_at", write_at)
    with pytest.raises(WasteError, match=r"writing .*No space left on device.*same command") as caught:
        convert(TINY_K3, tmp_path / "c", layers=3)
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    convert(TINY_K3, tmp_path / "c", layers=3)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_stop_is_soon_and_can_be_gone_on_from(tmp_path: Path) -> None:
    convert(TINY_K3, tmp_path / "whole")
    seen: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append(what)
        if what.startswith("experts"):
            converter.stop()

    converter = Converter(TINY_K3, tmp_path / "c", options(), 2, progress=progress)
    with pytest.raises(StoppedError):
        converter.run()
    assert seen[0] == "compiling kernels"
    convert(TINY_K3, tmp_path / "c")
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    refused = []

    def progress(what: str, done: int, total: int) -> None:
        if not refused:
            with pytest.raises(InputError, match="another process"):
                convert(TINY_K3, tmp_path / "c", is_forced=True)
            refused.append(what)

    convert(TINY_K3, tmp_path / "c", progress=progress)
    assert refused

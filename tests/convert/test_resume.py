"""A conversion that was cut short goes on where it stopped, and comes to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.convert.conversions import TINY_K3, contents, convert, options
from waste.convert import durable
from waste.convert.converter import Converter
from waste.convert.inventory import UNFINISHED
from waste.convert.jobs import StoppedError
from waste.convert.ledger import Ledger
from waste.convert.saved_plan import pack_plan
from waste.convert.saved_source import SavedSource
from waste.errors import DamagedError, InputError, ModelError, WasteError
from waste.io.source import open_source

ROOT = Path(__file__).parents[2]


class EnoughError(Exception):
    """Raised by a test to end a conversion."""


def stop_after(out: Path, units: int, *, source: Path = TINY_K3, **changes: object) -> None:
    """Convert until so many units are done."""
    ledger = out / UNFINISHED / "ledger.jsonl"

    def progress(what: str, done: int, total: int) -> None:
        if ledger.exists() and ledger.read_bytes().count(b"\n") >= units:
            raise EnoughError

    with pytest.raises(EnoughError):
        convert(source, out, jobs=1, layers=3, progress=progress, **changes)


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
@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "gone"])
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
    elif how == "longer":
        path.write_bytes(path.read_bytes() + b"more")
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
    source, out = tmp_path / "source", tmp_path / "c"
    shutil.copytree(TINY_K3, source)
    stop_after(out, 3, source=source)
    config, shard = source / "config.json", sorted(source.glob("*.safetensors"))[0]
    before, stamp = config.read_bytes(), shard.stat().st_mtime_ns
    config.write_text(json.dumps(json.loads(before) | {"added": 1}))
    with pytest.raises(DamagedError, match=r"plan\.json says other things"):
        convert(source, out, layers=3)
    config.write_bytes(before)
    os.utime(shard, ns=(stamp, stamp + 1))
    with pytest.raises(InputError, match=r"has changed .*its time stamp differs: .* copied or restored"):
        convert(source, out, layers=3)
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(InputError, match=r"has changed .*it had [0-9,]+ bytes, and has [0-9,]+\)"):
        convert(source, out, layers=3)


def edit_plan(out: Path, edit: Callable[[dict[str, Any]], object], *, is_sealed: bool) -> None:
    """Change the plan, with a checksum of its own or with the old one."""
    path = out / UNFINISHED / "plan.json"
    content = json.loads(path.read_text())
    edit(content["plan"])
    path.write_bytes(pack_plan(content["plan"]) if is_sealed else json.dumps(content, separators=(",", ":")).encode())


def test_a_plan_is_not_trusted(tmp_path: Path) -> None:
    """Whatever of it changes is seen: by its checksum, and where that fits, by comparing it with the source."""
    convert(TINY_K3, tmp_path / "whole", layers=3)
    stop_after(tmp_path / "c", 2)
    plan = tmp_path / "c" / UNFINISHED / "plan.json"
    before = plan.read_bytes()

    def move(plan: dict[str, Any]) -> None:
        name = next(
            name for name in plan["source"]["tensors"] if name.endswith("layers.1.block_sparse_moe.gate.weight")
        )
        plan["source"]["tensors"][name][3] += 64

    def swap(plan: dict[str, Any]) -> None:
        places = plan["source"]["banks"]["2"]["places"]
        places[0], places[1] = places[1], places[0]

    for edit in (move, swap):
        for is_sealed, words in ((False, "is damaged, or another version"), (True, "says other things")):
            edit_plan(tmp_path / "c", edit, is_sealed=is_sealed)
            with pytest.raises(DamagedError, match=rf"plan\.json {words}"):
                convert(TINY_K3, tmp_path / "c", layers=3)
            plan.write_bytes(before)
    convert(TINY_K3, tmp_path / "c", layers=3)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    "source",
    [
        None,
        [],
        {"shards": 3},
        {"shards": [["..", 1, 1]]},
        {"shards": [["../x.safetensors", 1, 1]]},
        {"shards": [["a.safetensors", 1e400, 1]]},
        {"shards": [["a.safetensors", 10**30, 1]]},
        {"tensors": [["x"]]},
        {"tensors": {"x": ["F32", [2], 0, 0, 1 << 62]}},
        {"tensors": {"x": ["F32", [2], 99, 0, 8]}},
        {"tensors": {"x": ["F99", [2], 0, 0, 8]}},
        {"tensors": {"x": ["F32", [2], 0, 0, 12]}},
        {"tensors": {"x": [["F32"], [2], 0, 0, 8]}},
        {"banks": {"x": {}}},
        {"banks": {"1": {"parts": [["w1.weight", "F32", [2]]], "lengths": [8], "places": [[0, -8]]}}},
        {"banks": {"1": {"parts": [["w1.weight", "F32", [2]]], "lengths": [8], "places": [[0, 1e400]]}}},
        {"config": 3},
    ],
    ids=str,
)
def test_a_plan_of_nonsense(tmp_path: Path, source: Any) -> None:
    saved = SavedSource.of(TINY_K3, open_source(TINY_K3)).as_dict()
    changed = saved | source if isinstance(source, dict) else source
    with pytest.raises(DamagedError, match=r"plan\.json is damaged"):
        SavedSource.from_dict(TINY_K3, changed, where=tmp_path / "plan.json")


@pytest.mark.parametrize(
    "line",
    [
        '{"unit":"bank 5","checksums":[Infinity]}',
        '{"unit":"bank 1","checksums":[1e400]}',
        '{"unit":"bank 1","checksums":{"a":1}}',
        '{"unit":3,"checksums":[1]}',
        '{"reclaimed":["a"]}',
        "[" * 100_000,
        "9" * 10_000,
        "3",
        '"unit"',
        "\xff",
    ],
    ids=lambda line: line[:30],
)
def test_lines_of_nonsense_count_as_not_written(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).add_unit("trunk outside", [1, 2])
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    ledger = Ledger(path)
    ledger.add_unit("bank 2", [3])
    for each in (ledger, Ledger(path)):
        assert each.units == {"trunk outside": [1, 2], "bank 2": [3]}
        assert each.reclaimed == set()


def test_a_ledger_without_bounds_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "ledger.jsonl").open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(DamagedError, match=r"ledger\.jsonl has 8,589,934,592 bytes"):
        Ledger(tmp_path / "ledger.jsonl")


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
        if "experts" in what:
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

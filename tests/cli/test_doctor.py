"""`waste doctor`: what it prints, whatever the platform lacks, and that it leaves no file behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.commands import ROOT, Call, assert_one_line, finish, start
from waste import disk
from waste.cli.doctor import _as_object, _as_text
from waste.doctor import checkup
from waste.io.files import FileSet
from waste.presets import preset_names

KEYS = {
    "memory": {"physical_bytes", "cgroup_bytes", "address_space_bytes", "usable_bytes", "auto_bytes"},
    "cores": {"usable", "present"},
    "processor": {"name", "features", "paths"},
    "bandwidth": {"one_core_bytes_per_s", "all_cores_bytes_per_s"},
    "disk": {"folder", "filesystem", "free_bytes", "temporary", "direct_io", "sparse", "file_bytes", "block_bytes"}
    | {"bytes_per_s", "depths", "problem"},
    "system": {"huge_pages", "memlock_bytes", "open_files", "uvloop"},
    "versions": {"waste", "python", "system", "numpy", "numba", "llvmlite", "uvloop"},
}
PRESET_KEYS = {"name", "fits", "why_not", "ram_bytes", "total_bytes", "bytes_per_token", "trunk_hit_rate"} | {
    "expert_hit_rate",
    "seconds_per_token",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "DEPTH_S", 0.01)
    monkeypatch.setattr(checkup, "MEMORY_S", 0.01)
    monkeypatch.setattr(disk, "SCRATCH_BYTES", disk.LEAST_SCRATCH_BYTES)


def test_keys_that_scripts_rely_on(call: Call) -> None:
    value = call("doctor", "demo", "--json").json
    assert set(value) == {*KEYS, "model"}
    assert {part: set(value[part]) for part in KEYS} == KEYS
    assert value["memory"]["auto_bytes"] == value["memory"]["usable_bytes"] // 8 * 7
    assert value["cores"]["usable"] >= 1
    assert value["processor"]["name"]
    assert value["disk"]["temporary"] is False
    assert value["disk"]["folder"].endswith("demo")
    assert [each["depth"] for each in value["disk"]["depths"]] == [1, 2, 4, 8, 16]
    assert value["disk"]["bytes_per_s"] == value["disk"]["depths"][3]["bytes_per_s"] > 0
    model = value["model"]
    assert set(model) == {"model", "recommended", "presets"}
    assert [each["name"] for each in model["presets"]] == preset_names()
    for each in model["presets"]:
        assert set(each) == PRESET_KEYS
        assert each["seconds_per_token"] == pytest.approx(each["bytes_per_token"] / value["disk"]["bytes_per_s"])
    assert model["recommended"] == "auto"


def test_the_table_for_people(call: Call) -> None:
    out = call("doctor", "demo").out
    for words in ("--ram auto takes", "usable of", "GB/s by one core", "at random places of the model's files", "GiB"):
        assert words in out
    assert "16 at once" in out
    assert "say little; --path DIR" in out, "the demo is too small to measure by"
    head, *rows = [line.split() for line in out.splitlines()[-2 - len(preset_names()) : -1]]
    assert head == ["preset", "RAM", "takes", "a", "token", "reads", "seconds", "fits"]
    assert [row[0] for row in rows] == preset_names()
    assert {row[-1] for row in rows} == {"yes"}
    assert out.endswith("take --preset auto\n")
    assert max(map(len, out.splitlines())) <= 160


def test_another_folder_is_measured_and_left_as_it_was(call: Call, tmp_path: Path) -> None:
    value = call("doctor", "demo", "--path", str(tmp_path), "--json").json
    assert (value["disk"]["temporary"], value["disk"]["problem"]) == (True, None)
    assert value["disk"]["file_bytes"] == disk.LEAST_SCRATCH_BYTES
    assert value["model"]["recommended"] == "auto"
    assert list(tmp_path.iterdir()) == []


def test_without_a_model_the_current_folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value = call("doctor", "--json").json
    assert value["model"] is None
    assert value["disk"]["folder"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_no_failure(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 20))
    value = call("doctor", "demo", "--path", str(tmp_path), "--json").json
    assert "1,048,576 bytes are free" in value["disk"]["problem"]
    assert (value["disk"]["depths"], value["disk"]["bytes_per_s"]) == ([], None)
    assert value["model"]["presets"][0]["seconds_per_token"] is None
    assert value["model"]["recommended"] == "auto"
    assert "unknown: " in call("doctor", "demo", "--path", str(tmp_path)).out
    assert list(tmp_path.iterdir()) == []


def test_refused_direct_reads(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSet, "_open_direct", lambda files, path: False)
    arguments = ("doctor", "--path", str(tmp_path))
    assert call(*arguments, "--json").json["disk"]["direct_io"] is False
    out = call(*arguments).out
    assert "direct reads       refused" in out
    assert "through the page cache" in out


def test_what_cannot_be_examined(call: Call, tmp_path: Path) -> None:
    assert_one_line(call("doctor", "--path", str(tmp_path / "nowhere")), 2, "there is no such folder")
    assert call("doctor", str(tmp_path)).code == 2


def test_a_platform_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr(checkup.facts.os, "sysconf")
    monkeypatch.setattr(checkup.facts.os, "cpu_count", lambda: None)
    monkeypatch.setattr("waste.machine.cgroup_limit_bytes", lambda root: None)
    monkeypatch.setattr(checkup, "processor", lambda: None)
    monkeypatch.setattr(checkup, "measure_bandwidth", lambda cores, **how: None)
    found = checkup.examine(None, tmp_path, check=lambda: None, progress=lambda *told: None, root=tmp_path)
    value = json.loads(json.dumps(_as_object(found, None)))
    assert {part: set(value[part]) for part in KEYS} == KEYS
    assert value["memory"]["physical_bytes"] is None
    lines = dict(line.split("  ", 1) for line in _as_text(found, None).splitlines() if not line.startswith(" "))
    for name in ("processor", "kernels", "memory is read at", "huge pages", "locked memory", "open files"):
        assert lines[name].strip() == "unknown"
    assert lines["memory"].strip().startswith("unknown; control group unknown, address space unknown; ")


BARE = """
import mmap, os, sys
for name in ("O_DIRECT", "preadv", "pread", "posix_fadvise", "sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("resource", "fcntl", "termios", "uvloop"):
    sys.modules[name] = None
from waste import disk
from waste.cli.app import execute
disk.SCRATCH_BYTES = disk.LEAST_SCRATCH_BYTES
sys.exit(execute(["doctor", "demo", "--path", sys.argv[1]]))
"""


def test_a_bare_platform(tmp_path: Path) -> None:
    """As on Windows: no direct or positional reads, no limits, no fcntl."""
    run = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "direct reads       refused" in done.stdout
    assert list(tmp_path.iterdir()) == []


TELLING = """
import sys
from waste.cli import main, progress
class Telling(progress.ProgressDisplay):
    def __call__(self, what, done, total):
        print(done, file=sys.stderr, flush=True)
progress.ProgressDisplay = Telling
from waste.doctor import checkup
checkup.DEPTH_S = 100
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")
def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    process = start("doctor", "--path", str(tmp_path), program=("-c", TELLING))
    assert process.stderr is not None
    for line in process.stderr:
        if line == b"1\n":  # the disk comes next
            break
    process.send_signal(signal.SIGINT)
    result = finish(process, timeout_s=30)
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []

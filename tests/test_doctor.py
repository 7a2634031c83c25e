"""What `waste doctor` finds out, on machines that are made up."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.model.configs import KIMI_K3
from tests.test_machine import MOUNT_V2, V2, Tree, mounted
from waste.convert.published import config_bundle
from waste.doctor import bandwidth, facts, processor
from waste.doctor.advice import Prospect, recommend, weigh_presets
from waste.doctor.bandwidth import measure_bandwidth
from waste.forecast import Forecast
from waste.model.bundle import ModelBundle, load_bundle
from waste.presets import preset_names

ROOT = Path(__file__).parent.parent
MIB, GIB = 1 << 20, 1 << 30


def go_on() -> None:
    """Nobody wants to stop."""


@pytest.fixture
def k3(tmp_path: Path) -> ModelBundle:
    (tmp_path / "config.json").write_text(json.dumps(KIMI_K3), encoding="utf-8")
    return config_bundle(tmp_path / "config.json")


def test_a_control_group_and_huge_pages(tmp_path: Path) -> None:
    tree = Tree(tmp_path, cgroup="0::/a\n", mounts=mounted(MOUNT_V2, V2))
    assert facts.memory(tmp_path).cgroup == "unlimited"
    tree.v2("/a", 512 * MIB)
    assert facts.memory(tmp_path).cgroup == 512 * MIB
    assert facts.system(tmp_path).huge_pages is None
    tree.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    assert facts.system(tmp_path).huge_pages == "madvise"
    tree.write("/sys/kernel/mm/transparent_hugepage/enabled", "nonsense\n")
    assert facts.system(tmp_path).huge_pages is None


def test_a_platform_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr(facts.os, "sysconf")
    monkeypatch.setattr(facts.os, "cpu_count", lambda: None)
    monkeypatch.setattr("waste.machine.cgroup_limit_bytes", lambda root: None)
    assert facts.memory(tmp_path) == facts.Memory(None, None, None, None, 7 * GIB)
    assert facts.cores().present is None
    assert facts.system(tmp_path).memlock is None
    assert facts.filesystem(tmp_path, tmp_path).kind is None
    assert facts.filesystem(tmp_path / "nowhere", tmp_path).free is None


def test_what_is_not_limited() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 777), hard))
        assert facts.soft_limit("RLIMIT_NOFILE") == min(soft, 777)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert facts.soft_limit("RLIMIT_NOTHING") is None
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert facts.soft_limit("RLIMIT_AS") == "unlimited"


def test_the_nearest_mount_names_the_filesystem(tmp_path: Path) -> None:
    place = (tmp_path / "models").resolve()
    place.mkdir()
    mounts = f"31 23 0:40 / {place.parent} rw - xfs /dev/x rw\n32 31 0:41 / {place} rw - btrfs /dev/y rw\ngarbage\n"
    Tree(tmp_path, cgroup="", mounts=mounts)
    assert facts.filesystem(place, tmp_path).kind == "btrfs"
    assert facts.filesystem(place.parent, tmp_path).kind == "xfs"
    assert facts.filesystem(Path("/"), tmp_path).kind == "ext4"


@pytest.mark.parametrize(
    ("triple", "flags", "features", "codes", "lanes", "fused"),
    [
        ("x86_64-linux", "+avx2,+fma,+avx512vl,-sse4a", {"avx2", "fma", "avx512vl"}, "avx512vl", "avx2", "in hardware"),
        ("x86_64-linux", "+avx2,+fma,-avx512vl,+aes", {"avx2", "fma"}, "avx2", "avx2", "in hardware"),
        ("x86_64-linux", "", set(), "generic", "generic", "in software, slow"),
        ("arm64-apple-darwin", "+neon,+dotprod", {"neon", "dotprod"}, "generic", "neon", "in hardware"),
    ],
)
def test_instruction_sets(triple: str, flags: str, features: set[str], codes: str, lanes: str, fused: str) -> None:
    found = processor.describe(triple, "some", flags)
    assert set(found.features) == features
    assert found.paths == {"multiply-add": fused, "lanes": lanes, "MXFP4 codes": codes}


def test_every_feature_that_a_kernel_asks_for_is_told() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "waste" / "kernels").rglob("*.py"))
    asked = {name for source in sources for name in re.findall(r'"\+([a-z0-9-]+)" in ', source)}
    assert "avx512vl" in asked
    assert asked <= set(processor.FEATURES)


def test_memory_is_read_by_one_and_by_all() -> None:
    found = measure_bandwidth(2, room_bytes=64 * MIB, seconds=0.01, check=go_on)
    assert found is not None
    assert found.one_core > 1e6
    assert found.all_cores > 1e6
    assert measure_bandwidth(2, room_bytes=15 * MIB, seconds=0.01, check=go_on) is None


def test_memory_that_cannot_be_had_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        float32 = bandwidth.np.float32

        @staticmethod
        def ones(*arguments: object) -> object:
            raise MemoryError

    monkeypatch.setattr(bandwidth, "np", Exhausted)
    monkeypatch.setattr(bandwidth, "LATE_S", 0.1)
    assert measure_bandwidth(2, room_bytes=64 * MIB, seconds=0.01, check=go_on) is None


def test_presets_for_k3_on_a_laptop(k3: ModelBundle) -> None:
    """24 GiB, of which `auto` takes 21: more of the trunk than under `laptop`, and the larger ones do not fit."""
    found = {each.name: each for each in weigh_presets(k3, auto_bytes=21 * GIB)}
    assert list(found) == preset_names()
    assert {name for name, each in found.items() if each.why_not is None} == {"auto", "laptop", "max"}
    assert found["auto"].ram_bytes == 21 * GIB
    desktop = found["desktop"]
    assert desktop.why_not is not None
    assert desktop.total_bytes is not None
    assert f"{desktop.total_bytes - 21 * GIB:,} bytes more" in desktop.why_not
    auto, laptop = found["auto"].cost, found["laptop"].cost
    assert auto is not None
    assert laptop is not None
    assert auto.token_bytes < laptop.token_bytes
    best = recommend([*found.values()])
    assert best is not None
    assert best.name == "auto"


def test_a_machine_below_the_floor_gets_no_preset(k3: ModelBundle) -> None:
    found = {each.name: each for each in weigh_presets(k3, auto_bytes=GIB)}
    assert "below the floor" in str(found["auto"].why_not)
    assert found["auto"].cost is None
    assert found["laptop"].cost is not None
    assert recommend([*found.values()]) is None


def test_a_small_model_fits_under_every_ceiling() -> None:
    found = weigh_presets(load_bundle("demo"), auto_bytes=2 * GIB)
    assert all(each.why_not is None for each in found)
    best = recommend(found)
    assert best is not None
    assert best.name == "auto"


def prospect(name: str, cost: int, *, total: int = 1, why_not: str | None = None) -> Prospect:
    return Prospect(name, 1, total, Forecast(cost, 0.0, 0, 0.0, 0, 0), why_not)


@pytest.mark.parametrize(
    ("prospects", "wanted"),
    [
        ([prospect("laptop", 1000), prospect("server", 10)], "server"),
        ([prospect("laptop", 1000), prospect("server", 10, why_not="too large")], "laptop"),
        ([prospect("a", 1000, total=1), prospect("auto", 1005, total=9)], "auto"),
        ([prospect("a", 1000, total=1), prospect("auto", 1100, total=9)], "a"),
        ([prospect("b", 1000, total=5), prospect("a", 1001, total=7)], "b"),
        ([prospect("a", 1, why_not="no")], None),
        ([], None),
    ],
)
def test_the_cheapest_that_fits_is_recommended(prospects: list[Prospect], wanted: str | None) -> None:
    best = recommend(prospects)
    assert (best.name if best else None) == wanted

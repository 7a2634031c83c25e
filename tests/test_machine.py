"""Memory limits, read from trees of files that look like the ones of real machines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waste import machine, process
from waste.machine import (
    MemoryLimit,
    address_space_left_bytes,
    cgroup_limit_bytes,
    memory_limit,
    resident_limit,
    usable_memory_bytes,
)

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
UNLIMITED_V1 = "9223372036854771712\n"
MOUNT_V2 = "30 23 0:26 {top} {at} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_V1 = "35 31 0:32 {top} {at} rw,relatime master:3 shared:10 - cgroup cgroup rw,memory\n"
OTHER_V1 = "34 31 0:31 {top} {at} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
DISK = "23 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


class Tree:
    """A file system below a folder, with this process in the given groups."""

    def __init__(self, root: Path, *, cgroup: str, mounts: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", DISK + mounts)

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def v1(self, group: str, limit: int | str) -> None:
        self.write(f"{V1}{group}/memory.limit_in_bytes", f"{limit}\n")

    def v2(self, group: str, limit: int | str) -> None:
        self.write(f"{V2}{group}/memory.max", f"{limit}\n")

    @property
    def limit(self) -> int | None:
        return cgroup_limit_bytes(self.root)


def mounted(template: str, at: str, top: str = "/") -> str:
    return template.format(top=top, at=at)


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"/a": "max", "/a/b": 512 * MIB, "/a/b/c": "max"}, 512 * MIB),
        ({"/a": 100 * MIB, "/a/b": 512 * MIB, "/a/b/c": 900 * MIB}, 100 * MIB),
        ({"/a": 900 * MIB, "/a/b": 512 * MIB, "/a/b/c": 100 * MIB}, 100 * MIB),
        ({"/a": "max", "/a/b": "max", "/a/b/c": "max"}, None),
        ({"/a/b/c": 7 * MIB, "/a/b/c/child": 1 * MIB, "/a/sibling": 2 * MIB}, 7 * MIB),
        ({"/a": "nonsense", "/a/b": "", "/a/b/c": "-1"}, None),
        ({}, None),
    ],
)
def test_the_smallest_of_all_ancestors(tmp_path: Path, limits: dict[str, int | str], wanted: int | None) -> None:
    two = Tree(tmp_path / "v2", cgroup="0::/a/b/c\n", mounts=mounted(MOUNT_V2, V2))
    one = Tree(
        tmp_path / "v1",
        cgroup="4:memory:/a/b/c\n1:cpu,cpuacct:/elsewhere\n",
        mounts=mounted(OTHER_V1, "/sys/fs/cgroup/cpu") + mounted(MOUNT_V1, V1),
    )
    one.v1("", UNLIMITED_V1.strip())
    for group, limit in limits.items():
        two.v2(group, limit)
        one.v1(group, UNLIMITED_V1.strip() if limit == "max" else limit)
    assert two.limit == wanted
    assert one.limit == wanted


@pytest.mark.parametrize("unlimited", [UNLIMITED_V1, "9223372036854710272\n", "18446744073709551615\n"])
def test_version_1_without_a_limit(tmp_path: Path, unlimited: str) -> None:
    tree = Tree(tmp_path, cgroup="4:memory:/\n", mounts=mounted(MOUNT_V1, V1))
    tree.v1("", unlimited.strip())
    assert tree.limit is None


def test_a_group_is_stalled_beyond_high(tmp_path: Path) -> None:
    tree = Tree(tmp_path, cgroup="0::/a/b\n", mounts=mounted(MOUNT_V2, V2))
    tree.v2("/a/b", 800 * MIB)
    tree.write(f"{V2}/a/memory.high", f"{600 * MIB}\n")
    assert tree.limit == 600 * MIB


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    """A hybrid machine: version 2 is mounted without the memory controller, version 1 has it."""
    tree = Tree(
        tmp_path,
        cgroup="9:name=systemd:/\n4:cpu,memory:/job\n0::/unrelated\n",
        mounts=mounted(MOUNT_V1, V1) + mounted(MOUNT_V2, "/sys/fs/cgroup/unified"),
    )
    tree.v1("/job", 300 * MIB)
    assert tree.limit == 300 * MIB
    tree.write("/sys/fs/cgroup/unified/unrelated/memory.max", f"{200 * MIB}\n")
    assert tree.limit == 200 * MIB


def test_a_container_sees_its_part_of_the_hierarchy(tmp_path: Path) -> None:
    """Without a namespace the group has the host's name, and so has the top of the mount."""
    tree = Tree(tmp_path, cgroup="4:memory:/docker/abc/job\n", mounts=mounted(MOUNT_V1, V1, top="/docker/abc"))
    tree.v1("", 400 * MIB)
    tree.v1("/job", UNLIMITED_V1.strip())
    assert tree.limit == 400 * MIB
    tree.v1("/job", 300 * MIB)
    assert tree.limit == 300 * MIB


@pytest.mark.parametrize("top", ["/", "/docker/abc", "/../.."])
@pytest.mark.parametrize("group", ["/", "/../other"])
def test_a_group_namespace(tmp_path: Path, top: str, group: str) -> None:
    """Inside, the own group is "/", whatever the mount calls its top; outside ones are not ours to name."""
    tree = Tree(tmp_path, cgroup=f"0::{group}\n", mounts=mounted(MOUNT_V2, V2, top=top))
    tree.v2("", 400 * MIB)
    tree.write("/sys/fs/memory.max", "1\n")
    tree.write("/sys/fs/other/memory.max", "1\n")
    assert tree.limit == 400 * MIB


def test_the_mount_that_has_the_group_is_preferred(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path,
        cgroup="0::/docker/abc\n",
        mounts=mounted(MOUNT_V2, V2) + mounted(MOUNT_V2, "/mnt/other", top="/docker/other"),
    )
    tree.v2("/docker/abc", 400 * MIB)
    tree.write("/mnt/other/memory.max", "1\n")
    assert tree.limit == 400 * MIB


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    tree = Tree(tmp_path, cgroup="0::/a\n", mounts=mounted(MOUNT_V2, r"/sys/my\040groups"))
    tree.write("/sys/my groups/a/memory.max", f"{50 * MIB}\n")
    assert tree.limit == 50 * MIB


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    assert cgroup_limit_bytes(tmp_path) is None
    assert address_space_left_bytes(tmp_path, None) is None
    assert address_space_left_bytes(tmp_path, 5 * MIB) == 5 * MIB
    garbled = Tree(tmp_path, cgroup="memory\n:::\n\n0::/\n", mounts="garbage\n1 2 3\n - cgroup2\n")
    assert garbled.limit is None


def test_the_address_space_less_what_is_mapped(tmp_path: Path) -> None:
    page = machine.os.sysconf("SC_PAGE_SIZE")
    Tree(tmp_path, cgroup="", mounts="").write("proc/self/statm", "1000 200 30 4 0 50 0\n")
    assert address_space_left_bytes(tmp_path, 5000 * page) == 4000 * page
    assert address_space_left_bytes(tmp_path, 10 * page) == 0


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    physical = machine.physical_memory_bytes()
    assert 1 << 27 < physical < 1 << 50
    assert 0 < usable_memory_bytes(if_unknown=1) <= physical
    monkeypatch.setattr(machine, "address_space_limit_bytes", lambda: 1)
    assert usable_memory_bytes(if_unknown=1) == 0, "no memory left is not an unknown amount of it"


def test_the_limit_that_counts_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "physical_memory_bytes", lambda: 900 * MIB)
    monkeypatch.setattr(machine, "cgroup_limit_bytes", lambda root: None)
    monkeypatch.setattr(machine, "address_space_limit_bytes", lambda: None)
    assert memory_limit() == resident_limit() == MemoryLimit(900 * MIB, machine.RAM)
    monkeypatch.setattr(machine, "cgroup_limit_bytes", lambda root: 800 * MIB)
    assert memory_limit() == resident_limit() == MemoryLimit(800 * MIB, machine.GROUP)
    monkeypatch.setattr(machine, "address_space_limit_bytes", lambda: 1000 * MIB)
    monkeypatch.setattr(machine, "address_space_left_bytes", lambda root, limit: limit)
    few, many = (memory_limit(threads=threads) for threads in (10, 40))
    assert few is not None
    assert many is not None
    assert few.what == many.what == machine.ADDRESS_SPACE
    assert few.size > many.size, "each thread maps a stack"
    assert resident_limit() == MemoryLimit(800 * MIB, machine.GROUP)


def test_the_limit_of_this_process_is_seen() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 44, before[1]))
        assert machine.address_space_limit_bytes() == 1 << 44
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    if before[0] == resource.RLIM_INFINITY:
        assert machine.address_space_limit_bytes() is None


def test_platforms_that_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr(machine.os, "sysconf")
    monkeypatch.setattr(machine, "cgroup_limit_bytes", lambda root: None)
    assert machine.address_space_limit_bytes() is None
    assert process.major_faults() == 0
    assert usable_memory_bytes(if_unknown=77) == 77


def test_major_faults_are_counted() -> None:
    assert process.major_faults() >= 0


BARE_PLATFORM = """
import importlib, mmap, os, sys

for name in ("O_DIRECT", "preadv", "pread", "posix_fadvise", "sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in [name for name in vars(mmap) if name.startswith(("MADV_", "MAP_", "PROT_"))]:
    delattr(mmap, name)
for name in ("resource", "fcntl", "termios"):
    sys.modules[name] = None
for name in ("files", "arena", "checkpoint", "source", "backends"):
    importlib.import_module(f"waste.io.{name}")
for name in ("aiofiles", "mmap", "threads", "simulated", "hanging"):
    importlib.import_module(f"waste.io.backends.{name}")
importlib.import_module("waste.machine")
assert importlib.import_module("waste.process").peak_rss_bytes() >= 0
assert importlib.import_module("waste.process").usable_cores() >= 1
"""


def test_modules_import_where_attributes_are_missing() -> None:
    """As on Windows: no direct or positional reads, no advice to the kernel, no limits, no fcntl.

    In a process of its own: modules imported a second time would stay behind as their packages' attributes.
    """
    done = subprocess.run([sys.executable, "-c", BARE_PLATFORM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

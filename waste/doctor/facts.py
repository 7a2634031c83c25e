"""What the system says about memory, cores, limits and versions; nothing is measured here.

Files are read below a `root`, "/" but for tests. What a platform does not tell is None, "unlimited" what it does not
limit.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import waste
from waste.blueprint import DEFAULT_RAM
from waste.machine import cgroup_limit_bytes, physical_memory_bytes, usable_memory_bytes
from waste.process import usable_cores

Limit = int | Literal["unlimited"] | None
_LIBRARIES = ("numpy", "numba", "llvmlite", "uvloop")
_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. usable: the smallest of what limits this process. auto: what a budget of `auto` takes of it."""

    physical: int | None
    cgroup: Limit
    address_space: Limit
    usable: int | None
    auto: int


@dataclass(frozen=True, slots=True)
class Cores:
    """usable: this process may run on so many. present: the machine has so many."""

    usable: int
    present: int | None


@dataclass(frozen=True, slots=True)
class System:
    """huge_pages: the kernel's setting for transparent ones. memlock, open_files: soft limits, bytes and a count."""

    huge_pages: str | None
    memlock: Limit
    open_files: Limit
    has_uvloop: bool


@dataclass(frozen=True, slots=True)
class Filesystem:
    """The one a folder lies on. kind: as the system calls it, such as ext4."""

    kind: str | None
    free: int | None


def memory(root: Path) -> Memory:
    """The limits `auto` is worked out from."""
    physical = physical_memory_bytes() or None
    usable = usable_memory_bytes(if_unknown=0) or None
    has_cgroups = (root / "proc/self/cgroup").exists()
    return Memory(
        physical=physical,
        cgroup=cgroup_limit_bytes(root) or ("unlimited" if has_cgroups else None),
        address_space=soft_limit("RLIMIT_AS"),
        usable=usable,
        auto=usable_memory_bytes(if_unknown=DEFAULT_RAM) // 8 * 7,
    )


def cores() -> Cores:
    """How many there are, and how many of them are ours."""
    return Cores(usable=usable_cores(), present=os.cpu_count())


def system(root: Path) -> System:
    """What else the kernel grants."""
    return System(
        huge_pages=_huge_pages(root),
        memlock=soft_limit("RLIMIT_MEMLOCK"),
        open_files=soft_limit("RLIMIT_NOFILE"),
        has_uvloop=versions()["uvloop"] is not None,
    )


def soft_limit(name: str) -> Limit:
    """A limit of this process by its name in `resource`, which Windows has none of."""
    try:
        import resource
    except ImportError:
        return None
    number = getattr(resource, name, None)
    if number is None:
        return None
    soft, _ = resource.getrlimit(number)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def _huge_pages(root: Path) -> str | None:
    """The chosen one of a line such as `always [madvise] never`."""
    with suppress(OSError):
        for word in (root / _HUGE_PAGES).read_text(encoding="ascii", errors="replace").split():
            if word.startswith("[") and word.endswith("]"):
                return word[1:-1]
    return None


def filesystem(folder: Path, root: Path) -> Filesystem:
    """What a folder lies on; the mount with the longest path above it counts, the last where several have it."""
    best: tuple[int, str] | None = None
    text = ""
    with suppress(OSError):
        text = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    place = folder.resolve()
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        mounted = Path(fields[4].replace("\\040", " "))
        if place.is_relative_to(mounted) and (best is None or len(mounted.parts) >= best[0]):
            best = len(mounted.parts), after.split(" ")[0]
    return Filesystem(kind=best[1] if best else None, free=_free_bytes(folder))


def _free_bytes(folder: Path) -> int | None:
    import shutil

    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def versions() -> Mapping[str, str | None]:
    """By name; None for what is not installed."""
    found: dict[str, str | None] = {
        "waste": waste.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found

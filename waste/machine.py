"""How much memory the machine lets this process have: RAM, control groups, and the limit on its address space.

The files read lie under a `root`, "/" but for tests. Where a platform has none of them, no limit is found there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 has no word for "no limit": it says the largest number of whole pages, which depends on the page size.
_NO_LIMIT_BYTES = 1 << 60
KERNELS_ADDRESS_BYTES = 256 << 20
"""Loaded kernels and two of malloc's arenas: address space, hardly any of it resident."""
USUAL_THREADS = 18
_STACK_BYTES = 8 << 20
_M_ARENA_MAX = -8
_LIMIT_FILES = {"cgroup": ("memory.limit_in_bytes",), "cgroup2": ("memory.max", "memory.high")}


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What limits this process, in words for a message, and to how many bytes."""

    size: int
    what: str


RAM, GROUP = "this machine's RAM", "the memory limit of this control group"
ADDRESS_SPACE = "the limit on this process's address space (ulimit -v)"


def usable_memory_bytes(*, if_unknown: int) -> int:
    """The smallest of what limits this process; `if_unknown` where the system tells nothing."""
    limit = memory_limit()
    return if_unknown if limit is None else limit.size


def memory_limit(*, threads: int = USUAL_THREADS) -> MemoryLimit | None:
    """The smallest limit of all, with so many threads to start; None where the system tells nothing."""
    left = address_space_bytes(threads=threads)
    limits = [limit for limit in (resident_limit(), left) if limit is not None]
    return min(limits, key=lambda limit: limit.size, default=None)


def resident_limit() -> MemoryLimit | None:
    """What the machine can keep in RAM for this process; beyond it the system swaps, stalls or kills."""
    found = ((physical_memory_bytes() or None, RAM), (cgroup_limit_bytes(Path("/")), GROUP))
    limits = [MemoryLimit(size, what) for size, what in found if size is not None]
    return min(limits, key=lambda limit: limit.size, default=None)


def address_space_bytes(*, threads: int) -> MemoryLimit | None:
    """What the address space has left once so many threads, the kernels and malloc's arenas are in it, too."""
    left = address_space_left_bytes(Path("/"), address_space_limit_bytes())
    if left is None:
        return None
    return MemoryLimit(max(0, left - KERNELS_ADDRESS_BYTES - threads * _stack_bytes()), ADDRESS_SPACE)


def _stack_bytes() -> int:
    """Address space of a new thread's stack."""
    try:
        import resource  # absent on Windows
    except ImportError:
        return _STACK_BYTES
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _STACK_BYTES if limit == resource.RLIM_INFINITY else limit


def limit_arenas() -> None:
    """Under a limit on the address space, keep malloc from taking 64 MiB of it for every thread (glibc only).

    For a process of our own: it changes malloc for all of it.
    """
    if sys.platform != "linux" or address_space_limit_bytes() is None:
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def physical_memory_bytes() -> int:
    """RAM of the machine, 0 where the system does not tell."""
    if sys.platform == "win32":
        import ctypes

        kib = ctypes.c_ulonglong(0)
        ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kib))
        return kib.value * 1024
    if not hasattr(os, "sysconf"):
        return 0
    try:
        return max(0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return 0


def cgroup_limit_bytes(root: Path) -> int | None:
    """The smallest memory limit of this process's control groups, versions 1 and 2, and of all that contain them.

    Groups above what is mounted cannot be seen. `memory.high` counts: beyond it the kernel stalls who allocates.
    """
    mounts = list(_memory_mounts(root))
    limits = [
        limit
        for kind, group in _memory_groups(root)
        for folder in _folders(group, [(top, at) for mounted, top, at in mounts if mounted == kind])
        for name in _LIMIT_FILES[kind]
        if (limit := _read_limit(root / folder.relative_to("/") / name)) is not None
    ]
    return min(limits, default=None)


def address_space_limit_bytes() -> int | None:
    """The soft RLIMIT_AS of this process, None if there is none."""
    try:
        import resource  # absent on Windows
    except ImportError:
        return None
    if not hasattr(resource, "RLIMIT_AS"):
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def address_space_left_bytes(root: Path, limit: int | None) -> int | None:
    """What `limit` leaves to map: the whole of it where the system does not tell what is mapped already."""
    if limit is None:
        return None
    try:
        pages = int(_read(root / "proc/self/statm").split()[0])
    except (IndexError, ValueError):
        return limit
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _memory_groups(root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """(filesystem type, path of the group) of this process, for each version that may govern its memory."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if number == "0" and not controllers:
            yield "cgroup2", PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield "cgroup", PurePosixPath(path)


def _memory_mounts(root: Path) -> Iterator[tuple[str, PurePosixPath, PurePosixPath]]:
    """(filesystem type, group at its top, where it is mounted) of every hierarchy that may govern memory."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2" or (kinds[0] == "cgroup" and "memory" in kinds[2].split(",")):
            yield kinds[0], PurePosixPath(_unescape(fields[3])), PurePosixPath(_unescape(fields[4]))


def _folders(group: PurePosixPath, mounts: list[tuple[PurePosixPath, PurePosixPath]]) -> Iterator[PurePosixPath]:
    """The folders of `group` and of the groups that contain it. mounts: (group at the top, where it is mounted).

    If the group lies in none of them, they are what a container was given: it sees its own group as "/", or as a
    path outside, while its mount still has the name it has for the host. Then the mount itself is what governs.
    """
    inside = [(at, group.relative_to(top)) for top, at in mounts if group.is_relative_to(top)]
    inside = [(at, path) for at, path in inside if ".." not in path.parts]
    for at, path in inside or [(at, PurePosixPath()) for _, at in mounts]:
        yield at / path
        yield from (at / parent for parent in path.parents)


def _unescape(text: str) -> str:
    """Spaces and the like are octal in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _read_limit(path: Path) -> int | None:
    text = _read(path).strip()
    if not text.isdecimal() or int(text) >= _NO_LIMIT_BYTES:
        return None  # "max", no such file, or version 1's way to say so
    return int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""

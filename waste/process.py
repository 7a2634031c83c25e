"""What the operating system says about this process and its machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def peak_rss_bytes() -> int:
    """The most memory this process ever had resident, 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource  # absent on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def physical_memory_bytes() -> int:
    """RAM of the machine, 0 where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return 0
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""What the operating system says about this process."""

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


def major_faults() -> int:
    """How often this process had to wait for the disk to get a page of its own memory, 0 where nobody tells."""
    try:
        import resource  # absent on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

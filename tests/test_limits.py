"""A process that may map only so much memory plans for that, and says so where it is not enough."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is not enforced elsewhere")


def run_limited(limit: int) -> subprocess.CompletedProcess[str]:
    """The demo under RLIMIT_AS, no budget named."""
    program = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit})); "
        "sys.argv = ['waste', 'run', 'demo', 'In the beginning', '-n', '4', '--json']; "
        "runpy.run_module('waste', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_default_budget_is_what_the_limit_leaves() -> None:
    done = run_limited(1600 * MIB)
    assert done.returncode == 0, done.stderr
    stats = json.loads(done.stdout)["stats"]
    assert stats["peak_rss_bytes"] <= stats["ram_budget_bytes"] <= 1600 * MIB * 7 // 8


def test_too_little_is_refused_by_the_budget_and_not_by_the_system() -> None:
    done = run_limited(600 * MIB)
    assert done.returncode == 3, done.stderr
    assert "below the floor" in done.stderr
    assert "Traceback" not in done.stderr

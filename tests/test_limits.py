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


def run_limited(limit: int, *options: str) -> subprocess.CompletedProcess[str]:
    """The demo under RLIMIT_AS, no budget named but in the options."""
    program = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit})); "
        f"sys.argv = ['waste', 'run', 'demo', 'In the beginning', '-n', '4', '--json', *{options!r}]; "
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
    assert "(ulimit -v) leaves a budget of" in done.stderr
    assert "raise that limit" in done.stderr
    assert "--ram" not in done.stderr, "none was given, and none would help"


def test_a_budget_beyond_the_limit_is_refused_before_anything_is_allocated() -> None:
    done = run_limited(1600 * MIB, "--ram", "3GiB", "--set", "reserve=1500MiB")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1
    for words in ("(ulimit -v) leaves", "a budget of 3,221,225,472 allocates", "smaller --ram"):
        assert words in done.stderr


def test_a_budget_beyond_the_limit_does_no_harm_where_the_model_is_small() -> None:
    assert run_limited(1600 * MIB, "--preset", "laptop").returncode == 0


@pytest.mark.parametrize("backend", ["threads", "aiofiles"])
def test_more_readers_than_there_is_room_for_are_a_matter_of_the_budget(backend: str) -> None:
    done = run_limited(1600 * MIB, "--ram", "500MiB", "--set", "io.queue_depth=1000", "--set", f"io.backend={backend}")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1

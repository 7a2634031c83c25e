"""All of Kimi K3 under 2 GiB: 93 layers, 82,432 experts, published bf16 + MXFP4 layout, real headers over holes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUDGET = 2 << 30


def waste(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "waste", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs a filesystem with holes, and /proc for the true peak")
def test_the_full_shape_walks_under_two_gib(tmp_path: Path) -> None:
    model = tmp_path / "k3"
    waste("synth", str(model), "--shape", "k3", "--sparse")
    ran = json.loads(waste("run", str(model), "--ids", "1", "-n", "1", "--ram", str(BUDGET), "--json"))
    stats = ran["stats"]
    assert len(ran["ids"]) == 1
    assert stats["peak_rss_bytes"] <= BUDGET
    # A walk over the whole trunk, and sixteen experts in each of 92 layers.
    assert stats["bytes_read"]["trunk"] > 110e9
    assert stats["expert_misses"] + stats["expert_hits"] == 92 * 16

"""`waste convert`: its options, what it prints, and how it is interrupted."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.commands import GOLDEN, Call, assert_one_line, finish, start
from tests.cli.test_interrupt import telling
from tests.convert.conversions import contents

QUICK = ("--layers", "0-1", "--experts", "vq2r", "--sample", "2")


def test_it_says_what_it_made(call: Call, tmp_path: Path) -> None:
    out = str(tmp_path / "c")
    found = call("convert", "demo", out, "--experts", "mxfp4", "--trunk", "bf16", "--json").json
    assert (found["lossless"], found["experts"], found["trunk"], found["layers"]) == (True, "MXFP4", "BF16", 9)
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "c").iterdir() if path.suffix == ".bin")
    assert call("info", out, "--json").json["formats"]["experts"] == ["MXFP4"]
    assert_one_line(call("convert", "demo", out, "--experts", "mxfp4"), 2, "finished container", "--force")
    again = call("convert", "demo", out, *QUICK, "--force")
    assert again.code == 0
    assert again.out.startswith(f"{out}: ")
    assert "VQ2R experts, Q8G trunk, lossy" in again.out
    assert again.err == ""


def test_wrong_options(call: Call, tmp_path: Path) -> None:
    out = str(tmp_path / "c")
    assert_one_line(call("convert", "demo", out, "--experts", "q4"), 2, "--experts", "vq3r")
    assert_one_line(call("convert", "demo", out, "--reclaim", "off"), 2, "dry or on")
    assert_one_line(call("convert", "demo", out, "--layers", "2"), 2, "0-N")
    (tmp_path / "empty").mkdir()
    assert_one_line(call("convert", str(tmp_path / "empty"), out), 2, "empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("model", ["demo", str(GOLDEN / "tiny-k3")], ids=["demo", "tiny-k3"])
def test_a_lossless_one_gives_the_same_logits(call: Call, tmp_path: Path, model: str) -> None:
    out = str(tmp_path / "c")
    assert call("convert", model, out, "--experts", "mxfp4", "--trunk", "bf16").code == 0
    for name, path in (("a", model), ("b", out)):
        logits = str(tmp_path / f"{name}.npy")
        assert call("eval", path, "--ids", "3,17,5,99,100,44,7,250", "--logits-out", logits).code == 0
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")
def test_an_interrupted_one_can_be_gone_on_from(call: Call, tmp_path: Path) -> None:
    quick = ("--experts", "vq2r", "--sample", "2", "--trunk", "q4g")
    process = start("convert", "demo", str(tmp_path / "c"), *quick, "--jobs", "1", program=telling())
    assert process.stderr is not None
    assert any(line.startswith(b"trunk of layer 2") for line in process.stderr)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.code == 130
    assert "Traceback" not in result.err
    assert not (tmp_path / "c" / "manifest.json").exists()
    found = call("convert", "demo", str(tmp_path / "c"), *quick, "--json").json
    assert found["resumed_units"] >= 3
    assert call("convert", "demo", str(tmp_path / "whole"), *quick).code == 0
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")

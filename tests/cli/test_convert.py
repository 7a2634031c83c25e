"""`waste convert`: its options, what it prints, and how it is interrupted."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.commands import GOLDEN, Call, assert_one_line, finish, start
from tests.cli.test_interrupt import telling
from tests.convert.conversions import contents
from waste.convert.options import parse_options

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
    assert_one_line(call("convert", "demo", ""), 2, "OUT is empty")
    assert_one_line(call("convert", "", out), 2, "SRC is empty")
    (tmp_path / "empty").mkdir()
    assert_one_line(call("convert", str(tmp_path / "empty"), out), 2, "empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_it_says_what_came_of_the_options(call: Call, tmp_path: Path) -> None:
    """A model so small that none of its trunk is quantized is not called lossy for the option."""
    out = str(tmp_path / "c")
    options = (str(GOLDEN / "tiny-k3"), out, "--experts", "mxfp4", "--trunk", "q8g", "--layers", "0-1")
    assert "MXFP4 experts, F32 trunk, lossless" in call("convert", *options).out
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "experts-L1.bin").mkdir()
    told = call("convert", "demo", str(tmp_path / "d"), "--force")
    assert_one_line(told, 2, "experts-L1.bin is a folder, which no part of a container is")


def test_other_options_are_shown_as_they_are_typed() -> None:
    plain = parse_options(experts="vq3r", trunk="q8g", layers="0-3", sample=4, seed=0)
    assert plain.difference(plain.as_dict() | {"layers": None}) == "--layers was all and is now 0-3"
    assert plain.difference(plain.as_dict() | {"layers": 12}) == "--layers was 0-11 and is now 0-3"
    assert plain.difference(plain.as_dict() | {"trunk": "Q4G"}) == "--trunk was q4g and is now q8g"
    assert "\x1b" not in str(plain.difference(plain.as_dict() | {"trunk": "\x1b[31m"}))


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

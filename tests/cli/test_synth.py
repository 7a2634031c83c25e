"""`waste synth --format waste`: its options, what it prints, what it refuses, and how it is interrupted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commands import Call, assert_one_line, start
from tests.cli.test_interrupt import interrupt, telling

TINY = ("--shape", "kimi-linear", "--layers", "2", "--experts", "8")


def test_a_container_of_holes_is_described_and_runs(call: Call, tmp_path: Path) -> None:
    out = str(tmp_path / "c")
    options = (*TINY, "--format", "waste", "--experts-format", "vq4p", "--trunk-format", "q4g", "--sparse")
    made = call("synth", out, *options, "--json").json
    assert (made["format"], made["experts_format"], made["trunk_format"]) == ("waste", "VQ4P", "Q4G")
    assert made["bytes"] == sum(path.stat().st_size for path in (tmp_path / "c").iterdir() if path.suffix == ".bin")
    info = call("info", out, "--json").json
    assert (info["layout"], info["formats"]["experts"]) == ("container", ["VQ4P"])
    assert_one_line(call("synth", out, *options), 2, "exists")


def test_formats_have_defaults(call: Call, tmp_path: Path) -> None:
    done = call("synth", str(tmp_path / "c"), *TINY, "--format", "waste", "--sparse")
    assert done.code == 0
    assert done.out.endswith(" of holes\n")
    info = call("info", str(tmp_path / "c"), "--json").json
    assert info["formats"]["experts"] == ["VQ3R"]
    assert "Q8G" in info["formats"]["trunk"]
    made = call("synth", str(tmp_path / "m"), *TINY, "--sparse", "--json").json
    assert made["format"] == "checkpoint"
    assert "trunk_format" not in made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--format", "gguf"), "--format is 'gguf', expected checkpoint or waste"),
        (("--format", "waste", "--experts-format", "q4"), "--experts-format is 'q4', expected one of mxfp4, vq3r"),
        (("--format", "waste", "--trunk-format", "vq3r"), "--trunk-format is 'vq3r', expected one of bf16, q8g, q4g"),
        (("--trunk-format", "q4g"), "--trunk-format is q4g, which only a container has; give --format waste"),
        (("--format", "checkpoint", "--experts-format", "vq3r"), "which only a container has"),
    ],
)
def test_formats_that_do_not_fit_are_refused(call: Call, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    assert_one_line(call("synth", str(tmp_path / "c"), *TINY, *options), 2, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")
def test_interrupted_nothing_is_left_that_looks_whole(tmp_path: Path) -> None:
    process = start("synth", str(tmp_path / "c"), *TINY, "--format", "waste", program=telling())
    assert process.stderr is not None
    assert any(line.startswith(b"writing") for line in process.stderr)
    assert interrupt(process).code == 130
    assert not (tmp_path / "c").exists()
    assert not list(tmp_path.rglob("manifest.json"))

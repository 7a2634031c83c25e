"""What it takes to start: help must come at once, so nothing heavy may be imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, Call, finish, start

COMMANDS = ("run", "eval", "tokenize", "detokenize", "info", "plan", "presets", "doctor", "warmup", "bench")


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = "import sys, waste.cli.app; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "waste.cli.app" in loaded
    assert not loaded & {"numba", "numpy", "tiktoken", "yaml", "rich", "uvloop", "waste.engine"}


def test_help_names_every_command(call: Call) -> None:
    result = call("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert command in result.out
        assert "--json" in call(command, "--help").out


def test_no_command_shows_help_and_fails(call: Call) -> None:
    result = call()
    assert (result.code, "Usage" in result.out) == (2, True)


def test_version(call: Call) -> None:
    assert call("--version").out.startswith("waste ")


def test_help_in_a_process_of_its_own() -> None:
    assert "tokenize" in finish(start("--help")).out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_reason_to_fail(closed: str) -> None:
    command = f'"{sys.executable}" -m waste run demo hi -n 2 {closed}'
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_cannot_be_written_is_one_line() -> None:
    command = f'"{sys.executable}" -m waste run demo hi -n 2 >/dev/full'
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot write the output: No space left" in done.stderr

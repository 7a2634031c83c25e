"""What it takes to start: help must come at once, so nothing heavy may be imported for it."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.commands import ROOT, Call, finish, start

COMMANDS = ("run", "eval", "tokenize", "detokenize", "info", "plan", "presets")


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

"""Calling commands in this process."""

from __future__ import annotations

import io
import sys

import pytest

from tests.cli.commands import Call, Result
from waste.cli.app import execute


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command in this process; standard input is empty, and a pipe, unless given."""

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = execute(arguments)
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run

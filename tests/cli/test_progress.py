"""The progress bar: on a terminal only, and gone before text comes."""

from __future__ import annotations

import io
import sys
import time

import pytest

from waste.cli import progress
from waste.cli.progress import ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + 10
        while words not in self.getvalue():
            assert time.monotonic() < end, self.getvalue()
            time.sleep(0.01)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Puts a terminal in the place of stderr; not a fixture, since pytest puts its own there afterwards."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_bar_shows_the_latest_and_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with ProgressDisplay() as display:
        display("compiling kernels", 3, 22)
        terminal.wait_for("3/22")
        display.count_bytes(lambda: 3 << 20)
        display("prompt tokens", 64, 200)
        terminal.wait_for("64/200")
        terminal.wait_for("3.0 MiB read")


def test_bar_says_how_long_it_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with ProgressDisplay() as display:
        display("prompt tokens", 0, 400)
        terminal.wait_for("0/400")
        assert "left" not in terminal.getvalue()
        for done in range(1, 6):
            time.sleep(0.05)
            display("prompt tokens", done, 400)
        terminal.wait_for(" left")


def test_after_clear_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with ProgressDisplay() as display:
        display("prompt tokens", 1, 2)
        terminal.wait_for("1/2")
        display.clear()
        shown = terminal.getvalue()
        assert shown.endswith("\x1b[2K")  # the line is erased
        assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back
        display("prompt tokens", 2, 2)
    assert terminal.getvalue() == shown


def test_what_is_quick_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE_S", 60.0)
    with ProgressDisplay() as display:
        display("prompt tokens", 1, 2)
    assert terminal.getvalue() == ""


def test_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with ProgressDisplay() as display:
        display("prompt tokens", 1, 2)
        time.sleep(0.05)
    assert pipe.getvalue() == ""

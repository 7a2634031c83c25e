"""Running `waste`, in this process where that shows the same, and for real where it does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
PROMPT = "In the beginning"


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Call = Callable[..., Result]
"""`call(*arguments, stdin=b"...")` runs a command in this process."""


def start(
    *arguments: str,
    program: Sequence[str] = ("-m", "waste.cli"),
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A command in a process of its own, its output in pipes."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
    )


def finish(process: subprocess.Popen[bytes], *, timeout_s: float = 100.0) -> Result:
    """Wait for its end."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        raise
    return Result(process.returncode, out.decode(), err.decode())


def assert_one_line(result: Result, code: int, *words: str) -> None:
    """An error as it should be: this exit code, one line on stderr that says what is wrong, nothing on stdout."""
    assert (result.code, result.out) == (code, ""), result
    assert result.err.startswith("waste: "), result.err
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err

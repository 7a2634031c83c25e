"""Ctrl-C ends a command in time, whatever it is doing, and keeps the text there is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.commands import PROMPT, Result, finish, start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")

TEXT = " of the reign of the house of the LORD came unto me, saying,\n"
"""What the demo says to the prompt, greedily."""

BOUND_S = 3.0
"""A second is promised; a busy machine gets more."""

TELLING = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's `&` leaves it; it must not matter
from waste.cli import interrupt, main, progress

class Telling(progress.ProgressDisplay):
    def __call__(self, what, done, total):
        print(what, done, file=sys.stderr, flush=True)
        super().__call__(what, done, total)

progress.ProgressDisplay = Telling
{more}
main()
"""
"""The command, but it says on stderr how far it is."""


def telling(more: str = "") -> tuple[str, str]:
    return "-c", TELLING.format(more=more)


IMPORTING = ("-X", "importtime", "-m", "waste.cli")
HANGING = ("--set", "io.backend=hanging")
REGISTERED = "from waste.io.backends import hanging"
"""The backend is no user's, so somebody has to make it known."""


def wait_for(process: subprocess.Popen[bytes], words: str) -> None:
    """Until a line of stderr ends in these words."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line.decode())
        if line.decode().rstrip().endswith(words):
            return
    raise AssertionError(f"no {words!r} in {''.join(seen[-5:])}")


def interrupt(process: subprocess.Popen[bytes], *, number: int = signal.SIGINT, times: int = 1) -> Result:
    """Send the signal and wait for the end, which must come in time and without a traceback."""
    began = time.monotonic()
    for _ in range(times):
        process.send_signal(number)
        if times > 1:
            time.sleep(0.1)  # two that are pending together are one
    result = finish(process, timeout_s=30)
    took = time.monotonic() - began
    print(f"ended {took:.2f} s after the signal")
    assert took < BOUND_S
    assert "Traceback" not in result.err
    return result


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_text_so_far_is_kept(number: int, code: int) -> None:
    process = start("run", "demo", PROMPT, "-n", "2000")
    assert process.stdout is not None
    first = process.stdout.read(7).decode()  # tokens come one by one: these long before the end
    result = interrupt(process, number=number)
    assert result.code == code
    text = first + result.out
    assert text.endswith("\n")
    assert text[:-1].startswith(TEXT) or TEXT.startswith(text[:-1])
    assert result.err.count("\n") == 1
    assert "tok/s" in result.err


def test_json_so_far_is_kept() -> None:
    process = start("run", "demo", PROMPT, "-n", "2000", "--json", program=telling())
    wait_for(process, "prompt tokens 6")
    time.sleep(0.3)
    result = interrupt(process)
    assert result.code == 130
    value = json.loads(result.out)
    assert value["finish_reason"] == "interrupted"
    assert value["text"].startswith(TEXT) or TEXT.startswith(value["text"])
    assert len(value["ids"]) == value["stats"]["generated_tokens"] >= 1


def test_while_kernels_are_compiled(tmp_path: Path) -> None:
    cold = {"WASTE_CACHE_DIR": str(tmp_path)}
    process = start("run", "demo", PROMPT, program=telling(), env=cold)
    wait_for(process, "compiling kernels 0")
    assert interrupt(process) == Result(130, "", "")


def test_while_the_disk_hangs() -> None:
    process = start("run", "demo", PROMPT, *HANGING, program=telling(REGISTERED))
    wait_for(process, "prompt tokens 0")
    time.sleep(0.2)
    result = interrupt(process)
    assert (result.code, result.out) == (130, "\n")
    assert result.err.startswith("0 tokens | prompt 6 tokens, not done in ")


def test_while_the_prompt_is_fed(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT * 100)
    fed = ("--file", str(tmp_path / "prompt.txt"), "--set", "prefill.chunk=1")
    process = start("run", "demo", *fed, program=telling())
    wait_for(process, "prompt tokens 3")
    result = interrupt(process)
    assert (result.code, result.out) == (130, "\n")


def test_second_one_does_not_wait_and_no_file_is_left(tmp_path: Path) -> None:
    out = ("--logits-out", str(tmp_path / "x.npy"), "--routing-out", str(tmp_path / "x.jsonl"))
    patient = telling(f"interrupt.GRACE_S = 60\n{REGISTERED}")
    process = start("eval", "demo", "--text", PROMPT, *out, *HANGING, program=patient)
    wait_for(process, "tokens 0")
    assert list(tmp_path.iterdir())
    result = interrupt(process, times=2)
    assert (result.code, result.out) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_while_modules_are_imported() -> None:
    process = start("run", "demo", PROMPT, program=IMPORTING)
    wait_for(process, "typer.core")
    result = interrupt(process)
    assert (result.code, result.out) == (130, "")


def test_while_standard_input_is_read() -> None:
    process = start("run", "demo", program=IMPORTING, stdin=subprocess.PIPE)
    wait_for(process, "waste.model.sampling")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    # With `communicate`, standard input would be closed first.
    assert process.wait(timeout=BOUND_S) == 130
    process.communicate()

"""`waste warmup`: kernels that are compiled before anybody waits for them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Call, assert_one_line, finish, start
from waste.footprint import COMPILER_BYTES

FEW = """
from waste.cli import main, warmup
every = warmup._kernels
warmup._kernels = lambda model: [kernel for kernel in every(model) if kernel.__name__ in {names}]
main()
"""
"""The command, for kernels that compile in no time: the whole set takes half a minute."""

QUICK = FEW.format(names={"add", "combine", "multiply_sigmoid", "gate_output"})


def test_what_is_compiled_once_is_there(tmp_path: Path) -> None:
    env = {"WASTE_CACHE_DIR": str(tmp_path)}
    first = finish(start("warmup", "demo", "--json", program=("-c", QUICK), env=env)).json
    assert set(first) == {"model", "kernels", "compiled", "present", "missing", "children", "seconds", "folder"}
    assert (first["model"], first["kernels"], first["compiled"], first["present"]) == ("demo", 4, 4, 0)
    assert first["children"] >= 1
    assert Path(first["folder"]).parent == tmp_path
    again = finish(start("warmup", program=("-c", QUICK), env=env))
    assert again.out == f"0 of 4 kernels compiled, 4 were there: {first['folder']}\n"


def test_without_a_model_all_are_meant() -> None:
    from waste.cli.warmup import _kernels
    from waste.kernels.encoders import ENCODERS

    every, some = set(_kernels(None)), set(_kernels("demo"))
    assert some < every
    assert set(ENCODERS) <= every


def test_a_budget_that_no_compiler_fits(call: Call) -> None:
    assert_one_line(
        call("warmup", "demo", "--ram", "100MiB"), 3, f"compiling takes {COMPILER_BYTES:,} bytes", "raise --ram"
    )


def test_a_cache_that_cannot_be_filled_is_a_failure(tmp_path: Path) -> None:
    broken = QUICK.replace("main()", "from waste.kernels import compiling; compiling._CHILD = 'raise 1'; main()")
    result = finish(start("warmup", "demo", program=("-c", broken), env={"WASTE_CACHE_DIR": str(tmp_path)}))
    assert result.code == 1
    assert result.out.startswith("0 of 4 kernels compiled")
    assert "4 kernels could not be compiled" in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")
def test_an_interrupt_ends_it(tmp_path: Path) -> None:
    telling = """
import sys
from waste.cli import main, progress
class Telling(progress.ProgressDisplay):
    def __call__(self, what, done, total):
        print(done, file=sys.stderr, flush=True)
progress.ProgressDisplay = Telling
main()
"""
    process = start("warmup", program=("-c", telling), env={"WASTE_CACHE_DIR": str(tmp_path)})
    assert process.stderr is not None
    assert process.stderr.readline() == b"0\n"
    process.send_signal(signal.SIGINT)
    result = finish(process, timeout_s=30)
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err

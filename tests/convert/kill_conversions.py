"""Converts in child processes that are killed, again and again, until one comes to its end; says how often.

python -m tests.convert.kill_conversions OUT KILLS SEED

Children are forked from this process, which has everything imported and compiled and no threads. Half of the kills come
at a random moment, half in the middle of a random one of the writes, flushes and renames that a conversion consists of.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.convert.conversions import DEMO, options
from waste.convert import durable
from waste.convert.converter import Converter
from waste.errors import InputError
from waste.kernels.encoders import prepare_encoders


def run_child(out: Path, prepare: Callable[[], None]) -> int:
    """Fork a child that converts; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            prepare()
            Converter(DEMO, out, options(layers=3, trunk="Q4G"), 2).run()
            code = 0
        except InputError as error:
            code = 0 if "finished container" in str(error) else 1
        except Exception:  # whatever it is, the child ends here and its exit code tells
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def die_at(step: int) -> None:
    """Let this process be killed in the middle of its `step`-th write, flush or rename."""
    left = [step]

    def is_last() -> bool:
        left[0] -= 1
        return left[0] == 0

    def write_at(descriptor: int, data: memoryview, position: int) -> None:
        if is_last():
            original_write(descriptor, data[: len(data) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
        original_write(descriptor, data, position)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if is_last():
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return wrapped

    original_write = durable.write_at
    durable.write_at = write_at
    os.fsync = wrap(os.fsync)
    os.rename, os.replace, os.unlink = wrap(os.rename), wrap(os.replace), wrap(os.unlink)


def wait(pid: int) -> int:
    """The child's exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    out, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    prepare_encoders(lambda done, total: None)
    chance = random.Random(seed)
    began = time.monotonic()
    whole = out.with_name("whole")
    assert wait(run_child(whole, lambda: None)) == 0
    duration, expected = time.monotonic() - began, contents_of(whole)
    killed = runs = 0
    while killed < kills:
        if chance.random() < 0.5:
            pid = run_child(out, lambda: None)
            time.sleep(chance.uniform(0, duration))
            os.kill(pid, signal.SIGKILL)
        else:
            step = chance.randint(1, 160)
            pid = run_child(out, partial(die_at, step))
        code = wait(pid)
        assert code in (0, -signal.SIGKILL), code
        killed += code != 0
        if code == 0 or killed == kills:
            if code != 0:
                assert wait(run_child(out, lambda: None)) == 0
            assert contents_of(out) == expected
            runs += 1
            shutil.rmtree(out)
    print(killed, runs)


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()

"""The command line: `waste COMMAND ...`.

A command only parses its arguments and returns what is to be done. `main` does it, so that interrupts, broken pipes
and errors end the same way everywhere, whatever Typer makes of them. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def _open_standard_streams() -> None:
    """Streams that whoever started us closed lead nowhere; else the next file opened would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the closed one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def main() -> NoReturn:
    """The console script. Exits 0, 1 failed, 2 usage or bad input, 3 budget, 4 damaged data, 130 interrupted."""
    _open_standard_streams()
    try:
        from waste.cli.interrupt import INTERRUPTION
        from waste.machine import limit_arenas

        limit_arenas()
        INTERRUPTION.watch()
        from waste.cli.app import execute

        code = execute(sys.argv[1:])
    except KeyboardInterrupt:  # before anybody watched
        code = 130
    # All is closed by now. Python would take half a second more to take its modules and compiled kernels apart.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)

"""How a command ends that did not end well: one line on stderr and an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback

from waste.cli.interrupt import INTERRUPTION
from waste.errors import BudgetError, WasteError

DEBUG = "WASTE_DEBUG"
UNEXPECTED = 1


def report(error: BaseException) -> int:
    """Say what went wrong, in one line, and return the exit code."""
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return INTERRUPTION.exit_code
    if isinstance(error, BrokenPipeError):
        # Whoever reads our output has had enough (`waste run ... | head`), which is no failure.
        silence_stdout()
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else UNEXPECTED
    error = _cause(error)
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, WasteError):
        return _say(str(error), error.exit_code)
    # Typer's usage errors, by what they can do: their module has moved between its versions.
    format_message, code = getattr(error, "format_message", None), getattr(error, "exit_code", None)
    if callable(format_message) and isinstance(code, int):
        return _say(f"{format_message()} See `{_command_path(error)} --help`.", code)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        text = "the system refused a thread; lower compute.threads or raise its limits (ulimit -v, -u)"
        return _say(text, BudgetError.exit_code)
    if isinstance(error, MemoryError):
        return _say("out of memory; give a smaller --ram", UNEXPECTED)
    if isinstance(error, OSError) and error.filename is None:
        # No file of ours is behind it: those are translated where they are read or written.
        silence_stdout()
        return _say(f"cannot write the output: {error.strerror or error}", UNEXPECTED)
    hint = "" if os.environ.get(DEBUG) else f" ({DEBUG}=1 shows where)"
    return _say(f"unexpected {type(error).__name__}: {error}{hint}", UNEXPECTED)


def silence_stdout() -> None:
    """Let what is still buffered go nowhere, or Python would complain about the pipe as it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _cause(error: BaseException) -> BaseException:
    """The first error of a group: the others follow from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _command_path(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "waste"


def _say(message: str, code: int) -> int:
    print("waste:", " ".join(message.split()), file=sys.stderr)
    return code

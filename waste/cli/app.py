"""The Typer application: which commands there are, and how one is carried out."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import waste
from waste.cli import (
    bench,
    convert,
    doctor,
    fetch,
    info,
    perplexity,
    plan,
    presets,
    run,
    synth,
    tokenize,
    verify,
    warmup,
)
from waste.cli.eval import eval_
from waste.cli.failures import report

# Help without colours and boxes starts in half the time and reads the same in a pipe.
app = typer.Typer(name="waste", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("run")(run.run)
app.command("eval")(eval_)
app.command("perplexity")(perplexity.perplexity)
app.command("tokenize")(tokenize.tokenize)
app.command("detokenize")(tokenize.detokenize)
app.command("info")(info.info)
app.command("plan")(plan.plan)
app.command("presets")(presets.presets)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("warmup")(warmup.warmup)
app.command("synth")(synth.synth)
app.command("convert")(convert.convert)
app.command("verify")(verify.verify)
app.command("fetch")(fetch.fetch)


@app.callback(invoke_without_command=True)
def waste_(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Run Mixture-of-Experts models far larger than RAM.

    Weights stay on disk and are read as they are needed. Exit codes: 0 good, 1 failed, 2 usage or bad input, 3 memory
    budget below the floor, 4 damaged data, 130 interrupted.
    """
    if version:
        print(f"waste {waste.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def execute(arguments: Sequence[str]) -> int:
    """Parse the arguments, do what they say, and return the exit code; whatever happens, nothing is raised."""
    logging.basicConfig(format="waste: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        work = app(args=list(arguments), prog_name="waste", standalone_mode=False)
        if callable(work):
            work()
            work = 0
        sys.stdout.flush()
    except BaseException as error:
        return report(error)
    return work if isinstance(work, int) else 0

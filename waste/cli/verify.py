"""`waste verify`: whether a model's files are whole, and how far they are from others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.options import JsonOption, ModelArgument
from waste.errors import DamagedError

if TYPE_CHECKING:
    from waste.convert.compare import KindError
    from waste.convert.verify import Report

SHOWN = 100


def verify(
    model: ModelArgument,
    against: Annotated[
        str | None, typer.Option("--against", metavar="SRC", help="Also compare the weights with these, by kind.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=256, metavar="N", help="Threads [default: one a core].")
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Read all of a model and compare every checksum it has. Damage is listed, and the exit code is 4.

    So is what no checksum covers. The trunk's checksums are compared here alone: of each tensor there is one, and an
    engine, which reads rows as it needs them, has never all of it at once. With the setting `verify` it compares those
    of experts and codebooks.
    """

    def work() -> None:
        from waste.cli.interrupt import INTERRUPTION
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.convert.compare import Comparison
        from waste.convert.jobs import Jobs, StoppedError
        from waste.convert.pace import Pace
        from waste.convert.verify import Verifier
        from waste.io.source import open_source
        from waste.model.bundle import model_path
        from waste.process import usable_cores

        errors: list[KindError] = []
        with ProgressDisplay() as progress, Jobs(jobs or usable_cores()) as pool, INTERRUPTION.calls(pool.stop):
            try:
                verifier = Verifier(model_path(model), pool, progress)
                report = verifier.run()
                if against is not None and not report.damages:
                    pace = Pace(progress, report.read_bytes)
                    pace.what = "comparing"
                    errors = Comparison(verifier.source, open_source(model_path(against)), pool, pace).run()
            except StoppedError:
                raise KeyboardInterrupt from None
        if as_json:
            print_json(_described(model, report, errors))
        else:
            write_text(_as_text(model, report, errors))
        if report.damages:
            raise DamagedError(f"{model}: {len(report.damages):,} damaged, beginning with {report.damages[0]}")

    return work


def _described(model: str, report: Report, errors: list[KindError]) -> dict[str, Any]:
    return {
        "model": str(Path(model)),
        "damages": list(report.damages),
        "unprotected": list(report.unprotected),
        "bytes": report.read_bytes,
        "errors": {each.kind: {"weights": each.weights, "error": each.error} for each in errors},
    }


def _as_text(model: str, report: Report, errors: list[KindError]) -> str:
    from waste.cli.output import format_bytes, format_table

    lines = [f"damaged: {line}" for line in report.damages[:SHOWN]]
    if len(report.damages) > SHOWN:
        lines.append(f"and {len(report.damages) - SHOWN:,} more, which --json lists")
    if not report.damages:
        lines.append(f"{model}: {format_bytes(report.read_bytes)} read, nothing damaged")
    lines += [f"not protected: {line}" for line in report.unprotected[:SHOWN]]
    if len(report.unprotected) > SHOWN:
        lines.append(f"and {len(report.unprotected) - SHOWN:,} more, which --json lists")
    text = "\n".join(lines) + "\n"
    if errors:
        rows = [("kind", "weights", "error"), *((e.kind, f"{e.weights:,}", f"{e.error:.3%}") for e in errors)]
        text += format_table(rows, right=(1, 2))
    return text

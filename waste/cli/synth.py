"""`waste synth`: a checkpoint of noise at a published model's widths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from waste.cli.interrupt import INTERRUPTION
from waste.cli.options import JsonOption
from waste.errors import InputError


def synth(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to make; it must not exist.")],
    shape: Annotated[str, typer.Option("--shape", metavar="k3|kimi-linear", help="Whose widths.")],
    layers: Annotated[int | None, typer.Option("--layers", metavar="N", help="Layers [default: all].")] = None,
    experts: Annotated[int | None, typer.Option("--experts", metavar="N", help="Experts [default: all].")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="What the noise follows from.")] = 0,
    sparse: Annotated[bool, typer.Option("--sparse", help="Real headers over holes: all weights are zero.")] = False,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Write a synthetic checkpoint in the published layout, for tests and measurements.

    Noise has zero mean, so that routing varies as in a real model. The same options give the same bytes. With --sparse
    even the full K3 takes a few hundred MB of disk. Interrupted or failing, nothing is left behind.
    """

    def work() -> None:
        from waste.cli.output import format_bytes, print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.convert.shapes import SHAPES, shape_config
        from waste.convert.synth import SynthWriter

        chosen = next((known for known in SHAPES if known == shape), None)
        if chosen is None:
            raise InputError(f"--shape is {shape!r}, expected {' or '.join(SHAPES)}")
        writer = SynthWriter(shape_config(chosen, layers=layers, experts=experts), seed=seed, is_sparse=sparse)
        with ProgressDisplay() as progress, INTERRUPTION.calls(writer.stop):
            writer.write(Path(out), progress)
        if as_json:
            print_json({"out": out, "shape": chosen, "bytes": writer.total_bytes, "sparse": sparse, "seed": seed})
        else:
            kind = "holes" if sparse else "noise"
            write_text(f"{out}: {format_bytes(writer.total_bytes)} of {kind}\n")

    return work

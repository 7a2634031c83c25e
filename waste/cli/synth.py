"""`waste synth`: a checkpoint or a container of noise at a published model's widths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.options import JsonOption
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.convert.synth_folder import FolderWriter

FORMATS = ("checkpoint", "waste")
MAX_JOBS = 4
"""Threads that write: beyond these the disk is the limit, and each has a record in memory."""


def synth(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to make; it must not exist.")],
    shape: Annotated[str, typer.Option("--shape", metavar="k3|kimi-linear", help="Whose widths.")],
    layers: Annotated[int | None, typer.Option("--layers", metavar="N", help="Layers [default: all].")] = None,
    experts: Annotated[int | None, typer.Option("--experts", metavar="N", help="Experts [default: all].")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="What the noise follows from.")] = 0,
    sparse: Annotated[bool, typer.Option("--sparse", help="Real headers over holes: all weights are zero.")] = False,
    layout: Annotated[
        str, typer.Option("--format", metavar="checkpoint|waste", help="As published, or a .waste container.")
    ] = "checkpoint",
    experts_format: Annotated[
        str | None,
        typer.Option(
            "--experts-format",
            metavar="mxfp4|vq3r|vq4p|vq2r",
            help="How a container's experts are stored, as in `convert --experts` [default: vq3r].",
        ),
    ] = None,
    trunk_format: Annotated[
        str | None,
        typer.Option(
            "--trunk-format",
            metavar="bf16|q8g|q4g",
            help="How the rest of a container is stored, as in `convert --trunk` [default: q8g].",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Write a synthetic model, for tests and measurements: a checkpoint in the published layout, or a container.

    Noise has zero mean, so that routing varies as in a real model. The same options give the same bytes. With --sparse
    even the full K3 takes a few hundred MB of disk. OUT is there when it is whole; interrupted on a slow disk, the
    hidden folder beside it that it grew in may be left.
    """

    def work() -> None:
        from waste.cli.interrupt import INTERRUPTION
        from waste.cli.output import format_bytes, print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.convert.shapes import SHAPES, shape_config

        chosen = next((known for known in SHAPES if known == shape), None)
        if chosen is None:
            raise InputError(f"--shape is {shape!r}, expected {' or '.join(SHAPES)}")
        formats = _formats(layout, experts_format, trunk_format)
        writer = _writer(shape_config(chosen, layers=layers, experts=experts), formats, seed, sparse)
        with ProgressDisplay() as progress, INTERRUPTION.calls(writer.stop):
            writer.write(Path(out), progress)
        if as_json:
            found = {"out": out, "shape": chosen, "bytes": writer.total_bytes, "sparse": sparse, "seed": seed}
            print_json({**found, "format": layout, **(formats or {})})
        else:
            kind = "holes" if sparse else "noise"
            write_text(f"{out}: {format_bytes(writer.total_bytes)} of {kind}\n")

    return work


def _formats(layout: str, experts: str | None, trunk: str | None) -> dict[str, str] | None:
    """The names of a container's formats, None for a checkpoint. Raises InputError for what does not fit."""
    from waste.convert.options import EXPERTS, TRUNKS, parse_format

    if layout not in FORMATS:
        raise InputError(f"--format is {layout!r}, expected {' or '.join(FORMATS)}")
    if layout == "waste":
        return {
            "experts_format": parse_format("--experts-format", experts or "vq3r", EXPERTS),
            "trunk_format": parse_format("--trunk-format", trunk or "q8g", TRUNKS),
        }
    for option, value in (("--experts-format", experts), ("--trunk-format", trunk)):
        if value is not None:
            raise InputError(f"{option} is {value}, which only a container has; give --format waste with it")
    return None


def _writer(raw: dict[str, Any], formats: dict[str, str] | None, seed: int, is_sparse: bool) -> FolderWriter:
    from waste.convert.synth import SynthWriter
    from waste.convert.synth_container import ContainerWriter
    from waste.process import usable_cores

    if formats is None:
        return SynthWriter(raw, seed=seed, is_sparse=is_sparse)
    return ContainerWriter(
        raw,
        experts=formats["experts_format"],
        trunk=formats["trunk_format"],
        seed=seed,
        is_sparse=is_sparse,
        jobs=min(MAX_JOBS, usable_cores()),
    )

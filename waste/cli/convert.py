"""`waste convert`: a published checkpoint as a container that is smaller, and faster to read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.options import JsonOption
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.convert.converter import Conversion


# Longer than a function should be: Typer wants every option here.
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The checkpoint's folder, or `demo`.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The container's folder, or one to go on with.")],
    experts: Annotated[
        str, typer.Option("--experts", metavar="mxfp4|vq3r|vq4p|vq2r", help="How experts are stored.")
    ] = "vq3r",
    trunk: Annotated[str, typer.Option("--trunk", metavar="bf16|q8g|q4g", help="How the rest is stored.")] = "q8g",
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="0-N", help="Only the first layers, for tests [default: all].")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=256, metavar="N", help="Threads [default: one a core].")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="N", help="Experts a layer that codebooks are fitted to.")
    ] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="What the choice of them follows from.")] = 0,
    reclaim: Annotated[
        str | None,
        typer.Option("--reclaim", metavar="dry|on", help="Name, or delete, each shard of SRC when it is used up."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Remove what OUT holds of another container, and begin anew.")
    ] = False,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Convert a checkpoint into a container.

    The same options give the same bytes, however many jobs. A conversion that was interrupted goes on where it stopped
    when the same command is given again; until the end OUT holds a folder called UNFINISHED, and no manifest. Anything
    else in OUT is refused; with --force the files of another container or conversion make way, and nothing else does.
    """

    def work() -> None:
        from waste.cli.interrupt import INTERRUPTION
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.convert.converter import Converter
        from waste.convert.jobs import StoppedError
        from waste.convert.options import parse_options
        from waste.convert.reclaim import MODES
        from waste.model.bundle import model_path
        from waste.process import usable_cores

        for name, given in (("SRC", source), ("OUT", out)):
            if not given:
                raise InputError(f"{name} is empty; expected a folder's name, such as . for this one")
        if reclaim is not None and reclaim not in MODES:
            raise InputError(f"--reclaim is {reclaim!r}, expected {' or '.join(MODES)}")
        converter = Converter(
            model_path(source),
            Path(out),
            parse_options(experts=experts, trunk=trunk, layers=layers, sample=sample, seed=seed),
            jobs or usable_cores(),
            reclaim=reclaim,
            is_forced=force,
        )
        if not as_json:
            converter.tell = lambda line: write_text(f"{line}\n")
        with ProgressDisplay() as progress:
            converter.progress = progress
            try:
                with INTERRUPTION.calls(converter.stop):
                    done = converter.run()
            except StoppedError:
                progress.clear()
                command = "the same command without --force" if force else "the same command"
                print(f"waste: interrupted; {command} goes on where this one stopped", file=sys.stderr)
                raise KeyboardInterrupt from None
        found = _describe(done, out)
        if as_json:
            print_json(found)
        else:
            write_text(_as_text(found))

    return work


def _describe(done: Conversion, out: str) -> dict[str, Any]:
    layout = done.layout
    return {
        "out": out,
        "bytes": layout.total_bytes,
        "experts": layout.options.experts if layout.banks else None,
        "trunk": "/".join(layout.trunk_formats),
        "layers": layout.config.num_hidden_layers,
        "lossless": layout.is_lossless,
        "seconds": round(done.seconds, 3),
        "resumed_units": done.resumed,
        "units": len(layout.units()),
        "reclaimed": list(done.reclaimed),
    }


def _as_text(found: dict[str, Any]) -> str:
    from waste.cli.output import format_bytes

    quality = "lossless" if found["lossless"] else "lossy"
    return (
        f"{found['out']}: {format_bytes(found['bytes'])}, {found['experts'] or 'no'} experts, {found['trunk']} trunk, "
        f"{quality}; {found['seconds']:,.1f} s\n"
    )

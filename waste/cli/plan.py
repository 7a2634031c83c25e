"""`waste plan`: who gets how much of the memory, before anything is allocated, and what a token then costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.options import (
    ExpertsOption,
    JsonOption,
    PresetOption,
    RamOption,
    SetOption,
    TrunkOption,
    resolve_settings,
)
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.blueprint import Blueprint
    from waste.forecast import Forecast
    from waste.model.bundle import ModelBundle
    from waste.settings import Settings

ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Plan from a config.json alone, without weights.")
]
DiskOption = Annotated[
    str | None,
    typer.Option("--disk", metavar="RATE", help="The disk's rate a second, such as 2GB [default: measured]."),
]


SweepOption = Annotated[bool, typer.Option("--sweep", help="Every split of the RAM between trunk and expert cache.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png", help="The sweep as a picture; takes the extra `plot`.")
]

_RARE = ("temporaries", "reserve")
"""Parts of which there is nothing to say while they are empty."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A plan, what a token costs under it, and the same with a GiB more; disk_bytes_per_s None: not known."""

    drawn: Blueprint
    now: Forecast
    more: Forecast
    disk_bytes_per_s: float | None


def plan(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A model's folder, or `demo`.")] = None,
    config: ConfigOption = None,
    disk: DiskOption = None,
    sweep: SweepOption = False,
    plot: PlotOption = None,
    preset: PresetOption = None,
    ram: RamOption = None,
    trunk: TrunkOption = None,
    experts: ExpertsOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Show how a model would use a memory budget, the least it needs, and what a token costs.

    With --sweep: what it costs under every split between trunk and expert cache, --trunk and --experts aside.

    Bytes a token are those of one session decoding, once the caches have filled: the trunk's are exact, the experts'
    suppose that every expert is equally likely.
    """

    def work() -> None:
        from waste.blueprint import draw
        from waste.cli.output import print_json, write_text
        from waste.forecast import forecast, with_more_ram
        from waste.opening import check_names

        settings = resolve_settings(preset, ram, trunk, experts, assignments)
        check_names(settings)
        bundle = _bundle(model, config)
        drawn = draw(bundle, settings, is_elsewhere=config is not None)
        if plot is not None and not sweep:
            raise InputError("--plot draws a sweep; add --sweep")
        if sweep:
            _show_sweep(drawn, settings, _rate(disk, bundle), plot, as_json=as_json)
            return
        outlook = Outlook(drawn, forecast(drawn), forecast(with_more_ram(drawn, settings)), _rate(disk, bundle))
        if as_json:
            print_json(_as_object(outlook))
        else:
            write_text(_as_text(outlook))

    return work


def _show_sweep(drawn: Blueprint, settings: Settings, rate: float | None, plot: Path | None, *, as_json: bool) -> None:
    from waste.cli.output import format_bytes, print_json, write_text
    from waste.cli.sweep import as_objects, as_picture, as_text
    from waste.sweep import sweep

    budget = drawn.plan.budget_bytes
    splits = sweep(drawn, settings)
    if plot is not None:
        title = f"{drawn.bundle.path.name}, {format_bytes(budget)}, context {drawn.shape.context:,}"
        picture = as_picture(splits, title)
        try:
            plot.write_bytes(picture)
        except OSError as error:
            raise InputError(f"writing {plot}: {error.strerror}") from error
    if as_json:
        print_json({"model": str(drawn.bundle.path), "budget_bytes": budget, "sweep": as_objects(splits, rate)})
    else:
        write_text(as_text(splits, rate))


def _bundle(model: str | None, config: str | None) -> ModelBundle:
    """The model to plan: a folder's, or what a config.json describes. Raises InputError unless exactly one is given."""
    from waste.convert.published import config_bundle
    from waste.model.bundle import load_bundle

    if (model is None) == (config is None):
        found = "neither is given" if model is None else "both are given"
        raise InputError(f"what to plan is a MODEL or a --config config.json; {found}, give one of them")
    if model is not None:
        return load_bundle(model)
    assert config is not None
    return config_bundle(Path(config))


def _rate(disk: str | None, bundle: ModelBundle) -> float | None:
    """Bytes a second as told, else measured on the model's own files, else None."""
    from waste.disk import measure_rate
    from waste.settings import parse_size

    if disk is None:
        return measure_rate(bundle.source.paths)
    try:
        rate = parse_size(disk.removesuffix("/s"))
    except ValueError:
        rate = 0
    if rate <= 0:
        raise InputError(f"--disk is {disk!r}, expected a rate a second such as 2GB or 500MiB")
    return float(rate)


def _as_object(outlook: Outlook) -> dict[str, Any]:
    drawn, now, more = outlook.drawn, outlook.now, outlook.more
    plan, rate = drawn.plan, outlook.disk_bytes_per_s
    return {
        "model": str(drawn.bundle.path),
        "floor_bytes": plan.floor_bytes,
        "budget_bytes": plan.budget_bytes,
        "total_bytes": plan.total_bytes,
        "parts": dict(plan.parts),
        "context": drawn.shape.latents[1],
        "chunk": drawn.sizes.chunk,
        "sessions": drawn.sizes.sessions,
        "tiles": len(drawn.layout.placements),
        "pinned_tiles": plan.pinned_tiles,
        "ring_slots": plan.ring_slots,
        "expert_slots": plan.expert_slots,
        "record_bytes": plan.record_bytes,
        "cut": dict(plan.cut),
        "bytes_per_token": dict(now.bytes_by_kind),
        "cold_expert_bytes_per_token": now.cold_expert_bytes,
        "trunk_hit_rate": now.trunk_hit_rate,
        "expert_hit_rate": now.expert_hit_rate,
        "disk_bytes_per_s": rate,
        "seconds_per_token": None if rate is None else now.seconds(rate),
        "next_gib": {
            "bytes_per_token": dict(more.bytes_by_kind),
            "seconds_per_token": None if rate is None else more.seconds(rate),
        },
    }


def _as_text(outlook: Outlook) -> str:
    from waste.cli.output import format_bytes, format_table
    from waste.sched.plan import floor_bytes

    drawn = outlook.drawn
    plan = drawn.plan
    notes = {
        "pinned": f"{plan.pinned_tiles} of {len(drawn.layout.placements)} tiles of trunk, read once",
        "ring": f"{plan.ring_slots} slots for the other tiles",
        "experts": f"{plan.expert_slots:,} slots of {format_bytes(plan.record_bytes)}",
        "latents": f"context of {drawn.shape.latents[1]:,}",
        "state": f"{drawn.sizes.sessions} sessions" if drawn.sizes.sessions > 1 else "1 session",
        "scratch": f"{drawn.sizes.chunk} prompt tokens at once",
        "temporaries": "what the numpy kernels allocate as they compute",
        "reserve": "for what the caller holds",
    }
    for name, wished in plan.cut.items():
        part = "ring" if name == "trunk" else name
        notes[part] += f"; --{name} wished for {format_bytes(wished)}, the budget leaves no more"
    parts = {name: size for name, size in plan.parts.items() if size or name not in _RARE}
    rows = [[name, f"{size:,}", format_bytes(size), notes.get(name, "")] for name, size in parts.items()]
    sums = [("total", plan.total_bytes), ("budget", plan.budget_bytes), ("floor", plan.floor_bytes)]
    compiling = "what compiling the kernels takes, in a process of its own, before anything is allocated"
    notes = {"floor": compiling if plan.floor_bytes > floor_bytes(drawn.demand) else ""}
    rows += [[name, f"{size:,}", format_bytes(size), notes.get(name, "")] for name, size in sums]
    return format_table([["part", "bytes", "", ""], *rows], right=(1, 2)) + "\n" + _costs(outlook)


def _costs(outlook: Outlook) -> str:
    """Bytes and seconds a token, now and with a GiB more."""
    from waste.cli.output import format_bytes, format_table

    now, more, rate = outlook.now, outlook.more, outlook.disk_bytes_per_s
    hits = {"trunk": now.trunk_hit_rate, "experts": now.expert_hit_rate}
    rows = [["a token reads", "now", "with 1 GiB more", "hit rate"]]
    for kind, size in now.bytes_by_kind.items():
        share = f"{hits[kind]:.1%}" if kind in hits else ""
        rows.append([kind, format_bytes(size), format_bytes(more.bytes_by_kind[kind]), share])
    if rate is not None:
        at = f"seconds, {rate / 1e9:.2f} GB/s"
        rows.append([at, f"{now.seconds(rate):.3g}", f"{more.seconds(rate):.3g}", ""])
    return format_table(rows, right=(1, 2, 3))

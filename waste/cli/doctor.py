"""`waste doctor`: what this machine can do for the engine, and which preset makes use of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.interrupt import INTERRUPTION
from waste.cli.options import JsonOption

if TYPE_CHECKING:
    from waste.doctor.checkup import Checkup, Disk
    from waste.doctor.facts import Limit

UNKNOWN = "unknown"


def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A model's folder, or `demo`: also weighs the presets.")
    ] = None,
    path: Annotated[
        str | None,
        typer.Option("--path", metavar="DIR", help="Measure DIR's disk, by a temporary file [default: the model's]."),
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Say what this machine has: memory, cores, instruction set, disk, limits; for a model, which preset to take.

    The disk is measured by random reads of a record's size, several at once: of the model's own files, or else of a
    temporary file of at most 256 MiB, here or in DIR, which is always removed.
    """

    def work() -> None:
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.doctor.checkup import examine
        from waste.model.bundle import load_bundle

        bundle = None if model is None else load_bundle(model)
        interrupted: list[bool] = []

        def check() -> None:
            if interrupted:
                raise KeyboardInterrupt

        with ProgressDisplay() as progress, INTERRUPTION.calls(lambda: interrupted.append(True)):
            folder = None if path is None else Path(path)
            found = examine(bundle, folder, check=check, progress=progress, root=Path("/"))
        if as_json:
            print_json(_as_object(found, model))
        else:
            write_text(_as_text(found, model))

    return work


def _as_object(found: Checkup, model: str | None) -> dict[str, Any]:
    memory, system, processor, bandwidth = found.memory, found.system, found.processor, found.bandwidth
    return {
        "memory": {
            "physical_bytes": memory.physical,
            "cgroup_bytes": memory.cgroup,
            "address_space_bytes": memory.address_space,
            "usable_bytes": memory.usable,
            "auto_bytes": memory.auto,
        },
        "cores": asdict(found.cores),
        "processor": {
            "name": processor.name if processor else None,
            "features": list(processor.features) if processor else [],
            "paths": dict(processor.paths) if processor else {},
        },
        "bandwidth": {
            "one_core_bytes_per_s": bandwidth.one_core if bandwidth else None,
            "all_cores_bytes_per_s": bandwidth.all_cores if bandwidth else None,
        },
        "disk": _disk_object(found.disk),
        "system": {
            "huge_pages": system.huge_pages,
            "memlock_bytes": system.memlock,
            "open_files": system.open_files,
            "uvloop": system.has_uvloop,
        },
        "versions": dict(found.versions),
        "model": None if model is None else _advice_object(found, model),
    }


def _disk_object(disk: Disk) -> dict[str, Any]:
    sweep = disk.sweep
    return {
        "folder": str(disk.folder),
        "filesystem": disk.filesystem.kind,
        "free_bytes": disk.filesystem.free,
        "temporary": disk.is_temporary,
        "direct_io": sweep.is_direct if sweep else None,
        "sparse": sweep.is_sparse if sweep else None,
        "file_bytes": sweep.file_bytes if sweep else None,
        "block_bytes": sweep.block_bytes if sweep else None,
        "bytes_per_s": disk.bytes_per_s,
        "depths": [asdict(rate) for rate in sweep.rates] if sweep else [],
        "problem": disk.problem,
    }


def _advice_object(found: Checkup, model: str) -> dict[str, Any]:
    rate, best = found.disk.bytes_per_s, found.recommended
    return {
        "model": model,
        "recommended": best.name if best else None,
        "presets": [
            {
                "name": each.name,
                "fits": each.why_not is None,
                "why_not": each.why_not,
                "ram_bytes": each.ram_bytes,
                "total_bytes": each.total_bytes,
                "bytes_per_token": each.cost.token_bytes if each.cost else None,
                "trunk_hit_rate": each.cost.trunk_hit_rate if each.cost else None,
                "expert_hit_rate": each.cost.expert_hit_rate if each.cost else None,
                "seconds_per_token": each.cost.seconds(rate) if each.cost and rate else None,
            }
            for each in found.prospects
        ],
    }


def _as_text(found: Checkup, model: str | None) -> str:
    from waste.cli.output import format_table

    processor, bandwidth, system = found.processor, found.bandwidth, found.system
    has = (f"waste {found.versions['waste']}", f"Python {found.versions['python']}")
    rows = [
        ("memory", _memory_line(found)),
        ("cores", f"{found.cores.usable} usable of {found.cores.present or UNKNOWN}"),
        ("processor", f"{processor.name}: {' '.join(processor.features) or 'no vectors'}" if processor else UNKNOWN),
        ("kernels", "; ".join(f"{of} {way}" for of, way in processor.paths.items()) if processor else UNKNOWN),
        ("memory is read at", _bandwidth_line(bandwidth.one_core, bandwidth.all_cores) if bandwidth else UNKNOWN),
        *_disk_rows(found.disk),
        ("huge pages", system.huge_pages or UNKNOWN),
        ("locked memory", _limit(system.memlock, size=True)),
        ("open files", _limit(system.open_files, size=False)),
        ("uvloop", found.versions["uvloop"] or "not installed: asyncio's own loop runs"),
        ("versions", ", ".join([*has, *(f"{name} {found.versions[name] or 'none'}" for name in ("numpy", "numba"))])),
        ("system", found.versions["system"] or UNKNOWN),
    ]
    return format_table(rows) + ("" if model is None else "\n" + _advice(found, model))


def _memory_line(found: Checkup) -> str:
    from waste.cli.output import format_bytes

    memory = found.memory
    physical = UNKNOWN if memory.physical is None else format_bytes(memory.physical)
    limits = (
        f"control group {_limit(memory.cgroup, size=True)}, address space {_limit(memory.address_space, size=True)}"
    )
    return f"{physical}; {limits}; --ram auto takes {format_bytes(memory.auto)}"


def _bandwidth_line(one: float, every: float) -> str:
    return f"{one / 1e9:.1f} GB/s by one core, {every / 1e9:.1f} GB/s by all"


def _limit(value: Limit, *, size: bool) -> str:
    from waste.cli.output import format_bytes

    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    return format_bytes(value) if size else f"{value:,}"


def _disk_rows(disk: Disk) -> list[tuple[str, str]]:
    from waste.cli.output import format_bytes

    free = UNKNOWN if disk.filesystem.free is None else format_bytes(disk.filesystem.free)
    rows = [("disk", f"{disk.folder}: {disk.filesystem.kind or UNKNOWN}, {free} free")]
    sweep = disk.sweep
    if sweep is None or not sweep.rates:
        return [*rows, ("it is read at", f"{UNKNOWN}: {disk.problem or 'the files are empty'}")]
    whose = "a temporary file" if disk.is_temporary else "the model's files"
    how = "past the page cache" if sweep.is_direct else "through the page cache, direct reads are refused here"
    rows.append(("direct reads", "granted" if sweep.is_direct else "refused"))
    rows.append(("it is read at", f"{format_bytes(sweep.block_bytes)} at random places of {whose}, {how}"))
    for rate in sweep.rates:
        rows.append(("", f"{rate.depth:>2} at once  {rate.bytes_per_s / 1e9:5.2f} GB/s"))
    if sweep.is_sparse:
        rows.append(("", "the files are mostly holes, which no disk reads: the rate says nothing about it"))
    elif sweep.file_bytes < sweep.block_bytes * 16:
        rows.append(("", f"files of {format_bytes(sweep.file_bytes)} say little; --path DIR measures by a larger one"))
    return rows


def _advice(found: Checkup, model: str) -> str:
    """The presets as a table, and in the last line the one to take."""
    from waste.cli.output import format_bytes, format_table

    rate, best = found.disk.bytes_per_s, found.recommended
    rows = [["preset", "RAM", "takes", "a token reads", "seconds", "fits"]]
    for each in found.prospects:
        costs = ["", "", ""]
        if each.cost is not None and each.total_bytes is not None:
            seconds = f"{each.cost.seconds(rate):.3g}" if rate else UNKNOWN
            costs = [format_bytes(each.total_bytes), format_bytes(each.cost.token_bytes), seconds]
        rows.append([each.name, format_bytes(each.ram_bytes), *costs, each.why_not or "yes"])
    table = format_table(rows, right=(1, 2, 3, 4))
    if best is None:
        return table + f"no preset fits {model} on this machine\n"
    return table + f"take --preset {best.name}\n"

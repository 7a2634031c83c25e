"""Everything `waste doctor` finds out, in one object: what the system says, what was measured, what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from waste.disk import Sweep, measure_depths, scratch_file
from waste.doctor import facts
from waste.doctor.advice import Prospect, recommend, weigh_presets
from waste.doctor.bandwidth import Bandwidth, measure_bandwidth
from waste.doctor.processor import Processor, processor
from waste.errors import InputError, WasteError
from waste.model.bundle import ModelBundle
from waste.settings import Settings

Progress = Callable[[str, int, int], None]

DEPTHS = (1, 2, 4, 8, 16)
DEPTH_S = 0.4
"""Seconds of reading at each queue depth."""
MEMORY_S = 0.3


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of `folder`. sweep: None where it could not be measured, for which `problem` has the reason.

    is_temporary: a file made for it was read, not a model's own.
    """

    folder: Path
    filesystem: facts.Filesystem
    is_temporary: bool
    sweep: Sweep | None
    problem: str | None

    @property
    def bytes_per_s(self) -> float | None:
        """At the queue depth that presets use."""
        return self.sweep.at_depth(Settings().io_queue_depth) if self.sweep else None


@dataclass(frozen=True, slots=True)
class Checkup:
    """bandwidth, processor: None where they could not be told. prospects: a model's presets, empty without one."""

    memory: facts.Memory
    cores: facts.Cores
    processor: Processor | None
    bandwidth: Bandwidth | None
    disk: Disk
    system: facts.System
    versions: Mapping[str, str | None]
    prospects: Sequence[Prospect]

    @property
    def recommended(self) -> Prospect | None:
        return recommend(self.prospects)


def examine(
    bundle: ModelBundle | None, folder: Path | None, *, check: Callable[[], None], progress: Progress, root: Path
) -> Checkup:
    """Look at the machine; a few seconds of measuring.

    The disk measured is that of `folder` if there is one, by a temporary file, else that of the model, by its own
    files, else that of the current folder. `check()` comes from any thread while measuring, and may raise to call it
    off: no file is left then, either. Raises InputError for a folder that is none.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"--path {folder}: there is no such folder")
    memory, cores = facts.memory(root), facts.cores()
    progress("examining", 0, 3)
    found = processor()
    bandwidth = measure_bandwidth(cores.usable, room_bytes=memory.auto, seconds=MEMORY_S, check=check)
    progress("examining", 1, 3)
    disk = _disk(bundle, folder, check, root)
    progress("examining", 2, 3)
    prospects = [] if bundle is None else weigh_presets(bundle, auto_bytes=memory.auto)
    progress("examining", 3, 3)
    return Checkup(memory, cores, found, bandwidth, disk, facts.system(root), facts.versions(), prospects)


def _disk(bundle: ModelBundle | None, folder: Path | None, check: Callable[[], None], root: Path) -> Disk:
    own = bundle.source.paths if bundle is not None and folder is None else ()
    place = folder or (bundle.path if bundle is not None else Path.cwd())
    sweep, problem = None, None
    try:
        with ExitStack() as stack:
            paths = own or (stack.enter_context(scratch_file(place, check=check)),)
            sweep = measure_depths(paths, depths=DEPTHS, seconds=DEPTH_S, check=check)
    except WasteError as error:
        problem = str(error)
    return Disk(place, facts.filesystem(place, root), not own, sweep, problem)

"""Checkpoint to container: a layer at a time, each durable before the next begins, resumed where it stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from waste.convert import reclaim
from waste.convert.banks import BankConverter
from waste.convert.durable import OutputFile, write_file, writing
from waste.convert.jobs import Jobs
from waste.convert.layout import ContainerLayout, Unit
from waste.convert.ledger import Ledger
from waste.convert.options import ConvertOptions
from waste.convert.pace import Pace, Progress
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.convert.saved_source import SavedSource
from waste.convert.small_files import TOKENIZER_NAME, checksums, small_files
from waste.convert.trunk import convert_entry
from waste.convert.workspace import Workspace
from waste.errors import DamagedError, InputError, WasteError
from waste.io.manifest import TrunkEntry
from waste.io.names import legible
from waste.io.source import open_source
from waste.kernels.encoders import prepare_encoders

SLACK_BYTES = 64 << 20
"""Room beside the container: manifest, tables, what a file system needs itself."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was done. resumed: units taken over from before; reclaimed: source files deleted, or that would be."""

    layout: ContainerLayout
    seconds: float
    resumed: int
    reclaimed: tuple[str, ...]


@dataclass(slots=True)
class Converter:
    """One conversion of `source` into `out`. `tell` gets lines about reclaimed shards; `stop` ends `run` soon.

    reclaim: None, "dry" or "on". is_forced: whatever `out` holds of another conversion makes way.
    """

    source: Path
    out: Path
    options: ConvertOptions
    jobs: int
    reclaim: str | None = None
    is_forced: bool = False
    progress: Progress = lambda what, done, total: None
    tell: Callable[[str], None] = lambda line: None
    _jobs: Jobs | None = field(default=None, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Let `run` raise `StoppedError`; from any thread, or a signal's handler."""
        self._is_stopped = True
        if self._jobs is not None:
            self._jobs.stop()

    def run(self) -> Conversion:
        """Convert, or go on converting.

        Raises InputError for what is refused before anything is written, ModelError, DamagedError and ReadError for
        a source that cannot be converted, WasteError where writing fails, StoppedError after `stop`.
        """
        began = monotonic()
        workspace = Workspace(self.out)
        self._refuse_nesting()
        workspace.look(is_forced=self.is_forced)
        is_resumed = workspace.is_unfinished and not self.is_forced
        source = workspace.resume(self.options, self.source) if is_resumed else self._open()
        if is_resumed and workspace.is_finished:  # it was stopped between its last two steps
            layout = ContainerLayout(source, self.options)
            workspace.close_finished(layout)
            return Conversion(layout, monotonic() - began, len(layout.units()), ())
        ledger = workspace.ledger() if is_resumed else None
        source.check_shards(ledger.reclaimed if ledger else set())
        if is_resumed and not source.missing():
            source.compare(self._open(), where=workspace.plan_path)
        layout = ContainerLayout(source, self.options)
        files = small_files(self.source, layout.config.vocab_size)
        if is_resumed:
            workspace.refuse_others(layout, files)
        if self.reclaim:
            reclaim.refuse_unsafe(source, self.out, layout, has_tokenizer=TOKENIZER_NAME in files)
        self._check_room(layout, source, ledger)
        with workspace.held(), Jobs(self.jobs) as jobs:
            self._jobs = jobs
            if self._is_stopped:
                jobs.stop()
            if not is_resumed:
                workspace.clear(is_forced=self.is_forced)
                workspace.begin(self.options, source)
            for name, content in files.items():
                write_file(self.out / name, content)
            run = _Run(workspace, layout, source, workspace.ledger(), jobs, self)
            resumed = run.verify()
            run.convert()
            workspace.finish(layout, layout.manifest(run.checksums() | {"files": checksums(files)}))
        return Conversion(layout, monotonic() - began, resumed, tuple(run.reclaimed))

    def _open(self) -> SavedSource:
        return SavedSource.of(self.source, open_source(self.source))

    def _refuse_nesting(self) -> None:
        source, out = self.source.resolve(), self.out.resolve()
        if source == out or source in out.parents or out in source.parents:
            raise InputError(f"{self.out} and {self.source} lie inside each other; choose another folder")

    def _check_room(self, layout: ContainerLayout, source: SavedSource, ledger: Ledger | None) -> None:
        """Raise InputError if the container cannot fit on the disk."""
        folder = self.out
        while not folder.exists():
            folder = folder.parent
        with writing(folder):
            device, free = folder.stat().st_dev, shutil.disk_usage(folder).free
        freed: dict[int, int] = {}
        if self.reclaim == "on":
            for number, path in enumerate(source.paths):
                if path.exists() and path.stat().st_dev == device:
                    freed[number] = path.stat().st_size
        done = ledger.units if ledger else ()
        need = SLACK_BYTES + reclaim.room_needed(layout, freed, done)
        if free < need:
            raise InputError(f"{self.out} needs {need:,} bytes more and the disk has {free:,} free; make room")


class _Run:
    """A conversion with everything decided: units that are done are verified, the others converted."""

    def __init__(
        self,
        workspace: Workspace,
        layout: ContainerLayout,
        source: SavedSource,
        ledger: Ledger,
        jobs: Jobs,
        converter: Converter,
    ) -> None:
        self._workspace = workspace
        self._layout = layout
        self._source = source
        self._ledger = ledger
        self._jobs = jobs
        self._converter = converter
        self._uses = reclaim.last_uses(layout)
        self._pace = Pace(converter.progress, sum(map(layout.source_bytes, layout.units())))
        self._done: dict[str, list[int]] = {}
        self.reclaimed: list[str] = []

    def verify(self) -> int:
        """How many units are done, and prove to be. Raises DamagedError if one is damaged whose source is gone."""
        claimed = [unit for unit in self._layout.units() if unit.name in self._ledger.units]

        def check(unit: Unit, buffer: ReadBuffer) -> bool:
            self._converter.progress("verifying what is done", claimed.index(unit), len(claimed))
            return self._workspace.is_intact(self._layout, unit, self._ledger.units[unit.name])

        for unit, is_intact in zip(claimed, self._jobs.map(check, claimed), strict=True):
            if is_intact:
                self._done[unit.name] = self._ledger.units[unit.name]
                self._pace.skip(self._layout.source_bytes(unit))
                continue
            gone = self._ledger.reclaimed & set(self._shard_names(unit))
            if gone:
                raise DamagedError(
                    f"{self._workspace.out}: {unit.name} is damaged, and {sorted(gone)[0]}, which it was made of, "
                    "was reclaimed; fetch that again and begin anew with --force"
                )
        return len(self._done)

    def convert(self) -> None:
        """All units that are not done yet, in order."""
        prepare_encoders(self._tell_compiling)
        for unit in self._layout.units():
            if unit.name not in self._done:
                self._convert(unit)
            self._reclaim(unit)

    def _tell_compiling(self, done: int, total: int) -> None:
        self._jobs.check()
        self._converter.progress("compiling kernels", done, total)

    def checksums(self) -> dict[str, object]:
        """Those of the trunk's entries by name and of the codebooks by number, for the manifest."""
        trunk: dict[str, int] = {}
        books: list[int] = []
        for unit in self._layout.units():
            found = self._done[unit.name]
            if unit.kind == "trunk":
                trunk |= {entry.name: value for entry, value in zip(self._layout.entries(unit), found, strict=True)}
            else:
                assert unit.layer is not None
                books += found[self._layout.tables.banks[unit.layer].records :]
        return {"trunk": trunk, "codebooks": books}

    def _convert(self, unit: Unit) -> None:
        place = "outside the layers" if unit.layer is None else f"of layer {unit.layer}"
        kind = "trunk"
        if unit.kind == "bank":
            kind = "experts" if self._layout.vectors is None else "codebooks and experts"
        self._pace.begin(f"{kind} {place}", kind)
        files = SourceFiles(self._source.paths, self._layout.files(unit))
        try:
            if unit.kind == "trunk":
                found = self._convert_trunk(unit, files)
            else:
                assert unit.layer is not None
                bank = BankConverter(self._workspace, self._layout, unit.layer, files, self._jobs, self._pace.advance)
                found = bank.convert()
        finally:
            files.close()
        self._ledger.add_unit(unit.name, found)
        self._done[unit.name] = found

    def _convert_trunk(self, unit: Unit, files: SourceFiles) -> list[int]:
        output = OutputFile(self._workspace.trunk_path(), size=self._layout.trunk_bytes, is_new=False)

        def write(entry: TrunkEntry, buffer: ReadBuffer) -> int:
            tensor = self._layout.tables.tensors[entry.name]
            try:
                return convert_entry(
                    entry, tensor, files, buffer, lambda data, at: output.write(data.data, at), self._advance
                )
            except WasteError as error:
                raise _naming(error, legible(entry.name)) from error

        try:
            found = self._jobs.map(write, self._layout.entries(unit))
            output.sync()
        finally:
            output.close()
        return found

    def _advance(self, count: int) -> None:
        self._jobs.check()
        self._pace.advance(count)

    def _shard_names(self, unit: Unit) -> list[str]:
        return [self._source.shards[number].name for number in self._layout.files(unit)]

    def _reclaim(self, unit: Unit) -> None:
        """Name or delete the shards that no later unit reads; before that, read back what was made of them."""
        mode = self._converter.reclaim
        names = reclaim.names(unit, self._uses, self._source) if mode else []
        for name in names:
            path = self._source.folder / name
            if mode == "on" and path.exists():
                self._prove(name)
                self._ledger.add_reclaimed(name)
                with writing(path):
                    path.unlink()
            self.reclaimed.append(name)
            self._converter.tell(f"{'deleted' if mode == 'on' else 'would delete'} {path}")

    def _prove(self, shard: str) -> None:
        """Raise DamagedError unless all that was made of this shard is on the disk as it was written."""
        for unit in self._layout.units():
            if unit.name not in self._done or shard not in self._shard_names(unit):
                continue
            if not self._workspace.is_intact(self._layout, unit, self._done[unit.name]):
                raise DamagedError(
                    f"{self._workspace.out}: {unit.name} reads back other than it was written; {shard} was kept. "
                    "Look after the disk, then give the same command again"
                )


def _naming(error: WasteError, what: str) -> WasteError:
    """The same error, with what it is about in front."""
    return type(error)(f"{what}: {error}")

"""The folder a container grows in: what marks it as unfinished, what may be taken up again, what is refused."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from waste.convert.durable import locked, move, sync_folder, write_file, writing
from waste.convert.inventory import LEDGER_NAME, LOCK_NAME, PLAN_NAME, UNFINISHED, Inventory, take_inventory
from waste.convert.layout import ContainerLayout, Unit, bank_file, pack_manifest
from waste.convert.ledger import Ledger
from waste.convert.options import ConvertOptions
from waste.convert.saved_plan import pack_plan, read_plan
from waste.convert.saved_source import SavedSource
from waste.errors import InputError, ModelError, ReadError
from waste.io.codebooks import codebook_bytes
from waste.io.container import CODEBOOKS_NAME, TRUNK_NAME, Container
from waste.io.jsonfile import open_regular, read_bounded, read_json
from waste.io.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES

ENCODING = 1
"""Changes when the same options come to give other bytes."""


class Workspace:
    """`out` and the files in it. Nothing is touched before `begin`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / UNFINISHED
        self.plan_path = self.folder / PLAN_NAME
        self.lock_path = self.folder / LOCK_NAME
        self.manifest_path = out / MANIFEST_NAME

    @property
    def is_unfinished(self) -> bool:
        """Whether a conversion began here and did not end, as far as its plan was written."""
        return self.plan_path.is_file()

    @property
    def is_finished(self) -> bool:
        return self.manifest_path.exists()

    def look(self, *, is_forced: bool) -> Inventory:
        """What `out` holds, where it may go on from there, or begin anew if `is_forced`.

        Raises InputError naming what stands in the way; nothing but the marks of a finished conversion is touched.
        """
        found = take_inventory(self.out)
        if is_forced or self.is_unfinished or found.is_fresh:
            return found
        if self.is_finished:
            if found.has_folder and not found.marks:  # it was stopped before its last step
                self.remove_marks()
            raise InputError(f"{self.out} is a finished container; choose another folder, or --force to replace it")
        raise self._refusal(found.strangers((), (LOCK_NAME, PLAN_NAME))[0])

    def refuse_others(self, layout: ContainerLayout, small: Collection[str]) -> None:
        """Raise InputError for a file in `out` that the conversion under way there, of this layout, did not write."""
        banks = [bank_file(number) for number in layout.banks]
        books = [self.codebooks_path(number).name for number in layout.banks] if layout.vectors else []
        files = {MANIFEST_NAME, TRUNK_NAME, *banks, *small, *([CODEBOOKS_NAME] if layout.vectors else ())}
        marks = {PLAN_NAME, LEDGER_NAME, LOCK_NAME, TRUNK_NAME, *banks, *books}
        strangers = take_inventory(self.out).strangers(files, marks)
        if strangers:
            raise self._refusal(strangers[0])

    def _refusal(self, name: str) -> InputError:
        return InputError(
            f"{self.out} holds {name}, which this conversion did not write; choose another folder, or --force to "
            "remove what is there of others"
        )

    def clear(self, *, is_forced: bool) -> None:
        """Remove what earlier conversions left: the manifest first, so that the rest is no container any more.

        Raises InputError if `out` has come to hold something since `look`, unless `is_forced`.
        """
        found = take_inventory(self.out)
        if not (is_forced or found.is_fresh):
            raise InputError(f"{self.out} was written to by another process meanwhile; give the same command again")
        with writing(self.out):
            if MANIFEST_NAME in found.files:
                self.manifest_path.unlink()
                sync_folder(self.out)
            for path in [self.out / name for name in found.files] + [self.folder / name for name in found.marks]:
                if path not in (self.manifest_path, self.lock_path):
                    path.unlink()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folders, and keep other conversions out of them. Raises InputError if one is under way here."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.lock_path):
            yield

    def begin(self, options: ConvertOptions, source: SavedSource) -> None:
        """Write down what is going to be converted, and how."""
        sync_folder(self.out.parent)
        sync_folder(self.out)
        plan = {"encoding": ENCODING, "options": options.as_dict(), "source": source.as_dict()}
        write_file(self.plan_path, pack_plan(plan))

    def resume(self, options: ConvertOptions, folder: Path) -> SavedSource:
        """What the conversion began with. Raises InputError if that was another one, DamagedError for a bad plan."""
        plan = read_plan(self.plan_path)
        saved = plan.get("options")
        difference = options.difference(saved) if isinstance(saved, dict) else "its plan is damaged"
        if difference is None and plan.get("encoding") != ENCODING:
            difference = "another version of waste wrote it"
        if difference is not None:
            raise InputError(
                f"{self.out} holds an unfinished conversion, and {difference}; "
                "give the same options to go on, --force to begin anew, or another folder"
            )
        return SavedSource.from_dict(folder, plan.get("source"), where=self.plan_path)

    def ledger(self) -> Ledger:
        return Ledger(self.folder / LEDGER_NAME)

    def trunk_path(self) -> Path:
        """Where the trunk is: among the unfinished until all of it is there."""
        final = self.out / TRUNK_NAME
        return final if final.exists() else self.folder / TRUNK_NAME

    def bank_path(self, number: int) -> Path:
        return self.out / bank_file(number)

    def codebooks_path(self, number: int) -> Path:
        """The codebooks of one bank, until all are put together."""
        return self.folder / f"codebooks-L{number}.bin"

    def is_intact(self, layout: ContainerLayout, unit: Unit, checksums: list[int]) -> bool:
        """Whether what the ledger says of a unit is what the files hold."""
        found: list[int | None] = []
        for path, size, pieces in self._pieces(layout, unit):
            found += _read_checksums(path, size, pieces)
        return found == checksums

    def _pieces(self, layout: ContainerLayout, unit: Unit) -> list[tuple[Path, int, list[tuple[int, int]]]]:
        """Files, their sizes and the (offset, length) of pieces in them, in the order of the unit's checksums."""
        if unit.kind == "trunk":
            pieces = [(entry.offset, entry.end - entry.offset) for entry in layout.entries(unit)]
            return [(self.trunk_path(), layout.trunk_bytes, pieces)]
        assert unit.layer is not None
        size = layout.banks[unit.layer].header.record_bytes
        records = [(index * size, size) for index in range(layout.tables.banks[unit.layer].records)]
        found = [(self.bank_path(unit.layer), layout.bank_bytes(unit.layer), records)]
        if layout.vectors is not None:
            each = codebook_bytes(layout.vectors.entries)
            books = [(at, each) for at in range(0, layout.layer_codebook_bytes, each)]
            found.append((self.codebooks_path(unit.layer), layout.layer_codebook_bytes, books))
        return found

    def finish(self, layout: ContainerLayout, manifest: dict[str, object]) -> None:
        """Put together what is left, the manifest last, and remove the marks of the unfinished."""
        trunk = self.out / TRUNK_NAME
        if self.trunk_path() != trunk:
            move(self.trunk_path(), trunk)
        if layout.vectors is not None:
            each = layout.layer_codebook_bytes
            books = b"".join(read_bounded(self.codebooks_path(number), max_bytes=each) for number in layout.banks)
            write_file(self.out / CODEBOOKS_NAME, books)
        write_file(self.manifest_path, pack_manifest(manifest))
        self.remove_marks()

    def close_finished(self, layout: ContainerLayout) -> None:
        """Remove the marks beside a manifest that a conversion of this layout wrote before it was stopped.

        Raises InputError for another manifest, DamagedError or ModelError for files that are not as it says.
        """
        self.refuse_others(layout, Container(self.out).manifest.file_digests)
        found = read_json(self.manifest_path, max_bytes=MAX_MANIFEST_BYTES, unique_keys=True)
        expected = json.loads(pack_manifest(layout.manifest({})))
        if not isinstance(found, dict) or {**found, "checksums": {}} != expected:
            raise self._refusal(MANIFEST_NAME)
        self.remove_marks()

    def remove_marks(self) -> None:
        """The plan last: while it is there, the same command is understood."""
        marks = take_inventory(self.out).marks
        with writing(self.folder):
            for name in sorted(marks, key=lambda name: name == PLAN_NAME):
                (self.folder / name).unlink()
            self.folder.rmdir()
        sync_folder(self.out)


def _read_checksums(path: Path, size: int, pieces: list[tuple[int, int]]) -> list[int | None]:
    """CRC-32 of each piece, None for one that is not there, or for all if the file does not have this size."""
    found: list[int | None] = []
    try:
        file, found_size = open_regular(path)
        with file:
            if found_size != size:
                return [None]
            for offset, length in pieces:
                file.seek(offset)
                left, checksum = length, 0
                while left and (chunk := file.read(min(left, 4 << 20))):
                    checksum = zlib.crc32(chunk, checksum)
                    left -= len(chunk)
                found.append(None if left else checksum)
    except (OSError, ModelError, ReadError):
        return [*found, None]
    return found

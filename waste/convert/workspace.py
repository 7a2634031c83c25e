"""The folder a container grows in: what marks it as unfinished, what may be taken up again, what is refused."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waste.convert.durable import locked, move, sync_folder, write_file, writing
from waste.convert.layout import ContainerLayout, Unit, bank_file, pack_manifest
from waste.convert.ledger import Ledger
from waste.convert.options import ConvertOptions
from waste.convert.saved_source import SavedSource
from waste.convert.small_files import COPIED, SPECIALS_NAME, TOKENIZER_NAME
from waste.errors import InputError
from waste.io.codebooks import codebook_bytes
from waste.io.container import CODEBOOKS_NAME, TRUNK_NAME
from waste.io.jsonfile import read_json
from waste.io.manifest import MANIFEST_NAME

UNFINISHED = "UNFINISHED"
"""The folder inside that is there from the first to the last moment; no manifest is there before the last."""
PLAN_NAME = "plan.json"
LEDGER_NAME = "ledger.jsonl"
LOCK_NAME = "lock"
MAX_PLAN_BYTES = 256 << 20
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

    def refuse_foreign(self) -> None:
        """Raise InputError if `out` is something that no conversion made, or holds something else."""
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise InputError(f"{self.out} is no folder; choose another name for the container")
        if any(not self._is_ours(path.name) for path in self.out.iterdir()):
            strange = sorted(path.name for path in self.out.iterdir() if not self._is_ours(path.name))
            raise InputError(f"{self.out} holds {strange[0]}, which is no part of a container; choose another folder")

    @staticmethod
    def _is_ours(name: str) -> bool:
        plain = name.removesuffix(".part")
        known = (UNFINISHED, MANIFEST_NAME, TRUNK_NAME, CODEBOOKS_NAME, TOKENIZER_NAME, SPECIALS_NAME, *COPIED)
        return plain in known or (plain.startswith("experts-L") and plain.endswith(".bin"))

    def clear(self) -> None:
        """Remove what earlier conversions left: the manifest first, so that the rest is no container any more."""
        with writing(self.out):
            if self.manifest_path.exists():
                self.manifest_path.unlink()
                sync_folder(self.out)
            for path in [*self.out.iterdir(), *self.folder.iterdir()]:
                if path not in (self.folder, self.lock_path):
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
        write_file(self.plan_path, json.dumps(plan, separators=(",", ":")).encode())

    def resume(self, options: ConvertOptions, folder: Path) -> SavedSource:
        """What the conversion began with. Raises InputError if that was another one, DamagedError for a bad plan."""
        plan: Any = read_json(self.plan_path, max_bytes=MAX_PLAN_BYTES, unique_keys=False)
        plan = plan if isinstance(plan, dict) else {}
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
        for path, pieces in self._pieces(layout, unit):
            found += _read_checksums(path, pieces)
        return found == checksums

    def _pieces(self, layout: ContainerLayout, unit: Unit) -> list[tuple[Path, list[tuple[int, int]]]]:
        """Files and the (offset, length) of pieces in them, in the order of the unit's checksums."""
        if unit.kind == "trunk":
            entries = layout.entries(unit)
            return [(self.trunk_path(), [(entry.offset, entry.end - entry.offset) for entry in entries])]
        assert unit.layer is not None
        size = layout.banks[unit.layer].header.record_bytes
        records = [(index * size, size) for index in range(layout.tables.banks[unit.layer].records)]
        pieces = [(self.bank_path(unit.layer), records)]
        if layout.vectors is not None:
            each = codebook_bytes(layout.vectors.entries)
            books = [(at, each) for at in range(0, layout.layer_codebook_bytes, each)]
            pieces.append((self.codebooks_path(unit.layer), books))
        return pieces

    def finish(self, layout: ContainerLayout, manifest: dict[str, object]) -> None:
        """Put together what is left, the manifest last, and remove the marks of the unfinished."""
        trunk = self.out / TRUNK_NAME
        if self.trunk_path() != trunk:
            move(self.trunk_path(), trunk)
        if layout.vectors is not None:
            with writing(self.folder):
                books = b"".join(self.codebooks_path(number).read_bytes() for number in layout.banks)
            write_file(self.out / CODEBOOKS_NAME, books)
        write_file(self.manifest_path, pack_manifest(manifest))
        self.remove_marks()

    def remove_marks(self) -> None:
        """The plan last: while it is there, the same command is understood."""
        with writing(self.folder):
            for path in self.folder.iterdir():
                if path != self.plan_path:
                    path.unlink()
            self.plan_path.unlink(missing_ok=True)
            self.folder.rmdir()
        sync_folder(self.out)


def _read_checksums(path: Path, pieces: list[tuple[int, int]]) -> list[int | None]:
    """CRC-32 of each piece, None for one that is not there."""
    found: list[int | None] = []
    try:
        with path.open("rb") as file:
            for offset, length in pieces:
                file.seek(offset)
                left, checksum = length, 0
                while left and (chunk := file.read(min(left, 4 << 20))):
                    checksum = zlib.crc32(chunk, checksum)
                    left -= len(chunk)
                found.append(None if left else checksum)
    except OSError:
        return [*found, None]
    return found

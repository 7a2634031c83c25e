"""What of a conversion is done: one line a unit, with the checksum of every piece. It is verified, not trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from waste.convert.durable import sync_folder, writing

Checksums = list[int]


class Ledger:
    """The file `path`, read when it is made. A line that a crash cut short counts as not written.

    units: by name, the CRC-32 of each piece in order; reclaimed: source files that may be gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.units: dict[str, Checksums] = {}
        self.reclaimed: set[str] = set()
        self._length = 0
        if path.exists():
            with writing(path):
                self._read(path.read_bytes())

    def add_unit(self, name: str, checksums: Sequence[int]) -> None:
        """Durably; call it when the unit itself is."""
        self._append({"unit": name, "checksums": list(checksums)})
        self.units[name] = list(checksums)

    def add_reclaimed(self, shard: str) -> None:
        """Durably; call it before the file is deleted."""
        self._append({"reclaimed": shard})
        self.reclaimed.add(shard)

    def _read(self, content: bytes) -> None:
        for line in content.splitlines(keepends=True):
            try:
                if not line.endswith(b"\n"):
                    break
                entry = json.loads(line)
                if "unit" in entry:
                    self.units[str(entry["unit"])] = [int(value) for value in entry["checksums"]]
                else:
                    self.reclaimed.add(str(entry["reclaimed"]))
            except (ValueError, TypeError, KeyError):
                break
            self._length += len(line)

    def _append(self, entry: dict[str, object]) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        with writing(self._path):
            is_new = not self._path.exists()
            with self._path.open("r+b" if not is_new else "xb") as file:
                file.truncate(self._length)  # what a crash left of a line
                file.seek(self._length)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        if is_new:
            sync_folder(self._path.parent)
        self._length += len(line)

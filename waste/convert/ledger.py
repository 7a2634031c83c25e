"""What of a conversion is done: one line a unit, with the checksum of every piece. It is verified, not trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from waste.convert.durable import sync_folder, writing
from waste.io.jsonfile import read_bounded

Checksums = list[int]
MAX_LEDGER_BYTES = 64 << 20
"""A Kimi K3's has one megabyte."""


class Ledger:
    """The file `path`, read when it is made. A line that a crash cut short, or that is none, counts as not written.

    units: by name, the CRC-32 of each piece in order; reclaimed: source files that may be gone.

    Raises ModelError, ReadError or DamagedError for a file that cannot be read or is far too large.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.units: dict[str, Checksums] = {}
        self.reclaimed: set[str] = set()
        self._length = 0
        if path.exists():
            self._read(read_bounded(path, max_bytes=MAX_LEDGER_BYTES))

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
            if not line.endswith(b"\n"):
                break
            self._take(line)
            self._length += len(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(entry, dict):
            return
        unit, sums, shard = entry.get("unit"), entry.get("checksums"), entry.get("reclaimed")
        if isinstance(unit, str) and isinstance(sums, list) and all(type(each) is int for each in sums):
            self.units[unit] = sums
        elif isinstance(shard, str):
            self.reclaimed.add(shard)

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

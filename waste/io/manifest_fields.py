"""Typed access to one object of a manifest: every value is checked, every complaint names file and key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from waste.errors import DamagedError, WasteError
from waste.io.jsonfile import shown
from waste.io.names import MAX_NAME, is_plain, legible

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ManifestFields:
    """One JSON object of the file `path`; `where` leads to it, such as "trunk[3].".

    All methods raise DamagedError naming file and key, what was found and what was expected.
    """

    def __init__(self, path: Path, raw: object, where: str = "") -> None:
        self._path = path
        self._where = where
        if not isinstance(raw, Mapping):
            raise DamagedError(f"{path}: {where.rstrip('.') or 'the content'} is {shown(raw)}, expected an object")
        self._raw: Mapping[str, object] = raw

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._raw.get(key) is not None

    def error(self, key: str, expected: str, kind: type[WasteError] = DamagedError) -> WasteError:
        """To raise: `key` holds what it holds, and `expected` was expected."""
        found = f"is {shown(self._raw[key])}" if key in self._raw else "is missing"
        return kind(f"{self._path}: {self._where}{legible(key)} {found}, expected {expected}")

    def integer(self, key: str, *, low: int, high: int) -> int:
        """A JSON integer in [low, high]; neither true nor 1.0 is one."""
        value = self._raw.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, f"an integer from {low:,} to {high:,}")
        return value

    def exactly(self, key: str, expected: int) -> None:
        """The integer `expected`."""
        value = self._raw.get(key)
        if type(value) is not int or value != expected:
            raise self.error(key, f"{expected:,}")

    def text(self, key: str) -> str:
        """A string, printable and no longer than a name may be: messages repeat it."""
        value = self._raw.get(key)
        if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
            raise self.error(key, f"a string of at most {MAX_NAME} printable characters")
        return value

    def file_name(self, key: str, *, suffix: str) -> str:
        """The name of a file in the container's own folder."""
        name = self.text(key)
        if not is_plain(name) or not name.endswith(suffix):
            raise self.error(key, f"the name of a file in the container's folder, *{suffix}")
        return name

    def strings(self, key: str) -> list[str]:
        """A list of strings; empty where the key is missing or null."""
        values = self._raw.get(key)
        if values is None:
            return []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(key, "a list of strings")
        return values

    def checksums(self, key: str) -> tuple[int, ...]:
        """A list of CRC-32 checksums; empty where the key is missing or null."""
        values = self._raw.get(key)
        if values is None:
            return ()
        if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 1 << 32 for value in values):
            raise self.error(key, "a list of CRC-32 checksums")
        return tuple(values)

    def named_checksums(self, key: str) -> dict[str, int]:
        """A CRC-32 checksum for each of some names; empty where the key is missing or null."""
        if not self.has(key):
            return {}
        sums = self.section(key)
        return {name: sums.integer(name, low=0, high=(1 << 32) - 1) for name in sums.names()}

    def file_digests(self, key: str) -> dict[str, str]:
        """A SHA-256 in lower hexadecimal for each of some files of the folder; empty where the key is missing."""
        if not self.has(key):
            return {}
        digests = self.section(key)
        for name in digests.names():
            if not is_plain(name):
                raise DamagedError(
                    f"{self._path}: {self._where}{key} has the key {shown(name)}, "
                    "expected the name of a file in the container's folder"
                )
            if not _DIGEST.fullmatch(digests.text(name)):
                raise digests.error(name, "a SHA-256 of 64 hexadecimal digits")
        return {name: digests.text(name) for name in digests.names()}

    def shape(self, key: str, *, rank: int, high: int) -> tuple[int, ...]:
        """A list of 1 to `rank` sizes in [1, high]."""
        values = self._raw.get(key)
        if (
            not isinstance(values, list)
            or not 1 <= len(values) <= rank
            or not all(type(value) is int and 1 <= value <= high for value in values)
        ):
            raise self.error(key, f"a list of 1 to {rank} sizes from 1 to {high:,}")
        return tuple(values)

    def mapping(self, key: str) -> Mapping[str, object]:
        """The object under `key` as it is."""
        value = self._raw.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return value

    def section(self, key: str) -> ManifestFields:
        """The object under `key`."""
        return ManifestFields(self._path, self._raw.get(key), f"{self._where}{key}.")

    def sections(self, key: str) -> Iterator[ManifestFields]:
        """The objects of the list under `key`."""
        values = self._raw.get(key)
        if not isinstance(values, list):
            raise self.error(key, "a list")
        for position, value in enumerate(values):
            yield ManifestFields(self._path, value, f"{self._where}{key}[{position}].")

    def names(self) -> tuple[str, ...]:
        """The keys of this object, in file order."""
        return tuple(self._raw)

"""Where a source's weights lie, kept beside an unfinished conversion.

A resumed one goes by this table: shards that were reclaimed are gone, and the others must be those it began with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from waste.errors import DamagedError, InputError, ModelError
from waste.io.container import Container
from waste.io.expert_table import BankTable
from waste.io.extents import Extent
from waste.io.files import file_error
from waste.io.jsonfile import shown
from waste.io.manifest import MAX_BYTES
from waste.io.names import is_plain
from waste.io.safetensors import DTYPE_BITS
from waste.io.source import Bank, Part, TensorInfo, WeightSource


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the source as it was when the conversion began."""

    name: str
    size: int
    modified_ns: int

    def check(self, folder: Path) -> None:
        """Raise InputError if the file is another one by now, ModelError if it cannot be looked at."""
        path = folder / self.name
        try:
            found = path.stat()
        except OSError as error:
            raise file_error(path, error) from error
        if (found.st_size, found.st_mtime_ns) != (self.size, self.modified_ns):
            if found.st_size != self.size:
                how = f"it had {self.size:,} bytes, and has {found.st_size:,}"
            else:
                how = "its time stamp differs: it was written to, copied or restored"
            raise InputError(
                f"{path} has changed since this conversion began ({how}); convert into another folder, or begin anew "
                "with --force"
            )


class SavedSource:
    """The tables of a checkpoint whose files lie in `folder`. `shards`: in the order that `Extent.file` counts."""

    def __init__(
        self,
        folder: Path,
        shards: tuple[Shard, ...],
        config: Mapping[str, object],
        tensors: Mapping[str, TensorInfo],
        banks: Mapping[int, Bank],
        records: Mapping[int, BankTable],
    ) -> None:
        self.folder = folder
        self.shards = shards
        self.config = config
        self.tensors = tensors
        self.banks = banks
        self._records = records

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.folder / shard.name for shard in self.shards)

    def record(self, bank: int, index: int) -> tuple[Extent, ...]:
        """See `WeightSource.record`."""
        return self._records[bank].record(index)

    @staticmethod
    def of(folder: Path, source: WeightSource) -> SavedSource:
        """Take the tables of a source and note what its files are.

        Raises InputError for a container: what it holds was converted before.
        """
        shards = []
        for path in source.paths:
            try:
                found = path.stat()
            except OSError as error:
                raise file_error(path, error) from error
            shards.append(Shard(path.name, found.st_size, found.st_mtime_ns))
        if isinstance(source, Container):
            raise InputError(f"{folder} is a container; convert from the published checkpoint, whose weights are exact")
        records = {
            number: _table(bank, (source.record(number, index) for index in range(bank.records)))
            for number, bank in source.banks.items()
        }
        return SavedSource(folder, tuple(shards), source.config, dict(source.tensors), dict(source.banks), records)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "shards": [[shard.name, shard.size, shard.modified_ns] for shard in self.shards],
            "config": dict(self.config),
            "tensors": {
                name: [tensor.dtype, list(tensor.shape), tensor.extent.file, tensor.extent.offset, tensor.extent.length]
                for name, tensor in self.tensors.items()
            },
            "banks": {
                str(number): {
                    "parts": [[part.name, part.dtype, list(part.shape)] for part in bank.parts],
                    "lengths": [extent.length for extent in self.record(number, 0)],
                    "places": [
                        [value for extent in self.record(number, index) for value in (extent.file, extent.offset)]
                        for index in range(bank.records)
                    ],
                }
                for number, bank in self.banks.items()
            },
        }

    @staticmethod
    def from_dict(folder: Path, saved: Any, *, where: Path) -> SavedSource:
        """Raises DamagedError naming the file `where` if this is not what `as_dict` gives."""
        try:
            shards = tuple(_shard(*entry) for entry in saved["shards"])
            sizes = [shard.size for shard in shards]
            tensors = {
                str(name): TensorInfo(dtype, tuple(shape), _extent(sizes, dtype, shape, file, offset, length))
                for name, (dtype, shape, file, offset, length) in saved["tensors"].items()
            }
            banks, records = {}, {}
            for key, entry in saved["banks"].items():
                parts = tuple(Part(str(name), dtype, tuple(shape)) for name, dtype, shape in entry["parts"])
                bank = banks[int(key)] = Bank(len(entry["places"]), parts)
                rows = (_extents(sizes, parts, row, entry["lengths"]) for row in entry["places"])
                records[int(key)] = _table(bank, rows)
            return SavedSource(folder, shards, dict(saved["config"]), tensors, banks, records)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DamagedError(f"{where} is damaged ({error}); begin anew with --force") from error

    def missing(self) -> list[str]:
        """The shards that are not there."""
        return [shard.name for shard in self.shards if not (self.folder / shard.name).exists()]

    def check_shards(self, gone: set[str]) -> None:
        """Raise InputError or ModelError for a file that changed or is missing, unless it is among the `gone`."""
        missing = self.missing()
        for shard in self.shards:
            if shard.name not in missing:
                shard.check(self.folder)
            elif shard.name not in gone:
                raise ModelError(f"{self.folder / shard.name} is missing; expected it as when this conversion began")

    def compare(self, found: SavedSource, *, where: Path) -> None:
        """Raise DamagedError naming the file `where` if these are not the tables `found` in the source itself."""
        mine, theirs = (
            (each.shards, dict(each.config), dict(each.tensors), dict(each.banks)) for each in (self, found)
        )
        if mine != theirs or any(
            self.record(number, index) != found.record(number, index)
            for number, bank in self.banks.items()
            for index in range(bank.records)
        ):
            raise DamagedError(
                f"{where} says other things of {self.folder} than its config and headers; begin anew with --force, "
                "or convert into another folder"
            )


def _shard(name: object, size: object, modified_ns: object) -> Shard:
    """Raises ValueError."""
    if not isinstance(name, str) or not is_plain(name) or not name.endswith(".safetensors"):
        raise ValueError(f"{shown(name)} is no shard's name")
    return Shard(name, _count(size, MAX_BYTES), _count(modified_ns, MAX_BYTES))


def _extents(sizes: Sequence[int], parts: Sequence[Part], row: Any, lengths: Any) -> tuple[Extent, ...]:
    """A record's, from files and offsets in turn. Raises ValueError."""
    places = zip(parts, row[0::2], row[1::2], lengths, strict=True)
    return tuple(_extent(sizes, part.dtype, part.shape, file, offset, length) for part, file, offset, length in places)


def _extent(sizes: Sequence[int], dtype: Any, shape: Any, file: Any, offset: Any, length: Any) -> Extent:
    """Inside its file, and as long as a tensor of this type and shape is. Raises KeyError, TypeError, ValueError."""
    size = sizes[_count(file, len(sizes) - 1)]
    for each in shape:
        _count(each, MAX_BYTES)
    if 8 * _count(length, size) != math.prod(shape) * DTYPE_BITS[dtype] or _count(offset, size) + length > size:
        raise ValueError(f"a tensor of {shown(shape)} has {shown(length)} bytes at {shown(offset)}")
    return Extent(file, offset, length)


def _count(value: object, most: int) -> int:
    """An integer in [0, most]. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{shown(value)}, expected an integer up to {most:,}")
    return value


def _table(bank: Bank, records: Iterable[tuple[Extent, ...]]) -> BankTable:
    """A bank's records in columns: a K3 has half a million extents."""
    files = np.empty((bank.records, len(bank.parts)), np.int32)
    offsets = np.empty((bank.records, len(bank.parts)), np.int64)
    lengths: tuple[int, ...] = ()
    for index, record in enumerate(records):
        files[index] = [extent.file for extent in record]
        offsets[index] = [extent.offset for extent in record]
        lengths = tuple(extent.length for extent in record)
    return BankTable(bank, lengths=lengths, files=files, offsets=offsets)

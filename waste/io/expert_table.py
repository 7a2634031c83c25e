"""Banks of equal records, half a million tensors of them, as a few numpy columns.

A K3 has 494,592 routed-expert tensors. As Python objects they would take hundreds of megabytes; here each costs
twelve bytes: where it begins and in which file.
"""

from __future__ import annotations

import re
from array import array
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from waste.errors import DamagedError
from waste.io.extents import Extent
from waste.io.jsonfile import shown
from waste.io.safetensors import StoredTensor
from waste.io.source import Bank, Part

# No leading zeros, so that a name and its numbers determine each other. w1 is the gate, w3 up, w2 down.
_NAME = re.compile(
    r"(?P<prefix>.*\.|)layers\.(?P<bank>0|[1-9][0-9]{0,5})\.block_sparse_moe"
    r"\.experts\.(?P<record>0|[1-9][0-9]{0,5})\.(?P<part>w[123]\.weight(?:_packed|_scale)?)",
    re.DOTALL,
)
_PART_ORDER = [f"{w}.{kind}" for w in ("w1", "w3", "w2") for kind in ("weight", "weight_packed", "weight_scale")]


class BankTable:
    """Where every part of every record of one bank lies."""

    def __init__(
        self, bank: Bank, *, lengths: tuple[int, ...], files: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]
    ) -> None:
        """lengths: bytes of each part; files, offsets: [records, parts]."""
        self.bank = bank
        self._lengths = lengths
        self._files = files
        self._offsets = offsets
        apart = offsets - offsets[:, :1]
        self._is_alike = ((files == files[:, :1]) & (apart == apart[:1])).all(axis=1)

    def record_begin(self, index: int) -> tuple[int, int] | None:
        """See `WeightSource.record_begin`."""
        if not 0 <= index < self.bank.records:
            raise IndexError(f"record {index} of a bank of {self.bank.records}")
        if not self._is_alike[index]:
            return None
        return int(self._files[index, 0]), int(self._offsets[index, 0])

    def record(self, index: int) -> tuple[Extent, ...]:
        """The extents of one record, in the order of `bank.parts`. Raises IndexError."""
        if not 0 <= index < self.bank.records:
            raise IndexError(f"record {index} of a bank of {self.bank.records}")
        columns = zip(self._files[index].tolist(), self._offsets[index].tolist(), self._lengths, strict=True)
        return tuple(Extent(file, offset, length) for file, offset, length in columns)


class BankTableBuilder:
    """Collects the tensors of routed experts as headers are read, in any order."""

    def __init__(self) -> None:
        self._prefix: str | None = None
        self._banks: dict[int, dict[str, _Column]] = {}

    def add(self, path: Path, file: int, tensor: StoredTensor) -> bool:
        """Take `tensor` of file number `file` at `path` if it is part of a routed expert; False if it is not.

        Raises DamagedError if its type or shape is not that of the same part of the bank's other records.
        """
        match = _NAME.fullmatch(tensor.name)
        if match is None:
            return False
        prefix, bank, record, part = match.groups()
        if self._prefix is None:
            self._prefix = prefix
        elif prefix != self._prefix:
            raise DamagedError(
                f"{path}: {shown(tensor.name)} is an expert under the prefix {shown(prefix)}; "
                f"the others are under {shown(self._prefix)}"
            )
        columns = self._banks.setdefault(int(bank), {})
        column = columns.get(part)
        if column is None:
            column = columns[part] = _Column(tensor)
        elif (tensor.dtype, tensor.shape) != (column.dtype, column.shape):
            raise DamagedError(
                f"{path}: {shown(tensor.name)} is {tensor.dtype} {list(tensor.shape)}; "
                f"the other experts of its layer have {column.dtype} {list(column.shape)}"
            )
        column.records.append(int(record))
        column.files.append(file)
        column.offsets.append(tensor.begin)
        return True

    def finish(self, folder: Path) -> dict[int, BankTable]:
        """The tables, in ascending order of their numbers.

        Raises DamagedError naming the first tensor that a bank lacks.
        """
        return {number: self._table(folder, number) for number in sorted(self._banks)}

    def _table(self, folder: Path, number: int) -> BankTable:
        columns = self._banks[number]
        parts = [name for name in _PART_ORDER if name in columns]
        records = 1 + max(max(column.records) for column in columns.values())
        for name in parts:
            # Names are unique, so a column that is as long as the bank has no holes.
            if len(columns[name].records) != records:
                missing = _first_hole(columns[name].records)
                raise DamagedError(
                    f"{folder}: {self._prefix}layers.{number}.block_sparse_moe.experts.{missing}.{name} is missing; "
                    f"the layer's experts go up to {records - 1}"
                )
        files = np.empty((records, len(parts)), dtype=np.int32)
        offsets = np.empty((records, len(parts)), dtype=np.int64)
        for position, name in enumerate(parts):
            column = columns[name]
            rows = np.frombuffer(column.records, dtype=np.int32)
            files[rows, position] = column.files
            offsets[rows, position] = column.offsets
        return BankTable(
            Bank(records, tuple(Part(name, columns[name].dtype, columns[name].shape) for name in parts)),
            lengths=tuple(columns[name].length for name in parts),
            files=files,
            offsets=offsets,
        )


class _Column:
    """One part of all records of a bank, in the order the headers gave them."""

    def __init__(self, first: StoredTensor) -> None:
        self.dtype = first.dtype
        self.shape = first.shape
        self.length = first.end - first.begin
        self.records = array("i")
        self.files = array("i")
        self.offsets = array("q")


def _first_hole(records: array[int]) -> int:
    """The lowest number, from 0 up, that is not in `records`."""
    present = set(records)
    return next(number for number in count() if number not in present)

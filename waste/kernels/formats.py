"""Where the rows of each weight format lie: pure arithmetic on widths."""

from __future__ import annotations

from dataclasses import dataclass

UNDIVIDED_ROWS = 64
"""Rows of an expert's matrix that one thread does at least: an index block of a container."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format whose rows lie one after another, and their scales, if there are any, likewise.

    bits: of a weight. group: weights of a row that share a scale of `scale_size` bytes, where a row is whole groups.
    """

    name: str
    bits: int
    group: int | None = None
    scale_size: int = 1

    def row_bytes(self, columns: int) -> int:
        """Bytes from one row's weights to the next's."""
        stored = columns if self.group is None else -(-columns // self.group) * self.group
        return stored * self.bits // 8

    def scale_bytes(self, columns: int) -> int:
        """Bytes from one row's scales to the next's."""
        return 0 if self.group is None else -(-columns // self.group) * self.scale_size


BF16 = WeightFormat("BF16", bits=16)
F16 = WeightFormat("F16", bits=16)
F32 = WeightFormat("F32", bits=32)
MXFP4 = WeightFormat("MXFP4", bits=4, group=32)
Q8G = WeightFormat("Q8G", bits=8, group=128, scale_size=2)
Q4G = WeightFormat("Q4G", bits=4, group=128, scale_size=2)

"""Where the rows of each weight format lie: pure arithmetic on widths."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bytes of a row's weights and of its scales as ratios of its width."""

    name: str
    bits: int
    group: int | None = None
    """Weights that share one scale byte, or None without scales."""

    def row_bytes(self, columns: int) -> int:
        return columns * self.bits // 8

    def scale_bytes(self, columns: int) -> int:
        return 0 if self.group is None else columns // self.group


BF16 = WeightFormat("BF16", bits=16)
F32 = WeightFormat("F32", bits=32)
MXFP4 = WeightFormat("MXFP4", bits=4, group=32)

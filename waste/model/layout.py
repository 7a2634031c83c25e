"""The trunk as a cyclic scan: its tensors in the order the walk needs them, cut into tiles of whole rows.

A tile is what one slot of the ring holds: rows of one or several tensors that follow each other in the walk, wherever
they lie on disk. Pure functions of the source's tables; nothing is read here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from waste.errors import UnsupportedError
from waste.io.extents import Extent, Placement, place
from waste.io.source import TensorInfo
from waste.kernels.formats import BF16, F16, F32, Q4G, Q8G, WeightFormat

TRUNK_FORMATS = {format.name: format for format in (BF16, F16, F32, Q8G, Q4G)}
_LARGEST_GAP = 16 * 1024
"""Unwanted bytes read along rather than asking twice; less where tiles are small."""


@dataclass(frozen=True, slots=True)
class Use:
    """One tensor at its place in the walk. Rows are cut in whole `unit`s; a vector is one row and never cut."""

    name: str
    unit: int = 1
    is_vector: bool = False


@dataclass(frozen=True, slots=True)
class TrunkTensor:
    """A trunk tensor as rows: `rows` × `columns` of `format`, where row 0 begins, and how it may be cut."""

    name: str
    format: WeightFormat
    rows: int
    columns: int
    unit: int
    extent: Extent
    scales: Extent | None = None

    @property
    def row_bytes(self) -> int:
        return self.format.row_bytes(self.columns)

    @property
    def row_scale_bytes(self) -> int:
        return self.format.scale_bytes(self.columns)

    def rows_extents(self, first: int, count: int) -> tuple[Extent, ...]:
        """Where `count` rows from `first` lie, and then their scales, if there are any."""
        return tuple(
            Extent(stored.file, stored.offset + first * each, count * each)
            for stored, each in ((self.extent, self.row_bytes), (self.scales, self.row_scale_bytes))
            if stored is not None
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first` to `first + count` of a tensor, and where they and their scales begin in their tile's buffer."""

    tensor: TrunkTensor
    first: int
    count: int
    tile: int
    at: int
    scale_at: int = 0

    def row(self, index: int) -> tuple[int, int]:
        """Where row `first + index` and its scales are in the buffer."""
        return self.at + index * self.tensor.row_bytes, self.scale_at + index * self.tensor.row_scale_bytes


@dataclass(frozen=True)
class TrunkLayout:
    """The trunk in walk order. `placements[i]` brings tile i into a buffer; `pieces` follow the walk."""

    placements: tuple[Placement, ...]
    pieces: tuple[Piece, ...]

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], list[tuple[int, list[Piece]]]]:
        return {}

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Piece, ...]]:
        """The pieces of each tensor, rows ascending."""
        found: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            found.setdefault(piece.tensor.name, []).append(piece)
        return {name: tuple(pieces) for name, pieces in found.items()}

    @property
    def total_bytes(self) -> int:
        """Bytes that one walk reads if nothing is pinned, alignment included."""
        return sum(read.length for placement in self.placements for read in placement.reads)

    def groups(self, names: Sequence[str]) -> list[tuple[int, list[Piece]]]:
        """The pieces of `names`, neighbours in the walk, by the tile they are in."""
        known = self._groups.get(key := tuple(names))
        if known is None:
            # Every walk asks for the same ones again.
            known = self._groups[key] = self._group(names)
        return known

    def _group(self, names: Sequence[str]) -> list[tuple[int, list[Piece]]]:
        groups: list[tuple[int, list[Piece]]] = []
        for name in names:
            for piece in self.by_name[name]:
                if not groups or groups[-1][0] != piece.tile:
                    groups.append((piece.tile, []))
                groups[-1][1].append(piece)
        return groups


def trunk_tensor(use: Use, info: TensorInfo) -> TrunkTensor:
    """The stored tensor as the walk sees it. Raises UnsupportedError for a dtype without kernels."""
    format = TRUNK_FORMATS.get(info.dtype)
    if format is None:
        raise UnsupportedError(f"{use.name} is stored as {info.dtype}; the trunk may be {' or '.join(TRUNK_FORMATS)}")
    count = math.prod(info.shape)
    columns = count if use.is_vector else info.shape[-1]
    if use.is_vector and format.group is not None and info.shape[-1] != count:
        raise UnsupportedError(f"{use.name} is stored as several rows of {info.dtype}; expected one row, or no groups")
    return TrunkTensor(use.name, format, count // columns, columns, use.unit, info.extent, info.scales)


def lay_out(uses: Iterable[Use], tensors: Mapping[str, TensorInfo], *, tile_bytes: int, align: int) -> TrunkLayout:
    """Cut the trunk into tiles of at most `tile_bytes` of weights; one unit that is larger gets a tile of its own."""
    cuts: list[list[tuple[TrunkTensor, int, int]]] = [[]]
    room = tile_bytes
    for tensor in (trunk_tensor(use, tensors[use.name]) for use in uses):
        first = 0
        while first < tensor.rows:
            unit_bytes = tensor.unit * (tensor.row_bytes + tensor.row_scale_bytes)
            # A unit that is larger than a tile leaves less than no room behind it.
            units = min(max(0, room) // unit_bytes, (tensor.rows - first) // tensor.unit)
            if units == 0 and cuts[-1]:
                cuts.append([])
                room = tile_bytes
                continue
            count = max(1, units) * tensor.unit
            cuts[-1].append((tensor, first, count))
            room -= count * (tensor.row_bytes + tensor.row_scale_bytes)
            first += count
    placements: list[Placement] = []
    pieces: list[Piece] = []
    gap = min(_LARGEST_GAP, tile_bytes // 64)
    for tile, rows in enumerate(cuts):
        extents = [tensor.rows_extents(first, count) for tensor, first, count in rows]
        placement = place([extent for row in extents for extent in row], align=align, max_gap=gap)
        placements.append(placement)
        starts = iter(placement.starts)
        for (tensor, first, count), row in zip(rows, extents, strict=True):
            pieces.append(Piece(tensor, first, count, tile, *(next(starts) for _ in row)))
    return TrunkLayout(tuple(placements), tuple(pieces))

"""Cutting the trunk into tiles: whole units, in walk order, none larger than it must be."""

from __future__ import annotations

import pytest

from waste.io.extents import Extent
from waste.io.source import TensorInfo
from waste.model.layout import TrunkLayout, Use, lay_out

COLUMNS = 64


def cut(rows: list[int], *, tile_bytes: int, units: list[int] | None = None) -> TrunkLayout:
    """F32 tensors of so many rows, one after another in one file."""
    tensors, uses, at = {}, [], 0
    for number, count in enumerate(rows):
        length = 4 * COLUMNS * count
        tensors[str(number)] = TensorInfo("F32", (count, COLUMNS), Extent(0, at, length))
        uses.append(Use(str(number), unit=units[number] if units else 1))
        at += length
    return lay_out(uses, tensors, tile_bytes=tile_bytes, align=4096)


@pytest.mark.parametrize("tile_bytes", [1, 255, 256, 1000, 4096, 1 << 20])
def test_every_row_once_in_order(tile_bytes: int) -> None:
    layout = cut([5, 1, 17, 3], tile_bytes=tile_bytes)
    seen = [(p.tensor.name, p.first + row) for p in layout.pieces for row in range(p.count)]
    assert seen == [(str(n), row) for n, rows in enumerate([5, 1, 17, 3]) for row in range(rows)]
    assert [p.tile for p in layout.pieces] == sorted(p.tile for p in layout.pieces)


@pytest.mark.parametrize("tile_bytes", [256, 1000, 4096])
def test_no_tile_is_larger_than_asked(tile_bytes: int) -> None:
    layout = cut([5, 1, 17, 3], tile_bytes=tile_bytes)
    for tile in range(len(layout.placements)):
        assert sum(p.count * p.tensor.row_bytes for p in layout.pieces if p.tile == tile) <= tile_bytes


def test_a_unit_larger_than_a_tile_is_alone_and_swallows_nothing() -> None:
    """The tiles after it are cut as small as those before."""
    layout = cut([4, 8, 40], tile_bytes=1024, units=[1, 8, 1])
    sizes = [
        sum(p.count * p.tensor.row_bytes for p in layout.pieces if p.tile == tile)
        for tile in range(len(layout.placements))
    ]
    assert max(sizes) == 8 * 4 * COLUMNS
    assert sizes.count(max(sizes)) == 1
    assert len(sizes) == 1 + 1 + 10

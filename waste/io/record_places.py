"""Which reads bring a record. Most records of a bank lie alike, so all but the first are placed by moving that one."""

from __future__ import annotations

from waste.io.extents import PlacedRead, Placement, place
from waste.io.source import WeightSource


class RecordPlaces:
    """Placements of the records of one source: see `place` for `align` and `max_gap`."""

    def __init__(self, source: WeightSource, *, align: int, max_gap: int) -> None:
        self._source = source
        self._align = align
        self._max_gap = max_gap
        # By bank and by where in a block a record begins: the offset of one that was placed, and its placement.
        self._placed: dict[tuple[int, int], tuple[int, Placement]] = {}

    def __call__(self, bank: int, index: int) -> Placement:
        """What `place` says of the record. Raises KeyError for an unknown bank, IndexError for an unknown record."""
        begin = self._source.record_begin(bank, index)
        if begin is None:
            return self._place(bank, index)
        file, offset = begin
        key = bank, offset % self._align
        if key not in self._placed:
            self._placed[key] = offset, self._place(bank, index)
        origin, placed = self._placed[key]
        moved = offset - origin
        reads = tuple(PlacedRead(file, read.offset + moved, read.length, read.at, read.need) for read in placed.reads)
        return Placement(reads, placed.starts, placed.buffer_bytes)

    def _place(self, bank: int, index: int) -> Placement:
        return place(self._source.record(bank, index), align=self._align, max_gap=self._max_gap)

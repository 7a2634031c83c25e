"""Which trunk tiles the ring reads next, and over which slots: a pure function of where the walk stands."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from waste.sched.handle import ReadHandle
from waste.sched.slots import PINNED, READING, Slot


class TileSlot(Slot):
    """A slot of the ring and, unless it is FREE, the tile it has or is about to get. `read` is under way."""

    __slots__ = ("read", "tile")

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.tile: int | None = None
        self.read: ReadHandle | None = None


class TileRead(NamedTuple):
    """Read `tile` into `slot`. What the slot has, or waits in the queue to get, is lost."""

    slot: TileSlot
    tile: int


def walk_order(cursor: int, *, first: int, end: int, reads_on: bool = True) -> Iterator[int]:
    """The tiles `first` to `end` - 1 as a walk at `cursor` meets them; with `reads_on` the next walk's too."""
    begin = max(cursor, first)
    yield from range(begin, end)
    if reads_on:
        yield from range(first, min(begin, end))


def plan_ring(
    order: Iterable[int], slots: Sequence[TileSlot], *, waited: Iterable[int], failed: Container[int]
) -> list[TileRead]:
    """The reads to start now, nearest tile first.

    order: every tile of the ring, nearest first (`walk_order`). waited: tiles somebody waits for; they come
    before all others. failed: tiles not to be tried.

    A slot that is READING or PINNED stays as it is, whatever its tile is worth. The n others belong to the n
    nearest tiles that are in none of those: what they have of them stays, the rest is read over the remaining
    slots. So the next tile gets a slot whenever there is one, and with a slot for every tile nothing is ever
    read twice.
    """
    fixed = set()
    usable = []
    for slot in slots:
        if slot.state is READING or slot.state is PINNED:
            fixed.add(slot.tile)
        else:
            usable.append(slot)
    if not usable:
        return []
    wanted: dict[int, None] = {}
    for tiles in (waited, order):
        for tile in tiles:
            if len(wanted) == len(usable):
                break
            if tile not in fixed and tile not in failed:
                wanted[tile] = None
    have = {slot.tile for slot in usable}
    spare = [slot for slot in usable if slot.tile not in wanted]
    missing = [tile for tile in wanted if tile not in have]
    return [TileRead(slot, tile) for slot, tile in zip(spare, missing, strict=False)]

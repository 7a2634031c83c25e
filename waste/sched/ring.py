"""The trunk: a pinned prefix of row tiles that is read once, and a ring that reads the others ahead of the walk."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from waste.errors import ClosedError, ReadError, WasteError
from waste.io.arena import Arena
from waste.io.extents import Placement
from waste.sched.handle import ReadHandle
from waste.sched.priority import Priority
from waste.sched.ring_plan import TileSlot, plan_ring, walk_order
from waste.sched.scheduler import ReadScheduler
from waste.sched.slots import FREE, PINNED, QUEUED, READING, RESIDENT, SlotTable


def pinned_bytes(tiles: Sequence[Placement], *, pinned: int) -> int:
    """Bytes a ring allocates for its first `pinned` tiles: their own sizes, each in whole pages."""
    return sum(map(_page_rounded, (tile.buffer_bytes for tile in tiles[:pinned])))


def ring_bytes(tiles: Sequence[Placement], *, pinned: int, slots: int) -> int:
    """Bytes a ring allocates for its slots: never more of them than unpinned tiles, each as large as the largest."""
    unpinned = [tile.buffer_bytes for tile in tiles[pinned:]]
    return min(slots, len(unpinned)) * _page_rounded(max(unpinned, default=0))


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """Slots by state, the pinned prefix included, and counts since the start.

    held: tiles acquired now. acquired: times a tile was. stalled: how many of those had to wait for it.
    read, failed: tile reads that returned whole, and that did not.
    """

    tiles: int
    pinned_tiles: int
    slots: int
    queued: int
    reading: int
    resident: int
    held: int
    peak_reading: int
    acquired: int
    stalled: int
    read: int
    failed: int


class TrunkRing:
    """Row tiles 0 to n - 1, walked in order again and again. For the event loop's thread only.

    tiles: what to read for each tile; each fits a buffer of its own `buffer_bytes`. pinned: how many tiles from
    the first on stay in memory. slots: the ring's, for the others; more than there are others are not allocated.

    Raises ValueError if `pinned` is out of range, if there are unpinned tiles and no slot, or for an empty tile.
    """

    def __init__(self, scheduler: ReadScheduler, tiles: Sequence[Placement], *, pinned: int, slots: int) -> None:
        if not 0 <= pinned <= len(tiles) or slots < (pinned < len(tiles)):
            raise ValueError(f"{pinned} pinned and {slots} slots do not carry {len(tiles)} tiles")
        if not all(tile.reads for tile in tiles):
            raise ValueError("a tile has nothing to read")
        self._scheduler = scheduler
        self._tiles = tuple(tiles)
        self._pinned = pinned
        slots = min(slots, len(tiles) - pinned)
        self._table = SlotTable([TileSlot(index) for index in range(pinned + slots)])
        self._ring = [self._table[index] for index in range(pinned, pinned + slots)]
        self._slot_of: list[TileSlot | None] = [None] * len(tiles)
        self._arenas = (
            Arena(1, pinned_bytes(tiles, pinned=pinned)),
            Arena(slots, ring_bytes(tiles, pinned=pinned, slots=slots) // max(1, slots)),
        )
        self._arrays: list[npt.NDArray[np.uint8]] = []
        begin = 0
        for index, tile in enumerate(self._tiles[:pinned]):
            self._slot_of[index] = self._table[index]
            self._table[index].tile = index
            self._arrays.append(self._arenas[0].slot(0)[begin : begin + tile.buffer_bytes])
            begin += _page_rounded(tile.buffer_bytes)
        self._arrays.extend(self._arenas[1].slot(index) for index in range(slots))
        self._cursor = 0
        self._end = len(tiles)
        self._reads_on = True
        # Who holds a tile: the future that was handed it, or None if it was there at once.
        self._held: dict[int, asyncio.Future[WasteError | None] | None] = {}
        self._waiters: dict[int, asyncio.Future[WasteError | None]] = {}
        # Tiles whose read failed and is not tried again before the next walk; None once somebody was told.
        self._failed: dict[int, WasteError | None] = {}
        self._space = object()  # sets the keys of this ring apart from others on the same scheduler
        self._is_whole = False
        self._is_closed = False
        self._acquired = self._stalled = self._read = self._failures = 0

    @property
    def allocated_bytes(self) -> int:
        """`pinned_bytes` + `ring_bytes`, as allocated."""
        return sum(arena.allocated_bytes for arena in self._arenas)

    def is_pinned(self, index: int) -> bool:
        """Whether the tile stays in memory, once read, whoever holds it."""
        return index < self._pinned

    @property
    def is_whole(self) -> bool:
        """Whether every tile is pinned and has been read: then the trunk is in memory for good."""
        if not self._is_whole and self._pinned == len(self._tiles):
            self._is_whole = all(self.peek(index) is not None for index in range(self._pinned))
        return self._is_whole

    def peek(self, index: int) -> npt.NDArray[np.uint8] | None:
        """The bytes of a pinned tile that is there, as `acquire` would give them but without holding it; else None."""
        if index >= self._pinned or self._table[index].state not in (RESIDENT, PINNED):
            return None
        return self._arrays[index][: self._tiles[index].buffer_bytes]

    def begin(self, *, end: int | None = None, reads_on: bool = True) -> None:
        """A walk begins at tile 0, wherever the last one ended or was aborted; failed tiles are tried again.

        end: the walk ends before this tile; None: after the last. reads_on: at its end the first tiles are read ahead
        for another walk; without, nothing is read that this one does not need.

        Tiles still held are let go of: an aborted walk must not `release` after this. Raises ClosedError.
        """
        self._check_open()
        with self._scheduler.batch():
            for index in list(self._held):
                self._let_go(index)
            self._failed.clear()
            self._cursor = 0
            self._end = len(self._tiles) if end is None else end
            self._reads_on = reads_on
            for index in range(self._pinned):
                if self._table[index].state is FREE:
                    self._start(self._table[index], index)
            self._advance()

    async def acquire(self, index: int) -> npt.NDArray[np.uint8]:
        """The bytes of a tile, uint8 [its buffer_bytes], valid until `release(index)`; waits until they are read.

        The tiles after it are read ahead meanwhile. While every slot holds a tile that was not released, it waits
        for a release. May be cancelled: then the tile is not held, and its read goes on.

        Raises ReadError with the index as `key` if its read failed, ahead of the walk or now (acquire it again to
        try again); ClosedError; IndexError; RuntimeError if the tile is held or waited for already.
        """
        self._check_open()
        if not 0 <= index < len(self._tiles):
            raise IndexError(f"tile {index} of {len(self._tiles)}")
        if index in self._held or index in self._waiters:
            raise RuntimeError(f"tile {index} is {'held' if index in self._held else 'waited for'} already")
        error = self._failed.pop(index, None)
        if error is not None:
            raise self._told(index, error) from error
        self._acquired += 1
        self._cursor = index
        slot = self._slot_of[index]
        if slot is None or slot.state is not RESIDENT:
            self._stalled += 1
            slot = await self._wait_for(index)
        else:
            self._hold(slot, None)
        return self._arrays[slot.index][: self._tiles[index].buffer_bytes]

    def release(self, index: int) -> None:
        """Done computing with a tile; its slot takes the next one. Raises RuntimeError unless it is held."""
        if index not in self._held:
            raise RuntimeError(f"tile {index} is not held")
        with self._scheduler.batch():
            self._let_go(index)
            if self._cursor == index:
                self._cursor = 0 if index + 1 >= self._end and self._reads_on else index + 1
            if index >= self._pinned:
                self._advance()

    def close(self) -> None:
        """Wake who waits with ClosedError and take back what is queued. Never waits; safe to call twice.

        Reads in flight return to their slots first, so the memory goes when `ReadScheduler.close` has waited
        for them; arrays that somebody still holds keep it, too.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for future in self._waiters.values():
            if not future.done():
                future.set_result(ClosedError("the trunk ring was closed"))
        self._waiters.clear()
        with self._scheduler.batch():
            for index in range(len(self._table)):
                if self._table[index].state is QUEUED:
                    self._clear(self._table[index])
        self._free_memory()

    def statistics(self) -> RingStatistics:
        """See `RingStatistics`."""
        count = self._table.count
        return RingStatistics(
            tiles=len(self._tiles),
            pinned_tiles=self._pinned,
            slots=len(self._ring),
            queued=count(QUEUED),
            reading=count(READING),
            resident=count(RESIDENT),
            held=count(PINNED),
            peak_reading=self._table.peak(READING),
            acquired=self._acquired,
            stalled=self._stalled,
            read=self._read,
            failed=self._failures,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError unless slots, tiles, holders and reads agree."""
        self._table.check_integrity()
        slots = [self._table[index] for index in range(len(self._table))]
        under_way = {QUEUED, READING}
        placed = {slot.tile: slot for slot in slots if slot.tile is not None}
        laws = {
            "tiles map to their slots": placed
            == {index: slot for index, slot in enumerate(self._slot_of) if slot is not None},
            "free slots of the ring have no tile": all(
                (slot.state is FREE) == (slot.tile is None) for slot in self._ring
            ),
            "held tiles are the pinned slots": self._held.keys()
            == {slot.tile for slot in slots if slot.state is PINNED},
            "slots under way have a read": all((s.read is not None) == (s.state in under_way) for s in slots),
            "nobody waits for what is there": not any(
                slot.state is RESIDENT and slot.tile in self._waiters for slot in slots
            ),
        }
        broken = [law for law, holds in laws.items() if not holds]
        if broken:
            raise RuntimeError(f"the trunk ring broke: {'; '.join(broken)}")

    async def _wait_for(self, index: int) -> TileSlot:
        """Returns with the tile held."""
        future: asyncio.Future[WasteError | None] = asyncio.get_running_loop().create_future()
        self._waiters[index] = future
        try:
            slot = self._slot_of[index]
            with self._scheduler.batch():
                if slot is None or slot.read is None:
                    self._advance()
                elif slot.state is QUEUED:
                    slot.read.promote(Priority.DEMAND)
            error = await future
        except BaseException:
            # Cancelled just after the tile was handed over: nobody else will let go of it. The walk stays here.
            if self._held.get(index) is future:
                with self._scheduler.batch():
                    self._let_go(index)
                    self._advance()
            raise
        finally:
            if self._waiters.get(index) is future:
                del self._waiters[index]
        if error is not None:
            raise self._told(index, error) from error
        slot = self._slot_of[index]
        if slot is None or self._held.get(index) is not future:
            raise RuntimeError(f"another walk began while one waited for tile {index}")
        if self._is_closed:
            self._let_go(index)
            self._check_open()
        return slot

    def _advance(self) -> None:
        """Start the reads that `plan_ring` wants, and those of pinned tiles that somebody waits for."""
        if self._is_closed or self._scheduler.is_closed:
            return
        for index in self._waiters:
            if index < self._pinned and self._table[index].state is FREE:
                self._start(self._table[index], index)
        if len(self._ring) == len(self._tiles) - self._pinned and not self._table.count(FREE):
            return  # every tile has its slot
        order = walk_order(self._cursor, first=self._pinned, end=self._end, reads_on=self._reads_on)
        waited = [index for index in self._waiters if index >= self._pinned]
        for slot, tile in plan_ring(order, self._ring, waited=waited, failed=self._failed):
            self._clear(slot)
            self._start(slot, tile)

    def _is_ahead(self, tile: int) -> bool:
        """Whether it is pinned, or one of the next tiles of the walk, as many as the ring has slots."""
        order = walk_order(self._cursor, first=self._pinned, end=self._end, reads_on=self._reads_on)
        return tile < self._pinned or tile in islice(order, len(self._ring))

    def _start(self, slot: TileSlot, tile: int) -> None:
        self._table.move(slot, QUEUED)
        slot.tile = tile
        self._slot_of[tile] = slot
        slot.read = self._scheduler.submit(
            (self._space, tile),
            kind="trunk",
            placement=self._tiles[tile],
            buffer=self._arrays[slot.index].data,
            priority=Priority.DEMAND if tile in self._waiters else Priority.RING,
            on_issued=partial(self._issued, slot),
            on_done=partial(self._finished, slot),
        )

    def _clear(self, slot: TileSlot) -> None:
        """Make a slot FREE that is FREE, QUEUED or RESIDENT."""
        if slot.state is FREE:
            return
        if slot.read is not None:
            slot.read.cancel()
        self._table.move(slot, FREE)
        self._forget(slot)

    def _forget(self, slot: TileSlot) -> None:
        slot.read = None
        if slot.index >= self._pinned and slot.tile is not None:
            self._slot_of[slot.tile] = None
            slot.tile = None

    def _issued(self, slot: TileSlot, handle: ReadHandle) -> None:
        self._table.move(slot, READING)

    def _finished(self, slot: TileSlot, handle: ReadHandle) -> None:
        if handle.is_dropped:
            return
        tile = slot.tile
        assert tile is not None
        future = self._waiters.pop(tile, None)
        if future is not None and future.done():
            future = None  # cancelled, and about to notice
        if handle.error is None:
            self._read += 1
            slot.read = None
            self._table.move(slot, RESIDENT)
            if future is not None:
                self._hold(slot, future)
        else:
            self._failures += 1
            self._table.move(slot, FREE)
            self._forget(slot)
            self._failed[tile] = None if future is not None else handle.error
        if future is not None:
            future.set_result(handle.error)
        if self._waiters or handle.error is not None or not self._is_ahead(tile):
            self._advance()  # else the slot stays as it is, and nobody needs another
        if self._is_closed:
            self._free_memory()

    def _hold(self, slot: TileSlot, future: asyncio.Future[WasteError | None] | None) -> None:
        assert slot.tile is not None
        self._table.pin(slot)
        self._held[slot.tile] = future

    def _let_go(self, index: int) -> None:
        slot = self._slot_of[index]
        assert slot is not None
        del self._held[index]
        self._table.unpin(slot)

    def _told(self, index: int, error: WasteError) -> WasteError:
        """`error` as the caller of `acquire` is to see it, a new object each time."""
        if isinstance(error, ClosedError):
            return ClosedError(str(error))
        return ReadError(str(error), key=index)

    def _free_memory(self) -> None:
        count = self._table.count
        if count(QUEUED) + count(READING) == 0:
            self._arrays.clear()
            for arena in self._arenas:
                arena.close()

    def _check_open(self) -> None:
        if self._is_closed or self._scheduler.is_closed:
            raise ClosedError("the trunk ring was closed")


def _page_rounded(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE

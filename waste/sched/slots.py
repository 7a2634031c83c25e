"""The states of a slot that reads land in, and the only moves between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Generic, TypeVar


class SlotState(IntEnum):
    """What a slot's bytes are."""

    FREE = 0  # nothing
    QUEUED = 1  # a read for it waits and can still be taken back
    READING = 2  # the device may write to it at any moment
    RESIDENT = 3  # whole, and may be replaced
    PINNED = 4  # whole, and somebody computes with it


# Plain globals: looking a member up in its class is ten times slower, and every read moves its slot four times.
FREE: Final = SlotState.FREE
QUEUED: Final = SlotState.QUEUED
READING: Final = SlotState.READING
RESIDENT: Final = SlotState.RESIDENT
PINNED: Final = SlotState.PINNED

TRANSITIONS: Mapping[SlotState, frozenset[SlotState]] = {
    FREE: frozenset({QUEUED}),
    QUEUED: frozenset({FREE, READING}),
    READING: frozenset({FREE, RESIDENT}),
    RESIDENT: frozenset({FREE, PINNED}),
    PINNED: frozenset({RESIDENT}),
}


class Slot:
    """One slot. `pins` is how many users it has; only a slot that is PINNED has any."""

    __slots__ = ("index", "pins", "state")

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = FREE
        self.pins = 0


S = TypeVar("S", bound=Slot)


class SlotTable(Generic[S]):
    """Slots 0 to n - 1, moved only along `TRANSITIONS` and counted by state."""

    def __init__(self, slots: Sequence[S]) -> None:
        self._slots = tuple(slots)
        self._counts = [0] * len(SlotState)
        self._peaks = [0] * len(SlotState)
        self._counts[FREE] = self._peaks[FREE] = len(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> S:
        return self._slots[index]

    def move(self, slot: S, to: SlotState) -> None:
        """Change the state. Raises RuntimeError for a move that is not in the table."""
        if to not in TRANSITIONS[slot.state]:
            raise RuntimeError(f"slot {slot.index} cannot go from {slot.state.name} to {to.name}")
        counts = self._counts
        counts[slot.state] -= 1
        counts[to] += 1
        if counts[to] > self._peaks[to]:
            self._peaks[to] = counts[to]
        slot.state = to

    def pin(self, slot: S) -> None:
        """One user more. Raises RuntimeError unless the slot is RESIDENT or PINNED."""
        if slot.state is not PINNED:
            self.move(slot, PINNED)
        slot.pins += 1

    def unpin(self, slot: S) -> bool:
        """One user less; True if it was the last. Raises RuntimeError unless the slot is PINNED."""
        if slot.state is not PINNED:
            raise RuntimeError(f"slot {slot.index} is {slot.state.name}, so nobody can let go of it")
        slot.pins -= 1
        if slot.pins == 0:
            self.move(slot, RESIDENT)
        return slot.pins == 0

    def count(self, state: SlotState) -> int:
        """Slots in this state."""
        return self._counts[state]

    def peak(self, state: SlotState) -> int:
        """The most slots there ever were in this state."""
        return self._peaks[state]

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the counts are those of the slots and exactly the pinned have pins."""
        counts = [0] * len(SlotState)
        for slot in self._slots:
            counts[slot.state] += 1
            if (slot.pins > 0) != (slot.state is PINNED):
                raise RuntimeError(f"slot {slot.index} is {slot.state.name} with {slot.pins} pins")
        if counts != self._counts or sum(counts) != len(self._slots):
            raise RuntimeError(f"slots by state are {counts}, counted as {self._counts}")

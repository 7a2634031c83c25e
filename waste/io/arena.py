"""Memory that reads land in: fixed slots in one anonymous mapping, each at a page boundary."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from waste.errors import BudgetError, ClosedError


class Arena:
    """`slots` buffers of `slot_bytes` bytes, allocated at once and never moved.

    Slots begin at multiples of the page size, so direct reads may go to any block-aligned byte of them.

    Raises BudgetError if the system refuses the memory.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        if slots < 0 or slot_bytes < 0:
            raise ValueError(f"an arena cannot have {slots} slots of {slot_bytes} bytes")
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._stride = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._mapping = _map(self.allocated_bytes)
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self._mapping, dtype=np.uint8)

    @property
    def allocated_bytes(self) -> int:
        """Address space taken, padding between slots included."""
        return self.slots * self._stride

    def slot(self, index: int) -> npt.NDArray[np.uint8]:
        """The buffer of slot `index`: writable uint8 [slot_bytes], the same memory at every call.

        Raises IndexError for a slot that does not exist, ClosedError after `close`.
        """
        if self._bytes is None:
            raise ClosedError("the arena was closed")
        if not 0 <= index < self.slots:
            raise IndexError(f"slot {index} of an arena of {self.slots}")
        begin = index * self._stride
        return self._bytes[begin : begin + self.slot_bytes]

    def close(self) -> None:
        """Give the memory back; at once, or when the last array that was handed out is gone."""
        self._bytes = None
        # An exported view keeps the mapping alive: a late read must never write to memory that was unmapped.
        with suppress(BufferError):
            self._mapping.close()


def _map(size: int) -> mmap.mmap:
    """A private anonymous mapping of at least one byte: an empty one is refused by the system."""
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        return mmap.mmap(-1, max(size, 1), flags=flags) if flags else mmap.mmap(-1, max(size, 1))
    except (OSError, OverflowError, ValueError) as error:
        raise BudgetError(f"the system refused {size:,} bytes of memory ({error}); lower the budget") from error

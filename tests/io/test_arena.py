import gc
import mmap

import numpy as np
import pytest

from waste.errors import BudgetError, ClosedError
from waste.io.arena import Arena


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_slots_are_page_aligned_disjoint_and_stable() -> None:
    arena = Arena(3, mmap.PAGESIZE + 1)
    assert arena.allocated_bytes == 6 * mmap.PAGESIZE
    for index in range(3):
        assert arena.slot(index).shape == (mmap.PAGESIZE + 1,)
        assert address(arena.slot(index)) % mmap.PAGESIZE == 0
        arena.slot(index)[:] = index + 1
    assert [set(arena.slot(index).tolist()) for index in range(3)] == [{1}, {2}, {3}]


@pytest.mark.parametrize("index", [-1, 2])
def test_no_such_slot(index: int) -> None:
    with pytest.raises(IndexError):
        Arena(2, 10).slot(index)


def test_close_waits_for_views() -> None:
    arena = Arena(1, 10)
    slot = arena.slot(0)
    arena.close()
    arena.close()
    slot[:] = 7  # still memory of ours, though the arena hands out no more
    assert slot.tolist() == [7] * 10
    with pytest.raises(ClosedError):
        arena.slot(0)
    del slot
    gc.collect()


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 100), (2, 0)])
def test_an_empty_arena_is_fine(slots: int, slot_bytes: int) -> None:
    arena = Arena(slots, slot_bytes)
    assert [arena.slot(index).size for index in range(slots)] == [slot_bytes] * slots
    assert arena.allocated_bytes == 0


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_memory_that_is_not_there(size: int) -> None:
    with pytest.raises(BudgetError, match="refused"):
        Arena(1, size)


def test_a_negative_size_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="-1"):
        Arena(1, -1)

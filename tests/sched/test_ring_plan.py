from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from waste.sched.ring_plan import TileSlot, plan_ring, walk_order
from waste.sched.slots import SlotState

FREE, QUEUED, READING, RESIDENT, PINNED = SlotState


def ring(*content: tuple[SlotState, int | None]) -> list[TileSlot]:
    slots = [TileSlot(index) for index in range(len(content))]
    for slot, (state, tile) in zip(slots, content, strict=True):
        slot.state, slot.tile = state, tile
    return slots


def plan(
    slots: Sequence[TileSlot],
    *,
    cursor: int,
    first: int = 0,
    total: int = 10,
    waited: Sequence[int] = (),
    failed: Sequence[int] = (),
) -> list[tuple[int, int]]:
    order = walk_order(cursor, first=first, end=total)
    return [(read.slot.index, read.tile) for read in plan_ring(order, slots, waited=waited, failed=failed)]


def test_the_order_of_a_walk_goes_on_into_the_next() -> None:
    assert list(walk_order(4, first=2, end=6)) == [4, 5, 2, 3]
    assert list(walk_order(1, first=2, end=6)) == [2, 3, 4, 5]
    assert list(walk_order(2, first=6, end=6)) == []


def test_free_slots_get_the_next_tiles() -> None:
    assert plan(ring((FREE, None), (FREE, None)), cursor=3) == [(0, 3), (1, 4)]


def test_the_last_tile_reads_the_first_of_the_next_walk() -> None:
    assert plan(ring((PINNED, 9), (RESIDENT, 8)), cursor=9, first=4) == [(1, 4)]


def test_what_is_ahead_stays_and_what_is_behind_goes() -> None:
    slots = ring((RESIDENT, 4), (QUEUED, 5), (RESIDENT, 2))
    assert plan(slots, cursor=4) == [(2, 6)]
    assert plan(slots, cursor=6) == [(0, 6), (1, 7), (2, 8)]


def test_a_device_or_a_holder_keeps_its_slot() -> None:
    slots = ring((READING, 8), (PINNED, 7), (RESIDENT, 6))
    assert plan(slots, cursor=0) == [(2, 0)]
    assert plan(slots[:2], cursor=0) == []


def test_the_next_tile_displaces_a_farther_one() -> None:
    assert plan(ring((PINNED, 5), (RESIDENT, 7)), cursor=6) == [(1, 6)]


def test_who_waits_comes_first_and_failed_tiles_are_left_alone() -> None:
    assert plan(ring((FREE, None)), cursor=6, waited=[5]) == [(0, 5)]
    assert plan(ring((FREE, None), (FREE, None)), cursor=6, failed=[6]) == [(0, 7), (1, 8)]
    assert plan(ring((FREE, None)), cursor=0, total=1, failed=[0]) == []


@given(
    total=st.integers(1, 7),
    states=st.lists(st.sampled_from(SlotState), min_size=1, max_size=7),
    data=st.data(),
)
def test_any_ring(total: int, states: list[SlotState], data: st.DataObject) -> None:
    tiles = data.draw(st.permutations(range(total)))
    slots = ring(
        *((state if tile is not None else FREE, None if state is FREE else tile)
          for state, tile in zip(states, [*tiles, *[None] * len(states)], strict=False))
    )  # fmt: skip
    cursor = data.draw(st.integers(0, total - 1))
    reads = plan(slots, cursor=cursor, total=total)
    order = list(walk_order(cursor, first=0, end=total))
    after = [slot.tile for slot in slots]
    for index, tile in reads:
        assert slots[index].state in (FREE, QUEUED, RESIDENT)
        assert tile not in after
        after[index] = tile
    free = [i for i, slot in enumerate(slots) if slot.state not in (READING, PINNED)]
    fixed = {slot.tile for i, slot in enumerate(slots) if i not in free}
    nearest = [tile for tile in order if tile not in fixed][: len(free)]
    assert set(nearest) <= set(after)
    assert [tile for _, tile in reads] == sorted((tile for _, tile in reads), key=order.index)
    if len(slots) >= total:
        kept = {slot.tile for slot in slots if slot.tile is not None}
        assert kept <= set(after)  # nothing is ever read twice

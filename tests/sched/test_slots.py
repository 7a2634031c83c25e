from __future__ import annotations

from itertools import product

import pytest

from waste.sched.slots import Slot, SlotState, SlotTable

ALLOWED = {
    ("FREE", "QUEUED"),
    ("QUEUED", "READING"),
    ("QUEUED", "FREE"),
    ("READING", "RESIDENT"),
    ("READING", "FREE"),
    ("RESIDENT", "PINNED"),
    ("RESIDENT", "FREE"),
    ("PINNED", "RESIDENT"),
}


@pytest.mark.parametrize(("begin", "end"), list(product(SlotState, SlotState)))
def test_only_the_moves_of_the_table_are_possible(begin: SlotState, end: SlotState) -> None:
    slot = Slot(0)
    slot.state = begin
    table = SlotTable([slot])
    if (begin.name, end.name) in ALLOWED:
        table.move(slot, end)
        assert slot.state is end
    else:
        with pytest.raises(RuntimeError, match=f"from {begin.name} to {end.name}"):
            table.move(slot, end)
        assert slot.state is begin


def test_pins_are_counted() -> None:
    table = SlotTable([Slot(0), Slot(1)])
    slot = table[1]
    for state in (SlotState.QUEUED, SlotState.READING, SlotState.RESIDENT):
        with pytest.raises(RuntimeError, match="slot 1"):
            table.pin(slot)
        table.move(slot, state)
    table.pin(slot)
    table.pin(slot)
    assert not table.unpin(slot)
    assert table.count(SlotState.PINNED) == 1
    assert table.unpin(slot)
    assert table.count(SlotState.PINNED) == 0
    with pytest.raises(RuntimeError, match="nobody can let go"):
        table.unpin(slot)
    assert table.count(SlotState.FREE) == table.count(SlotState.RESIDENT) == 1
    assert table.peak(SlotState.PINNED) == 1
    table.check_integrity()


def test_integrity_notices_a_state_set_past_the_table() -> None:
    table = SlotTable([Slot(0)])
    table[0].state = SlotState.RESIDENT
    with pytest.raises(RuntimeError, match="counted as"):
        table.check_integrity()

"""Who gets how much of the RAM: a pure function from sizes and a budget to a plan whose parts add up.

Everything that will be allocated is counted before anything is. The order is the architecture's: what cannot be done
without, a comfortable number of expert slots, then the trunk, then more experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waste.errors import BudgetError
from waste.io.extents import Placement
from waste.sched.ring import pinned_bytes, ring_bytes

LEAST_RING_SLOTS = 2
RING_SLOTS = 3
LEAST_EXPERT_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model asks for. fixed: bytes by name that no split changes. tiles: the trunk's.

    record_bytes: one expert slot. records: how many there are in all, 0 for a dense model. layer_records: how many
    one layer of one token needs.
    """

    fixed: Mapping[str, int]
    tiles: Sequence[Placement]
    record_bytes: int
    records: int
    layer_records: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The split of a budget. parts: bytes by name, everything that is allocated; they sum to at most the budget."""

    budget_bytes: int
    floor_bytes: int
    parts: Mapping[str, int]
    pinned_tiles: int
    ring_slots: int
    expert_slots: int
    record_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


def make_plan(demand: Demand, *, budget: int, trunk: int | None = None, experts: int | None = None) -> Plan:
    """Split `budget`; `trunk` (pinned and ring) and `experts` are wished sizes, None lets the planner choose.

    Raises BudgetError with the shortfall if the budget or the wishes cannot be met.
    """
    fixed = sum(demand.fixed.values())
    tiles = demand.tiles
    least_slots = min(demand.records, LEAST_EXPERT_SLOTS)
    floor = fixed + ring_bytes(tiles, pinned=0, slots=LEAST_RING_SLOTS) + least_slots * demand.record_bytes
    if budget < floor:
        raise BudgetError(
            f"the budget of {budget:,} bytes is {floor - budget:,} below the floor of {floor:,}; "
            "raise --ram, or lower the context"
        )
    room = budget - fixed
    slots = min(demand.records, max(least_slots, demand.layer_records))
    if experts is not None:
        slots = min(demand.records, max(least_slots, experts // max(1, demand.record_bytes)))
    trunk_room = room - slots * demand.record_bytes
    if trunk_room < _trunk_bytes(tiles, 0):
        # Short of RAM: the comfortable number of slots gives way to the trunk's least.
        slots = max(least_slots, (room - _trunk_bytes(tiles, 0)) // max(1, demand.record_bytes))
        trunk_room = room - slots * demand.record_bytes
    pinned = _pinned_tiles(tiles, trunk_room if trunk is None else min(trunk, trunk_room))
    ring = _ring_slots(tiles, pinned, trunk_room)
    rest = trunk_room - pinned_bytes(tiles, pinned=pinned) - ring_bytes(tiles, pinned=pinned, slots=ring)
    if experts is None and demand.record_bytes:
        slots = min(demand.records, slots + rest // demand.record_bytes)
    parts = dict(demand.fixed)
    parts["pinned"] = pinned_bytes(tiles, pinned=pinned)
    parts["ring"] = ring_bytes(tiles, pinned=pinned, slots=ring)
    parts["experts"] = slots * demand.record_bytes
    return Plan(budget, floor, parts, pinned, ring, slots, demand.record_bytes)


def _trunk_bytes(tiles: Sequence[Placement], pinned: int) -> int:
    return pinned_bytes(tiles, pinned=pinned) + ring_bytes(tiles, pinned=pinned, slots=LEAST_RING_SLOTS)


def _pinned_tiles(tiles: Sequence[Placement], room: int) -> int:
    """The longest prefix that fits beside a ring for the rest."""
    return max((n for n in range(len(tiles) + 1) if _trunk_bytes(tiles, n) <= room), default=0)


def _ring_slots(tiles: Sequence[Placement], pinned: int, room: int) -> int:
    unpinned = len(tiles) - pinned
    for slots in (RING_SLOTS, LEAST_RING_SLOTS):
        if pinned_bytes(tiles, pinned=pinned) + ring_bytes(tiles, pinned=pinned, slots=slots) <= room:
            return min(slots, unpinned)
    return min(LEAST_RING_SLOTS, unpinned)

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

    record_bytes: one expert slot. records: how many there are in all, 0 for a dense model. layer_records,
    token_records: how many one token needs, in one layer and in all.
    """

    fixed: Mapping[str, int]
    tiles: Sequence[Placement]
    record_bytes: int
    records: int
    layer_records: int
    token_records: int


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


def floor_bytes(demand: Demand) -> int:
    """The least budget: what is fixed, two ring slots of trunk, two slots for experts."""
    trunk = ring_bytes(demand.tiles, pinned=0, slots=LEAST_RING_SLOTS)
    return sum(demand.fixed.values()) + trunk + _least_slots(demand) * demand.record_bytes


def make_plan(demand: Demand, *, budget: int, floor: int, trunk: int | None = None, experts: int | None = None) -> Plan:
    """Split `budget`; `trunk` (pinned and ring) and `experts` are wished sizes, None lets the planner choose.

    floor: the least budget of all step sizes, for the plan to report. A wish is met as far as the budget and the
    other's least allow. Raises BudgetError with the shortfall if the demand itself does not fit.
    """
    needed = floor_bytes(demand)
    if budget < needed:
        raise BudgetError(f"the budget of {budget:,} bytes is {needed - budget:,} short of {needed:,}; raise --ram")
    room = budget - sum(demand.fixed.values())
    tiles, record_bytes, least = demand.tiles, demand.record_bytes, _least_slots(demand)
    affordable = (room - _trunk_bytes(tiles, 0)) // record_bytes if record_bytes else 0
    wanted = demand.layer_records if experts is None else experts // max(1, record_bytes)
    slots = min(demand.records, affordable, max(least, wanted))
    trunk_room = room - slots * record_bytes
    pinned = _pinned_tiles(tiles, trunk_room if trunk is None else min(trunk, trunk_room))
    ring = _ring_slots(tiles, pinned, trunk_room)
    rest = trunk_room - pinned_bytes(tiles, pinned=pinned) - ring_bytes(tiles, pinned=pinned, slots=ring)
    if experts is None and record_bytes:
        slots = _whole_tokens(min(demand.records, slots + rest // record_bytes), demand)
    parts = dict(demand.fixed)
    parts["pinned"] = pinned_bytes(tiles, pinned=pinned)
    parts["ring"] = ring_bytes(tiles, pinned=pinned, slots=ring)
    parts["experts"] = slots * record_bytes
    return Plan(budget, floor, parts, pinned, ring, slots, record_bytes)


def _least_slots(demand: Demand) -> int:
    return min(demand.records, LEAST_EXPERT_SLOTS)


def _whole_tokens(slots: int, demand: Demand) -> int:
    """Whole working sets of a token, where there is at least one: what is beyond them helps no recency policy."""
    if slots == demand.records or slots < demand.token_records:
        return slots
    return slots // demand.token_records * demand.token_records


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

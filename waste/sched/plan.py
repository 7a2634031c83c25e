"""Who gets how much of the RAM: a pure function from sizes and a budget to a plan whose parts add up.

Everything that will be allocated is counted before anything is. The order is the architecture's: what cannot be done
without, a comfortable number of expert slots, then the trunk, then more experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

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
    """The split of a budget. parts: bytes by name, everything that is allocated; they sum to at most the budget.

    cut: sizes that were wished for, by name, and got less because the budget leaves no more.
    """

    budget_bytes: int
    floor_bytes: int
    parts: Mapping[str, int]
    pinned_tiles: int
    ring_slots: int
    expert_slots: int
    record_bytes: int
    cut: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def split(self) -> tuple[int, int, int]:
        """Pinned tiles, ring slots, expert slots: all that decides which bytes are read again."""
        return self.pinned_tiles, self.ring_slots, self.expert_slots


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
    tiles, record_bytes, least = _Trunk(demand.tiles), demand.record_bytes, _least_slots(demand)
    affordable = (room - tiles.bytes(0)) // record_bytes if record_bytes else 0
    wanted = demand.layer_records if experts is None else experts // max(1, record_bytes)
    comfortable = min(demand.records, max(least, wanted))
    slots = min(affordable, comfortable)
    trunk_room = room - slots * record_bytes
    wished = trunk_room if trunk is None else max(tiles.bytes(0), min(trunk, trunk_room))
    # What is too little for one more slot pins nothing: the slot would take it back, and more RAM would read more.
    is_short = trunk is None and experts is None and slots < comfortable
    pinned = 0 if is_short else tiles.longest_prefix(wished)
    ring = tiles.ring_slots(pinned, wished)
    rest = trunk_room - tiles.bytes(pinned, ring)
    # Not before the whole trunk is pinned: slots that the next tile would take back make more RAM read more.
    if experts is None and record_bytes and pinned == tiles.tiles:
        slots = _whole_tokens(min(demand.records, slots + rest // record_bytes), demand)
    parts = dict(demand.fixed)
    parts["pinned"] = tiles.pinned(pinned)
    parts["ring"] = tiles.ring(pinned, ring)
    parts["experts"] = slots * record_bytes
    cut = {}
    if trunk is not None and trunk > trunk_room and pinned < tiles.tiles:
        cut["trunk"] = trunk
    if experts is not None and slots < min(demand.records, wanted):
        cut["experts"] = experts
    return Plan(budget, floor, parts, pinned, ring, slots, record_bytes, cut)


def _least_slots(demand: Demand) -> int:
    return min(demand.records, LEAST_EXPERT_SLOTS)


def _whole_tokens(slots: int, demand: Demand) -> int:
    """Whole working sets of a token, where there is at least one: what is beyond them helps no recency policy."""
    if slots == demand.records or slots < demand.token_records:
        return slots
    return slots // demand.token_records * demand.token_records


class _Trunk:
    """`pinned_bytes` and `ring_bytes` of every prefix, worked out once: a large trunk has thousands of tiles."""

    def __init__(self, tiles: Sequence[Placement]) -> None:
        sizes = [pinned_bytes([tile], pinned=1) for tile in tiles]
        self._pinned = [0, *accumulate(sizes)]
        self._largest = [*reversed([0, *accumulate(reversed(sizes), max)])]
        self.tiles = len(sizes)

    def pinned(self, count: int) -> int:
        """Bytes of the first `count` tiles."""
        return self._pinned[count]

    def ring(self, count: int, slots: int) -> int:
        """Bytes of a ring for the others."""
        return min(slots, self.tiles - count) * self._largest[count]

    def bytes(self, count: int, slots: int = LEAST_RING_SLOTS) -> int:
        return self.pinned(count) + self.ring(count, slots)

    def longest_prefix(self, room: int) -> int:
        """How many tiles can be pinned beside a least ring for the rest."""
        return max((count for count in range(self.tiles + 1) if self.bytes(count) <= room), default=0)

    def ring_slots(self, count: int, room: int) -> int:
        """The ring's slots beside `count` pinned tiles: one more than the least where it fits."""
        slots = RING_SLOTS if self.bytes(count, RING_SLOTS) <= room else LEAST_RING_SLOTS
        return min(slots, self.tiles - count)

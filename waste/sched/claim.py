"""What one lease still has to get and what it holds; the planner's half of `Lease`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from waste.errors import WasteError
from waste.io.extents import Placement
from waste.sched.priority import Priority
from waste.sched.slots import PINNED, RESIDENT, Slot


class Record(Slot):
    """A slot of the cache and, unless it is FREE, the key it has or is about to get.

    claims: who waits for the read under way. is_lookahead: brought or queued by lookahead, not asked for since.
    """

    __slots__ = ("claims", "is_lookahead", "key", "placement", "priority")

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.key: Hashable = None
        self.placement: Placement | None = None
        self.priority = Priority.DEMAND
        self.claims: list[Claim] = []
        self.is_lookahead = False

    @property
    def is_whole(self) -> bool:
        """Whether its bytes can be used."""
        return self.state is RESIDENT or self.state is PINNED


class Claim:
    """Every key of a lease is in exactly one of `misses`, `coming`, `ready`, `out`, or was released.

    misses: no slot yet, in reading order. coming: a read is queued or in flight. ready: pinned, not handed out.
    out: handed out and not released. error: why the claim will never be whole; it gets nothing more then.
    """

    __slots__ = ("coming", "error", "is_waiting", "keys", "misses", "out", "priority", "ready", "released")

    def __init__(self, keys: tuple[Hashable, ...], priority: Priority) -> None:
        self.keys = keys
        self.priority = priority
        self.misses: OrderedDict[Hashable, Placement] = OrderedDict()
        self.coming: dict[Hashable, Record] = {}
        self.ready: list[Record] = []
        self.out: dict[Hashable, Record] = {}
        self.released = 0
        self.is_waiting = False
        self.error: WasteError | None = None

    @property
    def is_pending(self) -> bool:
        """Whether some key was not handed out yet."""
        return len(self.out) + self.released < len(self.keys)

    @property
    def is_blocked(self) -> bool:
        """Whether its owner waits and nothing is there to go on with."""
        return self.is_waiting and not self.ready and self.error is None

"""`lru`: the key that was asked for least recently goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from waste.sched.policies import register


class LruPolicy:
    """Recency is when a lease asked, not when the bytes came: the same walk always evicts the same keys."""

    def __init__(self) -> None:
        self._order: OrderedDict[Hashable, None] = OrderedDict()

    def touch(self, key: Hashable) -> None:
        """See `EvictionPolicy.touch`."""
        self._order[key] = None
        self._order.move_to_end(key)

    def insert(self, key: Hashable) -> None:
        """See `EvictionPolicy.insert`. Lookahead counts as asked for now; a lease's key has its place already."""
        self._order.setdefault(key)

    def remove(self, key: Hashable) -> None:
        """See `EvictionPolicy.remove`."""
        del self._order[key]

    def victim(self, is_evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """See `EvictionPolicy.victim`."""
        return next((key for key in self._order if is_evictable(key)), None)


register("lru", LruPolicy)

"""What an eviction policy is: it remembers how keys were used and picks the one to lose its slot."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol


def group_of(key: Hashable) -> Hashable:
    """What the key is asked for together with: a tuple's first item names it, all other keys are one group.

    Leases walk through the groups in turn, so no key of a group is asked for before the group's next turn.
    """
    return key[0] if isinstance(key, tuple) and key else None


class EvictionPolicy(Protocol):
    """Told about keys by the cache; the order of touches does not depend on when reads return.

    A key is known from its first `touch` or `insert` until `remove`. Known keys need not be in a slot yet:
    those that a lease waits for are, too.
    """

    def touch(self, key: Hashable) -> None:
        """A lease asks for the key, found or not. Called for all keys of a lease in the order it names them."""
        ...

    def insert(self, key: Hashable) -> None:
        """The key was given a slot, for a lease (which touched it before) or as lookahead."""
        ...

    def remove(self, key: Hashable) -> None:
        """The known key has no slot any more, and no lease waits for it."""
        ...

    def victim(self, is_evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """The known key to evict, among those for which `is_evictable` holds; None only if it holds for none.

        Changes nothing: the cache calls `remove` if it does evict.
        """
        ...

"""`none`: nothing is read ahead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from waste.sched.prefetch import register


class NoPrefetch:
    """Reads on demand only."""

    wants_guesses = False

    def __init__(self, *, width: int | None) -> None:
        pass

    def choose(self, by_rank: Sequence[Sequence[Hashable]]) -> Sequence[Hashable]:
        """See `PrefetchPolicy.choose`."""
        return ()


register("none", NoPrefetch)

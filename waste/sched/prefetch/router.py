"""`router`: the best few of what the next layer's router says already now."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from waste.sched.prefetch import register


class RouterPrefetch:
    """Reads the first `width` guesses a token, or all of them.

    The likeliest go first, and what has not been begun when the router itself has chosen is not read at all.
    """

    wants_guesses = True

    def __init__(self, *, width: int | None) -> None:
        self._width = width

    def choose(self, by_rank: Sequence[Sequence[Hashable]]) -> Sequence[Hashable]:
        """See `PrefetchPolicy.choose`."""
        return [key for rank in by_rank[: self._width] for key in rank]


register("router", RouterPrefetch)

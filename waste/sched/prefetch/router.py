"""`router`: the best few of what the next layer's router says already now."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from waste.sched.prefetch import register

_SHARE = 0.75
"""Of a token's experts, where no width is given: the lower a guess ranks, the more often it is wrong."""


class RouterPrefetch:
    """Reads the first `width` guesses a token."""

    wants_guesses = True

    def __init__(self, *, width: int | None) -> None:
        self._width = width

    def choose(self, by_rank: Sequence[Sequence[Hashable]]) -> Sequence[Hashable]:
        """See `PrefetchPolicy.choose`."""
        width = round(len(by_rank) * _SHARE) if self._width is None else self._width
        return [key for rank in by_rank[:width] for key in rank]


register("router", RouterPrefetch)

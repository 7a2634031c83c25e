"""What a prefetch policy is: given guesses at what is needed next, it picks those worth reading ahead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol


class PrefetchPolicy(Protocol):
    """Made with `width`, how many guesses a token to read ahead; None leaves it to the policy.

    Asked once before each lease that can be foreseen; what it picks goes to `ExpertCache.prefetch`.
    """

    @property
    def wants_guesses(self) -> bool:
        """False if guesses need not even be made."""
        ...

    def choose(self, by_rank: Sequence[Sequence[Hashable]]) -> Sequence[Hashable]:
        """The keys to read ahead, most urgent first, out of the guesses of each rank, the likeliest rank first.

        A rank has one guess for each token of the step; tokens may guess the same key.
        """
        ...

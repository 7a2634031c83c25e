"""What a prefetch policy is: given guesses at what is needed next, it picks those worth reading ahead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol


class PrefetchPolicy(Protocol):
    """Asked once before each lease that can be foreseen; what it picks goes to `ExpertCache.prefetch`."""

    @property
    def wants_guesses(self) -> bool:
        """False if guesses need not even be made."""
        ...

    def choose(self, guesses: Sequence[Hashable]) -> Sequence[Hashable]:
        """The keys to read ahead, most urgent first, out of `guesses`, which come most likely first."""
        ...

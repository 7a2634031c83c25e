"""Reading ahead what the next router will probably ask for, and how often the guess was right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waste.model.experts import expert_key
from waste.sched.cache import ExpertCache
from waste.sched.prefetch.base import PrefetchPolicy


@dataclass(frozen=True, slots=True)
class Recall:
    """Of one layer: tokens it was guessed for, and by rank, likeliest first, how often the router agreed."""

    tokens: int
    hits: tuple[int, ...]


class Lookahead:
    """The guesses of one engine. For the event loop's thread.

    A guess is what a layer's router says about what is known of its input while the layer before is at work. `policy`
    chooses what of it is read; the real router decides in any case.
    """

    def __init__(self, policy: PrefetchPolicy, cache: ExpertCache, top_k: int) -> None:
        self._policy = policy
        self._cache = cache
        self._top_k = top_k
        self._guesses: dict[int, list[list[int]]] = {}
        self._tokens: dict[int, int] = {}
        self._hits: dict[int, list[int]] = {}

    def begin(self) -> None:
        """A step begins; what an aborted one left is of no use."""
        self._guesses.clear()
        self._cache.drop_lookahead()

    def guessed(self, layer: int, ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]) -> None:
        """The guess for a layer: k experts a token and their weights, in any order. Starts what the policy picks."""
        if self._cache.is_closed:
            return
        ranked = [_by_weight(*of_token) for of_token in zip(ids, weights, strict=True)]
        self._guesses[layer] = ranked
        by_rank = [[expert_key(layer, expert) for expert in column] for column in zip(*ranked, strict=True)]
        self._cache.prefetch(dict.fromkeys(self._policy.choose(by_rank)))

    def routed(self, layer: int, ids: Sequence[Sequence[int]]) -> None:
        """What the layer's router really chose for each token; its lease has been made: the rest is stale."""
        self._cache.drop_lookahead()
        guess = self._guesses.pop(layer, None)
        if guess is None:
            return
        hits = self._hits.setdefault(layer, [0] * self._top_k)
        for guessed, chosen in zip(guess, ids, strict=True):
            for rank, expert in enumerate(guessed):
                hits[rank] += expert in chosen
        self._tokens[layer] = self._tokens.get(layer, 0) + len(ids)

    def recall(self) -> Mapping[int, Recall]:
        """By layer, since the engine was opened."""
        return {layer: Recall(self._tokens[layer], tuple(self._hits[layer])) for layer in sorted(self._tokens)}


def _by_weight(ids: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The likeliest first; of equals the one that came first."""
    # A handful: numpy would take several times as long.
    return [ids[place] for place in sorted(range(len(ids)), key=lambda place: -weights[place])]

"""Loss and perplexity: how well a model predicts given tokens, in bits that depend on its logits alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from waste.engine import Engine, check_ids
from waste.errors import InputError
from waste.model.sampling import check_finite, natural_log

FloatArray = NDArray[np.float64]
Ids = Sequence[int] | NDArray[np.int32]

# The logarithm of 2 in two parts: products with the first, of 32 bits, are exact.
_LOG_2_HIGH = 0.693147180369123816490
_LOG_2_LOW = 1.90821492927058770002e-10
_LOWEST_EXPONENT = -700.0
"""Smaller ones would leave float64's normal numbers, and add nothing to a sum of one and more."""
_TERMS = 14
"""Of the exponential's series, up to half of log 2: less than 1e-17 is left."""


@dataclass(frozen=True, slots=True)
class Score:
    """`nats`: the sum of -log p over `predictions`, one less than there are tokens."""

    predictions: int
    nats: float

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / self.predictions

    @property
    def perplexity(self) -> float:
        """e^loss; infinite where float64 has no such number."""
        return math.exp(self.loss) if self.loss < 709.0 else math.inf


def total(scores: Sequence[Score]) -> Score:
    """All of them as one; the sum is exact before it is rounded."""
    return Score(sum(score.predictions for score in scores), math.fsum(score.nats for score in scores))


def choose_documents(documents: Sequence[Ids], *, limit: int | None, max_tokens: int | None) -> list[Ids]:
    """The first `limit` of those with something to predict, cut to `max_tokens`.

    Raises InputError if there are none.
    """
    chosen = [document[:max_tokens] for document in documents if len(document[:max_tokens]) > 1]
    if not chosen:
        raise InputError("there is nothing to predict; give a document of two tokens or more")
    return chosen[:limit]


def windows(tokens: int, context: int) -> Iterator[tuple[int, int]]:
    """Which tokens to feed together, so that each but the first is predicted once.

    A document that does not fit the context goes on in an empty one, with the last token that was predicted.
    """
    for begin in range(0, tokens - 1, context):
        yield begin, min(begin + context, tokens - 1)


class Evaluation:
    """Scores documents one after the other, each alone from its first token on. `scores` holds those done.

    One at a time, because steps of several tokens do not walk together: more sessions would save nothing.
    """

    def __init__(self, engine: Engine, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        self._engine = engine
        self._progress = progress
        self._done = self._total = 0
        self.scores: list[Score] = []
        self.seconds = 0.0
        """Of walking alone."""

    async def run(self, documents: Sequence[Ids]) -> Score:
        """All of `documents`, each of two tokens or more.

        Raises InputError naming the document with an id that the model does not have, before any is scored; later
        ModelError for logits that are no numbers, and what `Engine.logits` raises.
        """
        for number, document in enumerate(documents):
            try:
                await asyncio.to_thread(check_ids, document, self._engine.model.config.vocab_size)
            except InputError as error:
                raise InputError(f"document {number} of those to score: {error}") from None
        async with self._engine.session() as session:
            context = session.context
        self._total = sum(len(document) - 1 for document in documents)
        self._progress(0, self._total)
        for document in documents:
            losses: list[float] = []
            for begin, end in windows(len(document), context):
                await self._score(document[begin : end + 1], losses)
            self.scores.append(Score(len(losses), math.fsum(losses)))
        return total(self.scores)

    async def _score(self, ids: Ids, losses: list[float]) -> None:
        began = perf_counter()
        async with aclosing(self._engine.logits([int(token) for token in ids[:-1]])) as rows:
            position = 0
            async for row in rows:
                self.seconds += perf_counter() - began
                position += 1
                # Not on the loop: a large vocabulary takes its time.
                losses.append(await asyncio.to_thread(token_loss, row, int(ids[position])))
                self._done += 1
                self._progress(self._done, self._total)
                began = perf_counter()


def token_loss(logits: NDArray[np.float32], token: int) -> float:
    """-log of the token's probability, in nats, from additions and products of float64 alone.

    Raises ModelError if a logit is not finite.
    """
    check_finite(logits)
    exponents = logits.astype(np.float64)
    exponents -= exponents.max()
    chosen = float(exponents[token])
    np.maximum(exponents, _LOWEST_EXPONENT, out=exponents)
    # A running sum has one order on every machine.
    return natural_log(float(np.cumsum(exponentials(exponents))[-1])) - chosen


def exponentials(x: FloatArray) -> FloatArray:
    """e^x for x from -700 to 0: the C library's and numpy's have bits that vary by CPU."""
    twos = np.rint(x * (1.0 / (_LOG_2_HIGH + _LOG_2_LOW)))
    rest = x - twos * _LOG_2_HIGH
    rest -= twos * _LOG_2_LOW
    series = np.ones_like(x)
    for term in range(_TERMS, 0, -1):
        series *= rest
        series /= term
        series += 1.0
    return np.ldexp(series, twos.astype(np.int32))

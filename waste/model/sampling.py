"""From logits to the next token: greedy, or drawn with temperature, top-k and top-p.

The same seed gives the same text on every machine, so nothing here depends on the instruction set or on the order in
which a vector unit adds: exponentials come from the kernels, sums are sequential, ties go to the lower id.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from waste.errors import InputError, ModelError

Exp = Callable[[NDArray[np.float32]], NDArray[np.float32]]

MAX_LOGPROBS = 1024
MAX_SEED = (1 << 64) - 1
LOG_2 = 0.6931471805599453
# exp(-87) is the smallest power that float32 holds with full precision; what is rarer is never drawn.
LOWEST_EXPONENT = -87.0
# Tokens that are ordered first when top-p looks for its set, before it takes eight times as many.
FIRST_CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. The default is greedy.

    temperature: 0 is greedy, 1 the model's own distribution.
    top_k: keep the k most likely tokens. None: all.
    top_p: keep the smallest set of most likely tokens whose mass, after temperature and top_k, is at least this.
    seed: 0 to 2^64 - 1; None draws a fresh one.
    logprobs: number of alternatives to report with each token. None: none.

    Raises `InputError` naming the parameter.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, low=0.0, high=math.inf, expected="0 (greedy) or above")
        _check_number("top_p", self.top_p, low=math.ulp(0.0), high=1.0, expected="above 0 and at most 1")
        _check_integer("top_k", self.top_k, low=1, high=None)
        _check_integer("seed", self.seed, low=0, high=MAX_SEED)
        _check_integer("logprobs", self.logprobs, low=0, high=MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token. Log-probabilities are the model's own: natural, before temperature, top-k and top-p.

    `alternatives`: (id, logprob) of the most likely tokens, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


class Sampler:
    """Chooses one sequence's tokens. Holds the random state, so one sampler serves one sequence.

    `exp` is elementwise e^x on float32, x from -87 to 0.
    """

    def __init__(self, params: SamplingParams, *, exp: Exp) -> None:
        self._params = params
        self._exp = exp
        self._random = np.random.Generator(np.random.PCG64(params.seed))

    def choose(self, logits: NDArray[np.float32]) -> Choice:
        """The next token for `logits`, float32 `[vocab]`. Draws once, and not at all when greedy.

        Raises `ModelError` if a logit is not finite.
        """
        check_finite(logits)
        best = int(np.argmax(logits))
        token_id = best if self._params.is_greedy else self._draw(logits)
        highest = float(logits[best])
        log_mass = natural_log(_total(self._weights(logits, 1.0)))
        listed = _most_likely(logits, self._params.logprobs or 0)
        return Choice(
            token_id,
            float(logits[token_id]) - highest - log_mass,
            tuple((int(i), float(logits[i]) - highest - log_mass) for i in listed),
        )

    def _draw(self, logits: NDArray[np.float32]) -> int:
        params = self._params
        ids: NDArray[np.intp] | None = None
        if params.top_k is not None and params.top_k < len(logits):
            ids = _most_likely(logits, params.top_k)
            logits = logits[ids]
        weights = self._weights(logits, params.temperature)
        if params.top_p < 1.0:
            kept = _nucleus(logits, weights, params.top_p)
            ids = kept if ids is None else ids[kept]
            weights = weights[kept]
        mass = np.cumsum(weights, dtype=np.float64)
        # Rounding could lift the product to the total itself, which lies beyond the last token.
        target = min(self._random.random() * mass[-1], np.nextafter(mass[-1], 0.0))
        drawn = int(np.searchsorted(mass, target, side="right"))
        return drawn if ids is None else int(ids[drawn])

    def _weights(self, logits: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
        """exp((logits - max) / temperature), zero where that is too small to matter."""
        with np.errstate(over="ignore"):
            exponents = (logits.astype(np.float64) - float(logits.max())) / temperature
        weights = self._exp(np.maximum(exponents, LOWEST_EXPONENT).astype(np.float32))
        return np.where(exponents < LOWEST_EXPONENT, np.float32(0.0), weights)


def _most_likely(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ids of the `count` highest logits, best first, the lower id first among equals."""
    count = min(count, len(logits))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    # A partition leaves the order of ties to the instruction set, but the value at its border is certain.
    border = np.partition(logits, len(logits) - count)[len(logits) - count]
    above = np.flatnonzero(logits > border)
    ids = np.concatenate([above, np.flatnonzero(logits == border)[: count - len(above)]])
    return ids[np.argsort(-logits[ids], kind="stable")]


def _nucleus(logits: NDArray[np.float32], weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """Ids of the smallest set of most likely tokens with at least `top_p` of the mass, best first."""
    wanted = top_p * _total(weights)
    count = FIRST_CANDIDATES
    while True:
        ids = _most_likely(logits, count)
        mass = np.cumsum(weights[ids], dtype=np.float64)
        if mass[-1] >= wanted or len(ids) == len(logits):
            return ids[: int(np.searchsorted(mass, wanted, side="left")) + 1]
        count *= 8


def _total(weights: NDArray[np.float32]) -> float:
    return float(np.cumsum(weights, dtype=np.float64)[-1])


def natural_log(x: float) -> float:
    """Natural logarithm of x > 0 from additions and products alone: the C library's has bits that vary by CPU."""
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    # log m = 2 atanh(t), |t| < 0.172: twelve terms leave less than 1e-19.
    t = (mantissa - 1.0) / (mantissa + 1.0)
    series = 0.0
    for k in range(23, 0, -2):
        series = series * t * t + 1.0 / k
    return exponent * LOG_2 + 2.0 * t * series


def check_finite(logits: NDArray[np.float32]) -> None:
    if logits.ndim != 1 or not len(logits):
        raise InputError(f"logits have shape {list(logits.shape)}, expected one row with at least one value")
    finite = np.isfinite(logits)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ModelError(
            f"the logit of token {first} is {logits[first]}, expected a finite number: "
            "a weight of the model is damaged, or out of the range that float32 can compute with"
        )


def _check_number(name: str, value: object, *, low: float, high: float, expected: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high or value == math.inf:
        raise InputError(f"{name} is {value!r}, expected a number {expected}")


def _check_integer(name: str, value: object, *, low: int, high: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        limit = "" if high is None else f" to {high}"
        raise InputError(f"{name} is {value!r}, expected an integer from {low}{limit}, or nothing")

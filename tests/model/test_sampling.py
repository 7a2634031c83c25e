"""Sampling: exact probabilities, ties by id, the same text for the same seed, and no answer from broken logits."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from waste.errors import InputError, ModelError
from waste.model.sampling import Choice, Sampler, SamplingParams, natural_log

Row = NDArray[np.float32]


def exp(x: Row) -> Row:
    """Elementwise, and only in the range a kernel has to promise."""
    assert x.dtype == np.float32
    assert x.size == 0 or (x.min() >= -87.0 and x.max() <= 0.0)
    return np.exp(x)


def sampler(**params: object) -> Sampler:
    return Sampler(SamplingParams(**params), exp=exp)  # type: ignore[arg-type]


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


def log_softmax(logits: Row, temperature: float = 1.0) -> NDArray[np.float64]:
    z = logits.astype(np.float64) / temperature
    z -= z.max()
    return z - math.log(np.exp(z).sum())


def draws(logits: Row, count: int, **params: object) -> Counter[int]:
    chooser = sampler(**params)
    return Counter(chooser.choose(logits).token_id for _ in range(count))


NOISE = np.random.default_rng(3).normal(size=2000).astype(np.float32) * 2


def test_greedy_is_the_default_and_ties_go_to_the_lower_id() -> None:
    assert SamplingParams().is_greedy
    assert sampler().choose(row(1, 5, 2, 5, 5)).token_id == 1
    assert sampler().choose(NOISE).token_id == int(np.argmax(NOISE))


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "seed": 1}])
def test_logprobs_are_the_models_own(params: dict[str, object]) -> None:
    choice = sampler(**params, logprobs=4).choose(NOISE)
    exact = log_softmax(NOISE)
    order = np.argsort(-exact, kind="stable")[:4].tolist()
    assert [token_id for token_id, _ in choice.alternatives] == order
    assert [logprob for _, logprob in choice.alternatives] == pytest.approx(exact[order].tolist(), abs=1e-6)
    assert choice.logprob == pytest.approx(exact[choice.token_id], abs=1e-6)


def test_alternatives_only_when_asked_for_and_never_more_than_there_are() -> None:
    assert sampler().choose(row(1, 2)).alternatives == ()
    assert sampler(logprobs=0).choose(row(1, 2)).alternatives == ()
    assert [i for i, _ in sampler(logprobs=9).choose(row(1, 2, 1)).alternatives] == [1, 0, 2]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"temperature": 1.0}, [0, 1, 2, 3, 4]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4]),
        ({"temperature": 2.0, "top_k": 3}, [1, 2, 4]),
        ({"temperature": 1.0, "top_k": 9, "top_p": 0.9}, [0, 1, 2, 4]),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.99}, [2, 4]),
    ],
)
def test_draws_follow_the_exact_distribution(params: dict[str, float], kept: list[int]) -> None:
    logits = row(0.5, 1.0, 2.0, -0.5, 1.5)
    probabilities = np.exp(log_softmax(logits[kept], params["temperature"]))
    count = 4000
    drawn = draws(logits, count, seed=11, **params)
    assert set(drawn) == set(kept)
    for token_id, probability in zip(kept, probabilities, strict=True):
        deviation = math.sqrt(probability * (1 - probability) / count)
        assert drawn[token_id] / count == pytest.approx(probability, abs=5 * deviation)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.25, {1}), (0.5, {1}), (0.51, {1, 3}), (0.75, {1, 3}), (0.76, {0, 1, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_has_the_mass(top_p: float, kept: set[int]) -> None:
    # Halves of halves: 1/8, 1/2, 1/8, 1/4. The weights relative to the best are exact, so are the borders.
    logits = row(*(math.log(p) for p in (0.125, 0.5, 0.125, 0.25)))
    chooser = Sampler(SamplingParams(temperature=1.0, top_p=top_p, seed=5), exp=halves)
    assert {chooser.choose(logits).token_id for _ in range(300)} == kept


def halves(x: Row) -> Row:
    """exp for multiples of log 2, exactly."""
    return np.exp2(np.rint(x / np.float32(math.log(2)))).astype(np.float32)


def test_a_tiny_top_p_keeps_the_best() -> None:
    assert set(draws(NOISE, 50, temperature=5.0, top_p=1e-300, seed=0)) == {int(np.argmax(NOISE))}


def test_top_p_beyond_the_first_candidates() -> None:
    flat = np.zeros(5000, dtype=np.float32)
    drawn = draws(flat, 600, temperature=1.0, top_p=0.5, seed=1)
    assert 2400 < max(drawn) < 2500
    assert len(drawn) > 400
    assert max(draws(flat, 600, temperature=1.0, top_p=math.nextafter(1.0, 0.0), seed=1)) > 4950


def test_ties_at_the_border_of_top_k_go_to_the_lower_id() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    logits[700] = 1.0
    assert set(draws(logits, 200, temperature=1.0, top_k=3, seed=0)) == {700, 0, 1}


def test_equal_alternatives_come_in_the_order_of_their_ids() -> None:
    logits = np.tile(row(0.0, 1.0, 2.0), 300)
    ids = [token_id for token_id, _ in sampler(logprobs=900).choose(logits).alternatives]
    assert ids == [*range(2, 900, 3), *range(1, 900, 3), *range(0, 900, 3)]


def test_top_k_one_is_greedy() -> None:
    assert set(draws(NOISE, 20, temperature=9.0, top_k=1, seed=0)) == {int(np.argmax(NOISE))}


def test_the_same_seed_gives_the_same_tokens() -> None:
    def text(**params: object) -> list[Choice]:
        chooser = sampler(temperature=1.0, **params)
        return [chooser.choose(NOISE) for _ in range(40)]

    assert text(seed=42) == text(seed=42)
    assert text(seed=42) != text(seed=43)
    assert text() != text()


def test_the_random_stream_does_not_depend_on_the_cuts() -> None:
    """One draw a token: after ten tokens two samplers of one seed go on alike, whatever was asked of them."""
    first, second = sampler(temperature=1.0, seed=9), sampler(temperature=1.0, seed=9, logprobs=5)
    for _ in range(10):
        first.choose(NOISE)
        second.choose(np.roll(NOISE, 7))
    assert first.choose(NOISE).token_id == second.choose(NOISE).token_id


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-4])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert set(draws(NOISE, 20, temperature=temperature, seed=0)) == {int(np.argmax(NOISE))}


def test_a_huge_temperature_is_uniform() -> None:
    drawn = draws(row(-50, 0, 50, 100), 4000, temperature=1e300, seed=0)
    assert all(drawn[i] == pytest.approx(1000, abs=150) for i in range(4))


@pytest.mark.parametrize("scale", [1e30, 3.4e38])
def test_huge_logits(scale: float) -> None:
    logits = row(-scale, scale, 0, scale)
    choice = sampler(temperature=1.0, seed=0, logprobs=4).choose(logits)
    assert choice.token_id in (1, 3)
    assert choice.logprob == pytest.approx(-math.log(2))
    assert sampler().choose(logits).token_id == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers(temperature: float, value: float) -> None:
    logits = NOISE.copy()
    logits[17] = value
    with pytest.raises(ModelError, match=rf"logit of token 17 is {value}, expected a finite number"):
        sampler(temperature=temperature, seed=0).choose(logits)


@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
def test_logits_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="logits have shape"):
        sampler().choose(np.zeros(shape, dtype=np.float32))


WRONG = [
    *(("temperature", value) for value in (-1.0, math.nan, math.inf, "1", None, True)),
    *(("top_p", value) for value in (0.0, -0.1, 1.1, math.nan, "1", None, True)),
    *(("top_k", value) for value in (0, -1, 1.0, "1", True)),
    *(("seed", value) for value in (-1, 1 << 64, 1.0, "1", True)),
    *(("logprobs", value) for value in (-1, 1025, 1.0, "1", True)),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_parameters_that_make_no_sense(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{name} is .*expected"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@given(x=st.floats(min_value=1e-300, max_value=1e300))
def test_our_logarithm(x: float) -> None:
    assert natural_log(x) == pytest.approx(math.log(x), rel=4e-16, abs=2e-16)

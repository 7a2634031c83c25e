"""Perplexity against exact arithmetic, and exact sums of the engine's logits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from tests.engine.harness import all_logits, load_golden, open_model
from waste.errors import InputError, ModelError
from waste.perplexity import Evaluation, Score, choose_documents, exponentials, token_loss, total, windows


def exact_loss(logits: np.ndarray, token: int) -> float:
    with localcontext() as context:
        context.prec = 40
        values = [Decimal(float(value)) - Decimal(float(logits.max())) for value in logits]
        return float(sum(value.exp() for value in values).ln() - values[token])


def test_exponentials_are_those_of_exact_arithmetic() -> None:
    x = np.concatenate([np.linspace(-700, 0, 701), -(np.random.default_rng(1).random(300) ** 4)])
    expected = np.array([float(Decimal(float(value)).exp()) for value in x])
    assert np.abs(exponentials(x) / expected - 1).max() < 4e-16
    assert exponentials(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1e4, 1e38])
def test_a_tokens_loss_is_that_of_exact_arithmetic(spread: float) -> None:
    logits = (np.random.default_rng(2).standard_normal(300) * spread).clip(-3e38, 3e38).astype(np.float32)
    for token in (0, 17, 299, int(np.argmax(logits))):
        assert token_loss(logits, token) == pytest.approx(exact_loss(logits, token), rel=1e-14, abs=1e-15)


def test_a_loss_of_what_is_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="token 1 is nan"):
        token_loss(np.array([0, np.nan], np.float32), 0)


def test_scores_add_up() -> None:
    score = total([Score(3, 6.0), Score(1, 2.0)])
    assert (score.predictions, score.nats, score.loss) == (4, 8.0, 2.0)
    assert score.perplexity == pytest.approx(math.e**2)
    assert Score(1, 1e5).perplexity == math.inf


def test_every_token_but_the_first_is_predicted_once() -> None:
    for tokens in range(2, 40):
        for context in (1, 2, 7, 39, 64):
            predicted = [begin + 1 + row for begin, end in windows(tokens, context) for row in range(end - begin)]
            assert predicted == list(range(1, tokens))
            assert all(end - begin <= context for begin, end in windows(tokens, context))


def test_documents_are_chosen_among_those_that_predict() -> None:
    documents = [[1], [1, 2, 3], [], [4, 5], [6, 7, 8, 9]]
    assert choose_documents(documents, limit=2, max_tokens=None) == [[1, 2, 3], [4, 5]]
    assert choose_documents(documents, limit=None, max_tokens=2) == [[1, 2], [4, 5], [6, 7]]
    with pytest.raises(InputError, match="nothing to predict"):
        choose_documents([[1], []], limit=None, max_tokens=None)


async def test_scores_are_sums_over_the_engines_logits() -> None:
    """Windows included, and whatever the engine's chunks are."""
    ids = load_golden("tiny-k3").ids
    documents = [ids[:9], ids[:21], ids[5:7]]
    seen: list[tuple[int, int]] = []
    async with open_model("tiny-k3", context=8) as engine:
        evaluation = Evaluation(engine, lambda done, of: seen.append((done, of)))
        await evaluation.run(documents)
        for document, score in zip(documents, evaluation.scores, strict=True):
            losses = []
            for begin in range(0, len(document) - 1, 8):
                part = document[begin : begin + 9]
                rows = await all_logits(engine, part[:-1])
                losses += [exact_loss(row, token) for row, token in zip(rows, part[1:], strict=True)]
            assert score.predictions == len(document) - 1 == len(losses)
            assert score.nats == pytest.approx(sum(losses), rel=1e-14)
    async with open_model("tiny-k3", context=8, **{"prefill.chunk": 3}) as engine:
        again = Evaluation(engine)
        await again.run(documents)
    assert again.scores == evaluation.scores
    assert seen == [(done, 29) for done in range(30)]

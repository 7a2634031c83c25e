"""`waste.run`: the engine for people without an event loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import waste
from tests.engine.harness import GOLDEN, assert_clean, load_golden, open_descriptors, our_threads
from waste.errors import InputError, ModelError

K3 = load_golden("tiny-k3")
OPTIONS: dict[str, Any] = {"ram": "1GiB", "context": 64, "compute__threads": 2}


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    descriptors = open_descriptors()
    yield
    assert_clean()
    assert open_descriptors() == descriptors
    assert not [thread for thread in threading.enumerate() if "asyncio" in thread.name]


def test_consumed() -> None:
    tokens = list(waste.run(K3.path, K3.ids, max_tokens=5, **OPTIONS))
    assert [token.id for token in tokens] == K3.greedy[:5]
    assert [token.finish_reason for token in tokens] == [None] * 4 + ["length"]
    assert our_threads() == []


def test_text() -> None:
    tokens = waste.run("demo", "In the beginning", max_tokens=12, **OPTIONS)
    assert "".join(token.text for token in tokens).startswith(" of the reign of the house of the LORD")


def test_nothing_before_the_first_is_asked_for() -> None:
    tokens = waste.run(K3.path, K3.ids, **OPTIONS)
    assert our_threads() == []
    del tokens


def test_abandoned() -> None:
    tokens = waste.run(K3.path, K3.ids, **OPTIONS)
    assert [token.id for token in itertools.islice(tokens, 2)] == K3.greedy[:2]
    assert "waste-run" in our_threads()
    del tokens
    gc.collect()
    assert our_threads() == []


def test_closed() -> None:
    tokens = waste.run(K3.path, K3.ids, **OPTIONS)
    next(tokens)
    tokens.close()  # type: ignore[attr-defined]
    assert our_threads() == []
    assert list(tokens) == []


def test_body_raises() -> None:
    def body() -> None:
        for _ in waste.run(K3.path, K3.ids, **OPTIONS):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


@pytest.mark.parametrize(
    ("path", "prompt", "options", "error", "message"),
    [
        (GOLDEN / "nowhere", [1], {}, ModelError, "nowhere"),
        (K3.path, [], {}, InputError, "prompt is empty"),
        (K3.path, [999], {}, InputError, "id 999"),
        (K3.path, [1], {"max_tokens": 0}, InputError, "max_tokens"),
        (K3.path, [1], {"io__backend": "tape"}, InputError, "tape"),
    ],
)
def test_errors(path: Any, prompt: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    tokens = waste.run(path, prompt, **{**OPTIONS, **options})
    with pytest.raises(error, match=message):
        next(tokens)
    assert our_threads() == []


def test_unknown_setting_at_once() -> None:
    with pytest.raises(InputError, match=r"io\.queue_depth"):
        waste.run(K3.path, [1], io__queue_deep=3)


def test_two_at_once() -> None:
    one, other = (waste.run(K3.path, K3.ids, max_tokens=3, **OPTIONS) for _ in range(2))
    assert [(a.id, b.id) for a, b in zip(one, other, strict=True)] == [(t, t) for t in K3.greedy[:3]]


def test_beside_a_running_loop() -> None:
    async def main() -> list[int]:
        return [token.id for token in waste.run(K3.path, K3.ids, max_tokens=2, **OPTIONS)]

    with asyncio.Runner() as runner:
        assert runner.run(main()) == K3.greedy[:2]

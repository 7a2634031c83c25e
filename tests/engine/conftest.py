"""Every test here must leave its loop and its process as it found them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

import waste.footprint
from tests.engine.harness import MODELS, Golden, assert_clean, load_golden, open_descriptors


@pytest.fixture(params=MODELS, scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden(request.param)


@pytest.fixture(scope="session")
def k3() -> Golden:
    return load_golden("tiny-k3")


@pytest.fixture
async def leaves_nothing() -> AsyncIterator[None]:
    """No task, thread or descriptor outlives the test, and no error reaches only the loop's handler."""
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    descriptors = open_descriptors()
    tasks = asyncio.all_tasks()
    yield
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= tasks | {asyncio.current_task()}
    assert unhandled == []
    assert open_descriptors().items() <= descriptors.items()
    assert_clean()


@pytest.fixture
def nothing_but_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets that count the model alone: beside an interpreter, a small one's parts could not be told apart."""
    monkeypatch.setattr(waste.footprint, "INTERPRETER_BYTES", 0)
    monkeypatch.setattr(waste.footprint, "COMPILER_BYTES", 0)

"""Shared by all tests."""

from __future__ import annotations

import asyncio

import pytest

LONG = ("test_full_k3.py", "test_instruction_sets.py", "test_wheel.py", "test_budgets.py", "test_long_prompts.py")
"""Files that take longest begin first, so that no process works alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))


# A sync test that calls `asyncio.run` must not find, and leak, a loop that a plugin made implicitly.
asyncio.set_event_loop(None)

"""Shared by all tests."""

from __future__ import annotations

import asyncio

# A sync test that calls `asyncio.run` must not find, and leak, a loop that a plugin made implicitly.
asyncio.set_event_loop(None)

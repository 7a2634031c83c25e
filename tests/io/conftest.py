import asyncio

import pytest

pytest.register_assert_rewrite("waste.io.backends.contract")

# Test plugins ask for "the current loop"; without this the first to ask makes one that nobody closes.
asyncio.set_event_loop(None)

"""Runs a command's coroutine: on uvloop where it exists, and so that an interrupt cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from waste.cli.interrupt import INTERRUPTION

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] = lambda: None) -> T:
    """What `work` returns. Interrupted, `on_interrupt` is called on the loop, then `work` is cancelled.

    Raises what `work` raises; CancelledError or KeyboardInterrupt if it was interrupted.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_interruptible(work, on_interrupt))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


async def _interruptible(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None]) -> T:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        with suppress(OSError):  # nobody reads our output any more
            on_interrupt()
        task.cancel()

    with INTERRUPTION.calls(lambda: _tell(loop, cancel)):
        return await work


def _tell(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(action)

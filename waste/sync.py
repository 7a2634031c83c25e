"""Tokens for people without an event loop: the engine runs on a thread of its own, one token ahead of nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from waste.engine import Engine, Prompt, open
from waste.generate import Token

_FOR_GENERATE = ("sampling", "max_tokens", "stop")


def run(path: str | Path, prompt: Prompt, **options: Any) -> Iterator[Token]:
    """Tokens that continue `prompt`, without `async`; the engine is open until the iterator ends or is closed.

    options: those of `Engine.generate` (sampling, max_tokens, stop), all others go to `open`. The next token is
    computed when it is asked for. Raises what `open` and `generate` do.
    """
    generating = {name: options.pop(name) for name in _FOR_GENERATE if name in options}
    return _iterate(open(path, **options), prompt, generating)


def _iterate(engine: Engine, prompt: Prompt, options: dict[str, Any]) -> Iterator[Token]:
    worker = _Worker(engine, prompt, options)
    try:
        while (token := worker.next()) is not None:
            yield token
    finally:
        worker.close()


class _Worker:
    """The thread: puts one token at a time into `_items`, then what ended it."""

    def __init__(self, engine: Engine, prompt: Prompt, options: dict[str, Any]) -> None:
        self._items: SimpleQueue[Token | BaseException | None] = SimpleQueue()
        self._began = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=self._work, args=(engine, prompt, options), name="waste-run", daemon=True
        )
        self._thread.start()
        self._began.wait()

    def next(self) -> Token | None:
        """The next token, None after the last. Raises what ended the generation."""
        self._call(lambda: self._wanted.set())
        item = self._items.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Call the generation off and wait until everything of it is gone."""
        self._call(lambda: self._task.cancel())
        self._thread.join()

    def _call(self, action: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended already
                self._loop.call_soon_threadsafe(action)

    def _work(self, engine: Engine, prompt: Prompt, options: dict[str, Any]) -> None:
        end: BaseException | None = None
        try:
            asyncio.run(self._stream(engine, prompt, options))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            end = error
        self._items.put(end)
        self._began.set()  # if it never came to run

    async def _stream(self, engine: Engine, prompt: Prompt, options: dict[str, Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop, self._task, self._wanted = asyncio.get_running_loop(), task, asyncio.Event()
        self._began.set()
        await self._wanted.wait()
        async with engine:
            async for token in engine.generate(prompt, **options):
                self._wanted.clear()
                self._items.put(token)
                await self._wanted.wait()

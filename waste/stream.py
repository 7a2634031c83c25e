"""An async iterator over what one session yields, which may be dropped between any two items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from waste.session import Session

T = TypeVar("T")


class SessionStream(AsyncIterator[T], ABC, Generic[T]):
    """Uses a session until it is exhausted, closed or dropped; with `owns_session` the session ends with it.

    Not an async generator: of one that was broken out of, the event loop learns only when it is collected, and then
    needs a task to close it. Between two items of this there is nothing to call off, so letting go is enough.
    """

    _is_over = True  # until there is a session to let go of

    def __init__(self, session: Session, *, owns_session: bool) -> None:
        session.begin_use()
        self._session = session
        self._owns_session = owns_session
        self._is_running = False
        self._is_over = False

    @abstractmethod
    async def _next(self) -> T:
        """The next item. Raises StopAsyncIteration after the last."""

    async def __anext__(self) -> T:
        self._check_idle()
        if self._is_over:
            raise StopAsyncIteration
        self._is_running = True
        try:
            return await self._next()
        except BaseException:
            self._end()
            raise
        finally:
            self._is_running = False

    async def aclose(self) -> None:
        """Let go of the session. Safe to call twice. Raises RuntimeError while somebody waits for an item."""
        self._check_idle()
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._session.end_use()
            if self._owns_session:
                self._session.close()

    def _check_idle(self) -> None:
        if self._is_running:
            raise RuntimeError("somebody waits for the next item of this already")

    def __del__(self) -> None:
        # On any thread, and with no loop running: only what takes neither.
        SessionStream._end(self)

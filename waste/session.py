"""One conversation's place in a model: what was fed, what waits to be fed, and the memory that remembers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waste.errors import ClosedError, InputError
from waste.model.state import SessionState


class Session:
    """Made by `Engine.session`; pass it to `generate` to continue where the last call ended.

    `length` counts positions used of `context`. A token that was generated but not yet fed back waits in `pending`.

    on_close: told that it was closed. give_back: told that its memory is free, after the step under way.
    """

    def __init__(
        self, state: SessionState, *, on_close: Callable[[Session], None], give_back: Callable[[Session], None]
    ) -> None:
        self._state: SessionState | None = state
        self._on_close = on_close
        self._give_back = give_back
        self._ids: list[int] = []
        self.pending: list[int] = []
        self._is_busy = False
        self._is_closed = False
        self._is_walking = False
        self._is_stop_asked = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def state(self) -> SessionState:
        """The memory. Raises ClosedError after `close`."""
        if self._is_closed or self._state is None:
            raise ClosedError("the session was closed; open another with Engine.session()")
        return self._state

    @property
    def length(self) -> int:
        """Positions in use; what is pending is not counted."""
        return self.state.length

    @property
    def context(self) -> int:
        """Positions there are."""
        return self.state.context

    @property
    def ids(self) -> Sequence[int]:
        """Every id fed so far, oldest first."""
        return tuple(self._ids)

    def fed(self, ids: Sequence[int]) -> None:
        """For the step loop: a step with these ids was committed."""
        self._ids.extend(ids)
        self.pending = []

    def begin_use(self) -> None:
        """Raises InputError if somebody generates with it already, ClosedError after `close`."""
        if self._is_closed:
            raise ClosedError("the session was closed; open another with Engine.session()")
        if self._is_busy:
            raise InputError("this session is generating already; open another one, or finish the first call")
        self._is_busy = True
        self._is_stop_asked = False

    def end_use(self) -> None:
        self._is_busy = False

    def ask_stop(self) -> None:
        """For the step loop: what generates with it now is to end before its next step."""
        self._is_stop_asked = self._is_busy

    def take_stop(self) -> bool:
        """Whether that was asked; it counts once."""
        asked, self._is_stop_asked = self._is_stop_asked, False
        return asked

    def begin_step(self) -> None:
        """For the step loop: a walk works on the memory, which stays until `end_step`, closed or not."""
        self._is_walking = True

    def end_step(self) -> None:
        self._is_walking = False
        if self._is_closed:
            self._free()

    def close(self) -> None:
        """Give its memory back, after the step under way, which ends with ClosedError. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_close(self)
        if not self._is_walking:
            self._free()

    def _free(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None
            self._give_back(self)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

"""Logits of a whole text, a position at a time: all of them at once would not fit the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waste.generate import check_room
from waste.model.scratch import FloatArray
from waste.model.step import Tap
from waste.session import Session
from waste.step_loop import StepLoop
from waste.stream import SessionStream


class LogitRows(SessionStream[FloatArray]):
    """Logits after each of `ids`, float32 [vocab], walked in a new session `chunk` at a time.

    Raises as `check_room`.
    """

    def __init__(self, loop: StepLoop, session: Session, ids: Sequence[int], *, chunk: int, tap: Tap | None) -> None:
        check_room(session, ids)
        self._loop = loop
        self._ids = ids
        self._chunk = chunk
        self._tap = tap
        self._begin = 0
        self._rows: Iterator[FloatArray] = iter(())
        super().__init__(session, owns_session=True)

    async def _next(self) -> FloatArray:
        row = next(self._rows, None)
        if row is not None:
            # A copy: whoever keeps one row must not keep its whole chunk beside the next one.
            return row.copy()
        self._rows = iter(())
        part = self._ids[self._begin : self._begin + self._chunk]
        if not part:
            raise StopAsyncIteration
        end = self._begin + len(part)
        is_last = end == len(self._ids)
        rows = await self._loop.step(self._session, part, wanted=len(part), is_last=is_last, tap=self._tap)
        self._rows, self._begin = iter(rows), end
        return next(self._rows).copy()

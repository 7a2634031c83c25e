"""The step loop: whoever wants tokens walked puts a chunk in; one walk after the other takes what has gathered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from waste.errors import ClosedError, WasteError
from waste.model.decoder import Decoder, StepMemory
from waste.model.scratch import FloatArray
from waste.model.state import Chunk
from waste.model.step import Tap
from waste.session import Session


class StoppedError(WasteError):
    """Somebody called `stop` on the session; never leaves the package."""


class _Work:
    """One session's part in one step, from being asked for to its logits."""

    __slots__ = ("chunk", "future", "is_withdrawn", "session", "tap")

    def __init__(self, session: Session, chunk: Chunk, tap: Tap | None) -> None:
        self.session = session
        self.chunk = chunk
        self.tap = tap
        self.future: asyncio.Future[FloatArray] = asyncio.get_running_loop().create_future()
        self.is_withdrawn = False


class StepLoop:
    """Runs walks while anybody waits for one. `max_tokens` and `max_logit_rows` bound a step; so do spare states."""

    def __init__(self, decoder: Decoder, memory: StepMemory, *, max_tokens: int, max_logit_rows: int) -> None:
        self._decoder = decoder
        self._memory = memory
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        self._waiting: deque[_Work] = deque()
        self._batch: list[_Work] = []
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.steps = 0
        self.tokens = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run in this group until `close`."""
        self._task = group.create_task(self._run(), name="waste-steps")

    async def step(self, session: Session, ids: Sequence[int], *, wanted: int, tap: Tap | None = None) -> FloatArray:
        """Walk `ids` as the session's next tokens; returns logits of the last `wanted`, float32 [wanted, vocab].

        The session has advanced when this returns and is as before if it raises: ReadError, DamagedError, or
        ClosedError. Cancelled, the step is called off for this session; others in the batch go on. A step with a
        `tap` walks alone.
        """
        if self._is_closed:
            raise ClosedError("the engine was closed")
        if session.take_stop():
            raise StoppedError
        work = _Work(session, Chunk(session.state, ids, wanted), tap)
        self._waiting.append(work)
        self._awake.set()
        try:
            return await work.future
        except asyncio.CancelledError:
            self._withdraw(work)
            raise

    def close(self) -> None:
        """End the walk under way and tell everybody who waits. Their sessions stay as they were."""
        if self._is_closed:
            return
        self._is_closed = True
        for work in [*self._batch, *self._waiting]:
            self._fail(work, ClosedError("the engine was closed"))
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def stop(self, session: Session) -> None:
        """End the session's step under way, or the next one it asks for, with StoppedError."""
        for work in [*self._batch, *self._waiting]:
            if work.session is session and not work.future.done():
                self._fail(work, StoppedError())
                self._withdraw(work)
                return
        session.ask_stop()

    def _withdraw(self, work: _Work) -> None:
        work.is_withdrawn = True
        if work in self._waiting:
            self._waiting.remove(work)
        elif work in self._batch and all(other.is_withdrawn for other in self._batch) and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            self._batch = self._compose()
            if self._batch:
                await self._walk(self._batch)
            else:
                self._awake.clear()
                await self._awake.wait()

    def _compose(self) -> list[_Work]:
        """The works of the next step, first come first served, as far as tokens, logits and spare states reach."""
        batch: list[_Work] = []
        tokens = rows = 0
        spares = self._memory.spares.free
        passed: list[_Work] = []
        sessions = set()
        while self._waiting:
            work = self._waiting.popleft()
            count = len(work.chunk.ids)
            fits = (
                tokens + count <= self.max_tokens
                and rows + work.chunk.wanted <= self.max_logit_rows
                and (count == 1 or spares > 0)
                and id(work.session) not in sessions
                and not (batch and (work.tap or batch[0].tap))
            )
            if work.session.is_closed:
                self._fail(work, ClosedError("the session was closed"))
                continue
            if not fits:
                passed.append(work)
                continue
            batch.append(work)
            sessions.add(id(work.session))
            tokens, rows, spares = tokens + count, rows + work.chunk.wanted, spares - (count > 1)
        self._waiting.extendleft(reversed(passed))
        return batch

    async def _walk(self, batch: list[_Work]) -> None:
        for work in batch:
            work.session.begin_step()
        try:
            outcome = await self._decoder.forward(self._memory, [work.chunk for work in batch], batch[0].tap or Tap())
        except asyncio.CancelledError:
            if self._is_closed:
                raise
            # Everybody in the batch has withdrawn; the loop itself goes on.
            assert self._task is not None
            self._task.uncancel()
        except Exception as error:
            for work in batch:
                self._fail(work, error)
        else:
            self.steps += 1
            for work, draft, logits in zip(batch, outcome.drafts, outcome.logits, strict=True):
                if work.is_withdrawn or work.session.is_closed or work.future.done():
                    draft.discard()
                    continue
                draft.commit()
                work.session.fed(work.chunk.ids)
                self.tokens += len(work.chunk.ids)
                work.future.set_result(logits)
        finally:
            self._batch = []
            for work in batch:
                work.session.end_step()

    @staticmethod
    def _fail(work: _Work, error: BaseException) -> None:
        if not work.future.done():
            work.future.set_exception(error)

"""The step loop: whoever wants tokens walked puts a chunk in; one walk after the other takes what has gathered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from waste.errors import ClosedError, WasteError
from waste.model.decoder import Decoder, Outcome, StepMemory
from waste.model.scratch import FloatArray
from waste.model.state import Chunk, Draft
from waste.model.step import Tap
from waste.session import Session

WalkProgress = Callable[[float], None]

LINGER = 0.25
"""How long a walk waits for the sessions of the last one to come back, as a part of the time that one took."""


class StoppedError(WasteError):
    """Somebody called `stop` on the session; never leaves the package."""


class _Work:
    """One session's part in one step, from being asked for to being committed or called off by whoever asked.

    is_alone: shares its walk with nobody. is_last: no step of the session is expected to follow. progress: told what
    part of the walk is done. draft: what the walk came to, until it is settled.
    """

    __slots__ = ("chunk", "draft", "future", "is_alone", "is_last", "is_withdrawn", "progress", "session", "tap")

    def __init__(
        self, session: Session, chunk: Chunk, tap: Tap | None, *, is_last: bool, progress: WalkProgress | None
    ) -> None:
        self.session = session
        self.chunk = chunk
        self.tap = tap
        self.is_alone = tap is not None
        self.is_last = is_last
        self.progress = progress
        self.is_withdrawn = False
        self.draft: Draft | None = None
        self.future: asyncio.Future[FloatArray] = asyncio.get_running_loop().create_future()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.is_withdrawn and not self.future.done()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class StepLoop:
    """Runs walks while anybody waits for one. `max_tokens` and `max_logit_rows` bound a step; so do spare states."""

    def __init__(self, decoder: Decoder, memory: StepMemory, *, max_tokens: int, max_logit_rows: int) -> None:
        self._decoder = decoder
        self._memory = memory
        self.max_tokens = max_tokens
        self.max_logit_rows = max_logit_rows
        self._waiting: deque[_Work] = deque()
        self._batch: list[_Work] = []
        self._returning: set[Session] = set()
        self._awake = asyncio.Event()
        self._walk_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_called_off = False
        self._is_closed = False
        self.steps = 0
        self.tokens = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run in this group until `close`."""
        self._task = group.create_task(self._run(), name="waste-steps")

    async def step(
        self,
        session: Session,
        ids: Sequence[int],
        *,
        wanted: int,
        is_last: bool = False,
        tap: Tap | None = None,
        progress: WalkProgress | None = None,
    ) -> FloatArray:
        """Walk `ids` as the session's next tokens; returns logits of the last `wanted`, float32 [wanted, vocab].

        The session has advanced when this returns and is as before if it raises: ReadError, DamagedError, ClosedError
        or a cancellation, which calls the step off for this session; others in the batch go on. A step with a `tap`
        walks alone. After one that is the last of its session nothing is read ahead for another walk. `progress` is
        told what part of the layers is behind the walk, 0 to 1, again and again.
        """
        if self._is_closed:
            raise ClosedError("the engine was closed")
        if session.take_stop():
            raise StoppedError
        work = _Work(session, Chunk(session.state, ids, wanted), tap, is_last=is_last, progress=progress)
        self._returning.discard(session)
        self._waiting.append(work)
        self._awake.set()
        try:
            logits = await work.future
            if session.is_closed:
                raise ClosedError("the session was closed")
        except BaseException:
            self._withdraw(work)
            raise
        # Here and not in the walk: a cancellation that comes between the two must find the session as it was.
        self._settle(work, is_commit=True)
        return logits

    def leave(self, session: Session) -> None:
        """The session will not ask for another step at once: nobody need wait for it."""
        self._returning.discard(session)
        self._awake.set()

    def stop(self, session: Session) -> None:
        """End the session's step under way, or the next one it asks for, with StoppedError."""
        if not self._end(session, StoppedError()):
            session.ask_stop()

    def drop(self, session: Session) -> None:
        """The session was closed: end its step under way, if there is one, with ClosedError."""
        self._end(session, ClosedError("the session was closed"))

    def close(self) -> None:
        """End the walk under way and tell everybody who waits. Their sessions stay as they were."""
        self._refuse()
        if self._task is not None:
            self._task.cancel()

    def _refuse(self) -> None:
        """No step from now on; those that wait for one hear of it."""
        self._is_closed = True
        for work in [*self._batch, *self._waiting]:
            work.fail(ClosedError("the engine was closed"))
        self._waiting.clear()

    def _end(self, session: Session, error: WasteError) -> bool:
        for work in [*self._batch, *self._waiting]:
            if work.session is session and work.is_wanted:
                work.fail(error)
                self._withdraw(work)
                return True
        return False

    def _withdraw(self, work: _Work) -> None:
        """Nobody waits for this work any more."""
        work.is_withdrawn = True
        if work.draft is not None:
            self._settle(work, is_commit=False)
        elif work in self._waiting:
            self._waiting.remove(work)
        elif work in self._batch and not any(other.is_wanted for other in self._batch):
            self._call_off()

    def _call_off(self) -> None:
        """End the walk under way, and only that."""
        if self._task is not None and not self._is_called_off:
            self._is_called_off = True
            self._task.cancel()

    def _settle(self, work: _Work, *, is_commit: bool) -> None:
        """A walk's outcome becomes the session's state, or is forgotten; what it kept is free for the next step."""
        draft, work.draft = work.draft, None
        assert draft is not None
        if is_commit:
            draft.commit()
            work.session.fed(work.chunk.ids)
            self.tokens += len(work.chunk.ids)
        else:
            draft.discard()
        work.session.end_step()
        self._awake.set()

    async def _run(self) -> None:
        try:
            while True:
                await self._linger()
                self._awake.clear()
                self._batch = self._compose()
                if self._batch:
                    await self._walk(self._batch)
                else:
                    await self._awake.wait()
        finally:
            # Whoever ended it: nobody may wait for a step that never comes.
            self._refuse()

    async def _linger(self) -> None:
        """Wait a little for the sessions of the last walk: those that come back go on walking together."""
        if not self._returning:
            return
        try:
            async with asyncio.timeout(self._walk_s * LINGER):
                while self._returning:
                    self._awake.clear()
                    await self._awake.wait()
        except TimeoutError:
            self._returning.clear()

    def _compose(self) -> list[_Work]:
        """The works of the next step, first come first served, as far as tokens, logits and spare states reach."""
        batch: list[_Work] = []
        tokens = rows = 0
        spares = self._memory.spares.free
        passed: list[_Work] = []
        while self._waiting:
            work = self._waiting.popleft()
            count = len(work.chunk.ids)
            if (
                tokens + count > self.max_tokens
                or rows + work.chunk.wanted > self.max_logit_rows
                or (count > 1 and spares == 0)
                or (batch and (work.is_alone or batch[0].is_alone))
            ):
                passed.append(work)
                continue
            batch.append(work)
            tokens, rows, spares = tokens + count, rows + work.chunk.wanted, spares - (count > 1)
        self._waiting.extend(passed)
        return batch

    async def _walk(self, batch: list[_Work]) -> None:
        began = perf_counter()
        for work in batch:
            work.session.begin_step()
        reads_on = bool(self._waiting) or not all(work.is_last for work in batch)
        chunks, tap = [work.chunk for work in batch], batch[0].tap or Tap()
        try:
            outcome = await self._decoder.forward(
                self._memory, chunks, tap, reads_on=reads_on, progress=partial(_tell, batch)
            )
        except asyncio.CancelledError:
            # Calling a walk off is one cancellation; the loop's own end is another.
            if self._task is None or self._task.cancelling() > self._is_called_off:
                self._refuse()
                raise
        except Exception as error:
            self._fail(batch, error)
        else:
            self.steps += 1
            self._deliver(batch, outcome)
        finally:
            self._batch = []
            self._walk_s = perf_counter() - began
            if self._is_called_off and self._task is not None:
                self._is_called_off = False
                self._task.uncancel()
            for work in batch:
                if work.draft is None:
                    work.session.end_step()

    def _deliver(self, batch: list[_Work], outcome: Outcome) -> None:
        for work, draft, logits in zip(batch, outcome.drafts, outcome.logits, strict=True):
            if work.is_wanted:
                work.draft = draft
                work.future.set_result(logits)
                self._returning.add(work.session)
            else:
                draft.discard()

    def _fail(self, batch: list[_Work], error: Exception) -> None:
        """What one session's tokens need may be broken: the others of a batch must not suffer, so each goes alone."""
        if len(batch) == 1:
            batch[0].fail(error)
            return
        for work in reversed(batch):
            if work.is_wanted:
                work.is_alone = True
                self._waiting.appendleft(work)


def _tell(batch: list[_Work], part: float) -> None:
    for work in batch:
        if work.progress is not None and work.is_wanted:
            work.progress(part)

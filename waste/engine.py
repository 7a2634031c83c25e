"""The engine: a model opened under a budget, from `async with` to `async with`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np

from waste.errors import ClosedError, InputError, UnsupportedError
from waste.generate import Generation, Request, check_room
from waste.logit_rows import LogitRows
from waste.machine import resident_limit
from waste.model.bundle import ModelBundle
from waste.model.sampling import SamplingParams
from waste.model.scratch import FloatArray
from waste.model.step import Tap
from waste.opening import Opened, Progress, open_model
from waste.presets import resolve
from waste.process import peak_rss_bytes
from waste.prompt import encode_within
from waste.sched.plan import Plan
from waste.session import Session
from waste.settings import GIB, MIB, Settings
from waste.stats import EngineStatistics
from waste.step_loop import StoppedError
from waste.timeline import Timeline

MANY_FAULTS = 1000
"""Major page faults of one opening, each some hundred microseconds, before they are worth a word."""

_log = logging.getLogger("waste")

Prompt = str | Sequence[int]
T = TypeVar("T")


def open(
    path: str | Path,
    *,
    preset: str | None = None,
    ram: int | str | None = None,
    progress: Progress | None = None,
    **overrides: object,
) -> Engine:
    """An engine for the model at `path` (`demo` is the one that ships with the package), to be entered.

    preset: a shipped preset's name or a YAML file; `auto` where none is named. ram: the ceiling, bytes or "8GiB".
    overrides: settings by dotted key, `**{"trunk.tile": "1MiB"}`; a double underscore may stand for the dot.
    progress: told (what, done, total) while kernels compile and weights load, on any thread.

    Raises InputError for a preset or a setting that is wrong. Entering raises ModelError, UnsupportedError or
    BudgetError.
    """
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    return Engine(path, resolve(preset, ram=ram, overrides=values), progress=progress)


class Engine:
    """Made by `open`. Everything it owns, tasks, threads, files and memory, is gone when its `async with` ends.

    Its coroutines belong to the event loop it was entered on; `stop` may be called from any thread.
    """

    def __init__(self, path: str | Path, settings: Settings, *, progress: Progress | None = None) -> None:
        self._path = path
        self._settings = settings
        self._progress = progress or (lambda what, done, total: None)
        self._opened: Opened | None = None
        self._timeline: Timeline | None = None
        self._stack = AsyncExitStack()
        self._sessions: set[Session] = set()
        self._is_entered = False
        self._is_closed = False

    async def __aenter__(self) -> Engine:
        if self._is_entered:
            raise ClosedError("an engine can be entered once; open another one")
        self._is_entered = True
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self._opened = await open_model(stack, self._path, self._settings, self._progress, self._timeline)
            self._stack = stack.pop_all()
        for complaint in plan_complaints(self._opened.plan):
            _log.warning(complaint)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        opened = self._require(closed=True)
        if complaint := paging_complaint(opened.major_faults, opened.plan.budget_bytes, backend=opened.backend):
            _log.warning(complaint)
        opened.loop.close()
        for session in list(self._sessions):
            session.close()
        # The body's error is no business of our task group's: it is raised by `async with` itself.
        await self._stack.aclose()

    def _require(self, *, closed: bool = False) -> Opened:
        if self._opened is None or (self._is_closed and not closed):
            raise ClosedError("the engine is not open; use `async with waste.open(...)`")
        return self._opened

    @property
    def plan(self) -> Plan:
        """Who got how much of the budget."""
        return self._require(closed=True).plan

    @property
    def model(self) -> ModelBundle:
        """The model's config, tokenizer and tables."""
        return self._require(closed=True).bundle

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def context(self) -> int:
        """Positions of each session."""
        return self._require(closed=True).drawn.shape.context

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self._require(closed=True).workers.threads

    def watch(self, timeline: Timeline | None) -> None:
        """Record into `timeline` what is read, computed and walked from now on; None ends it.

        Before the engine is entered, the opening is recorded, too.
        """
        self._timeline = timeline
        if self._opened is not None:
            self._opened.watch(timeline)

    def session(self) -> Session:
        """A new session, with nothing in its context. Close it, or use it as an async context manager.

        Raises InputError if as many are open as the plan counted.
        """
        opened = self._require()
        if len(self._sessions) >= opened.sizes.sessions:
            raise InputError(
                f"{len(self._sessions)} sessions are open, which is all the plan counted; "
                "close one or open the engine with a larger `sessions`"
            )
        session = Session(opened.new_state(), on_close=opened.loop.drop, give_back=self._sessions.discard)
        self._sessions.add(session)
        return session

    def stop(self, session: Session) -> None:
        """End what the session is generating, as if its consumer had broken off. Safe from any thread."""
        stop = self._require().loop.stop
        self._loop.call_soon_threadsafe(stop, session)

    def encode(self, prompt: Prompt, *, is_first: bool = True, room: int | None = None) -> list[int]:
        """The ids of a prompt. Text gets the BOS id in front if it is the first of its session; ids stay as they are.

        room: the most ids that are of use; text of more raises ContextLengthError before they all have been made.

        Raises InputError for ids out of range, for text without a tokenizer, and for anything else.
        """
        bundle = self._require(closed=True).bundle
        if isinstance(prompt, str):
            if bundle.tokenizer is None:
                raise InputError(f"{bundle.path} has no tokenizer; give the prompt as ids")
            bos = bundle.config.bos_token_id
            first = [bos] if is_first and bos is not None and prompt else []
            if room is None:
                return first + bundle.tokenizer.encode(prompt)
            return first + encode_within(bundle.tokenizer, prompt, room=room - len(first), context=self.context)
        return check_ids(prompt, bundle.config.vocab_size)

    def generate(
        self,
        prompt: Prompt,
        *,
        session: Session | None = None,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Generation:
        """Tokens that continue `prompt`, text or ids, as they are chosen: an async iterator of `Token`.

        session: continues it, else a new one is used for this call. sampling: greedy where none is given.
        max_tokens: None goes on until an end id, a stop string or the end of the context. stop: strings that end
        the text and are not shown. progress: told (tokens done, tokens in all) as the prompt is fed.

        Breaking out, closing the iterator or being cancelled leaves the session at its last whole step.
        Raises InputError, UnsupportedError or ClosedError; iterating also ContextLengthError, ReadError and
        DamagedError. After any but ClosedError the session can go on.
        """
        opened = self._require()
        if not isinstance(prompt, str) and is_list(prompt) and any(isinstance(item, Mapping) for item in prompt):
            raise UnsupportedError("messages are not supported yet; give the prompt as text or ids")
        if max_tokens is not None and (
            not isinstance(max_tokens, int | np.integer) or isinstance(max_tokens, bool) or max_tokens < 1
        ):
            raise InputError(f"max_tokens is {max_tokens!r}, expected a whole number from 1")

        def make(used: Session) -> Generation:
            is_first = used.length == 0 and not used.pending
            request = Request(
                lambda: self.encode(prompt, is_first=is_first, room=used.context - used.length - len(used.pending)),
                sampling or SamplingParams(),
                max_tokens,
                stop,
                opened.bundle.end_ids,
                progress,
            )
            return Generation(opened.generator, used, request, owns_session=session is None)

        return self._in_session(session, make)

    def logits(self, ids: Sequence[int], *, tap: Tap | None = None) -> LogitRows:
        """Logits after each of `ids`, float32 [vocab], one position at a time: row t predicts id t + 1.

        Raises InputError, ContextLengthError or ClosedError; iterating also ReadError and DamagedError.
        """
        opened = self._require()
        checked = check_ids(ids, opened.bundle.config.vocab_size)
        chunk = min(opened.sizes.chunk, opened.loop.max_logit_rows)
        return self._in_session(None, lambda used: LogitRows(opened.loop, used, checked, chunk=chunk, tap=tap))

    async def feed(self, session: Session, ids: Sequence[int]) -> FloatArray:
        """Walk `ids` as the session's next tokens, whatever the model would have said; the logits after the last one,
        float32 [vocab]. What `generate` chose last and was not fed yet goes first.

        Cancelled or failed, the session is at its last whole step. Raises InputError, ContextLengthError, ReadError,
        DamagedError, and ClosedError also for `stop`.
        """
        opened = self._require()
        self._check_mine(session)
        checked = check_ids(ids, opened.bundle.config.vocab_size)
        session.begin_use()
        try:
            fed, chunk = [*session.pending, *checked], opened.generator.chunk
            check_room(session, fed)
            for begin in range(0, len(fed), chunk):
                part = fed[begin : begin + chunk]
                logits = await opened.loop.step(session, part, wanted=int(begin + chunk >= len(fed)))
            last: FloatArray = logits[0]
            return last
        except StoppedError:
            raise ClosedError("the session was stopped") from None
        finally:
            opened.loop.leave(session)
            session.end_use()

    def _check_mine(self, session: Session) -> None:
        if session not in self._sessions and not session.is_closed:
            raise InputError("the session belongs to another engine; use one that this engine's session() made")

    def _in_session(self, session: Session | None, make: Callable[[Session], T]) -> T:
        """`make` with the given session or a new one, which is closed again if that fails."""
        if session is None:
            new = self.session()
            try:
                return make(new)
            except BaseException:
                new.close()
                raise
        self._check_mine(session)
        return make(session)

    def stats(self) -> EngineStatistics:
        """What was read, hit, waited for and computed so far; also after the engine was closed."""
        opened = self._require(closed=True)
        return opened.statistics(peak_rss_bytes=peak_rss_bytes(), sessions_open=len(self._sessions))


def plan_complaints(plan: Plan) -> Iterator[str]:
    """What to say about a plan that nothing forbids, and that is not what was wished for, or not wise."""
    limit = resident_limit()
    if limit is not None and plan.total_bytes > limit.size:
        yield (
            f"the plan takes {plan.total_bytes / GIB:.1f} GiB, {limit.what} is {limit.size / GIB:.1f} GiB: the rest "
            "is swapped, or the process killed; give a smaller --ram"
        )
    for name, wished in plan.cut.items():
        yield cut_complaint(plan, name, wished)


def cut_complaint(plan: Plan, name: str, wished: int) -> str:
    """A wished size and what became of it. name: `trunk` or `experts`."""
    got = plan.parts["experts"] if name == "experts" else plan.parts["pinned"] + plan.parts["ring"]
    return f"--{name} is {wished:,} bytes and gets {got:,}: the budget of {plan.budget_bytes:,} leaves no more"


def paging_complaint(faults: int, budget_bytes: int, *, backend: str) -> str | None:
    """What to say if the system had to fetch this process's own pages from disk while it ran; None if it hardly did.

    A budget that the machine cannot hold makes every hit a page fault, slower than the read it was to save. The
    `mmap` backend reads by page faults, so there they mean nothing.
    """
    if faults < MANY_FAULTS or backend == "mmap":
        return None
    return (
        f"{faults:,} major page faults: the machine cannot hold the budget of {budget_bytes / GIB:.1f} GiB; "
        f"try --ram {max(1, budget_bytes // 4 * 3 // MIB)}MiB"
    )


def is_list(value: object) -> bool:
    """Whether `value` is several things in order: a sequence or an array, but no text."""
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def check_ids(ids: object, vocab_size: int) -> list[int]:
    """`ids` as a list of ints. Raises InputError naming the first that is not an id of the vocabulary."""
    if not is_list(ids):
        raise InputError(f"a prompt is text or a list of ids, not {type(ids).__name__}")
    assert isinstance(ids, Sequence | np.ndarray)
    for position, token in enumerate(ids):
        if not isinstance(token, int | np.integer) or isinstance(token, bool):
            raise InputError(
                f"id {token!r} at position {position} is a {type(token).__name__}, expected a whole number"
            )
        if not 0 <= token < vocab_size:
            found = int(token)
            raise InputError(f"id {found} at position {position} is out of range, expected 0 to {vocab_size - 1}")
    return [int(token) for token in ids]

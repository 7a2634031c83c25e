"""From a prompt to a stream of tokens: feed in chunks, choose, feed back, until something ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal

import numpy as np

from waste.errors import ContextLengthError, InputError
from waste.kernels import KernelSet
from waste.model.compute import Compute
from waste.model.sampling import Choice, Sampler, SamplingParams
from waste.model.scratch import FloatArray
from waste.model.text_stream import TextStream
from waste.model.tokenizer import Tokenizer
from waste.session import Session
from waste.step_loop import StepLoop, StoppedError
from waste.stream import SessionStream

FinishReason = Literal["end", "stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """How one call went: tokens fed from the prompt, tokens generated, seconds for each."""

    prompt_tokens: int
    generated_tokens: int
    prompt_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    text: what may be shown now; empty while a character is incomplete or a stop string may have begun.
    logprob: natural, the model's own, before temperature and cuts. alternatives: (id, logprob), best first, as many
    as `SamplingParams.logprobs` asks for.
    finish_reason: None until the last token; `end` an end id, `stop` a stop string, `length` max_tokens, `context` no
    position is left. stats: with the last token.
    """

    id: int
    text: str
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    stats: GenerationStats | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate: how to get the ids to feed first, how to choose, when to stop.

    encode: called once, on a compute thread; may raise. max_tokens None: until the context is full.
    """

    encode: Callable[[], Sequence[int]]
    sampling: SamplingParams
    max_tokens: int | None
    stop: Sequence[str]
    end_ids: frozenset[int]
    progress: Callable[[int, int], None]


def check_room(session: Session, ids: Sequence[int]) -> None:
    """Raises InputError for nothing to feed, ContextLengthError for more than the session has positions for."""
    if not ids:
        raise InputError("the prompt is empty; give at least one token")
    if session.length + len(ids) > session.context:
        raise ContextLengthError(
            f"{len(ids)} tokens after {session.length} do not fit a context of {session.context}; "
            "shorten the prompt or raise the setting `context`"
        )


@dataclass(frozen=True, slots=True)
class Generator:
    """What every generation of one engine shares. chunk: tokens of a prompt that walk together."""

    loop: StepLoop
    compute: Compute
    kernels: KernelSet
    tokenizer: Tokenizer | None
    chunk: int

    def exp(self, x: FloatArray) -> FloatArray:
        """e^x, float32, in the kernels' bits."""
        y = np.empty_like(x)
        self.kernels.exponential(np.ascontiguousarray(x), y)
        return y


class Generation(SessionStream[Token]):
    """The tokens of one call, each computed when it is asked for.

    Breaking out, closing it or being cancelled leaves the session at the last step that was completed. So does
    `StepLoop.stop`, which ends the stream.
    """

    def __init__(self, generator: Generator, session: Session, request: Request, *, owns_session: bool) -> None:
        self._sampler = Sampler(request.sampling, exp=generator.exp)
        self._text = TextStream(request.stop)
        self._generator = generator
        self._request = request
        self._prompt_tokens = self._count = 0
        self._began = perf_counter()
        self._prompt_s = 0.0
        self._last_id: int | None = None
        super().__init__(session, owns_session=owns_session)

    async def _next(self) -> Token:
        try:
            logits = await self._walk()
        except StoppedError:
            raise StopAsyncIteration from None
        choice = await self._generator.compute.call(lambda: self._sampler.choose(logits))
        self._count += 1
        self._last_id = choice.token_id
        self._session.pending = [choice.token_id]
        shown, reason = self._show(choice)
        stats = None
        if reason is not None:
            decode_s = perf_counter() - self._began - self._prompt_s
            stats = GenerationStats(self._prompt_tokens, self._count, self._prompt_s, decode_s)
            self._end()
        return Token(choice.token_id, shown, choice.logprob, choice.alternatives, reason, stats)

    async def _walk(self) -> FloatArray:
        """Feed the prompt, or the last token back; the logits after it, float32 [vocab]."""
        if self._last_id is not None:
            step = await self._generator.loop.step(
                self._session, [self._last_id], wanted=1, is_last=self._is_last_walk()
            )
            row: FloatArray = step[0]
            return row
        self._began = perf_counter()
        ids = await self._generator.compute.call(self._request.encode)
        self._prompt_tokens = len(ids)
        logits = await self._feed([*self._session.pending, *ids])
        self._prompt_s = perf_counter() - self._began
        return logits

    async def _feed(self, ids: Sequence[int]) -> FloatArray:
        check_room(self._session, ids)
        logits = np.empty((0, 0), np.float32)
        for begin in range(0, len(ids), self._generator.chunk):
            chunk = ids[begin : begin + self._generator.chunk]
            done = begin + len(chunk)
            is_end = done == len(ids)
            logits = await self._generator.loop.step(
                self._session,
                chunk,
                wanted=int(is_end),
                is_last=is_end and self._is_last_walk(),
                progress=partial(self._in_chunk, begin, len(chunk), len(ids)),
            )
            self._request.progress(done, len(ids))
        last: FloatArray = logits[0]
        return last

    def _in_chunk(self, begin: int, count: int, total: int, part: float) -> None:
        """A chunk of thousands of tokens takes minutes: a part of the layers counts as a part of its tokens."""
        self._request.progress(begin + int(part * count), total)

    def _is_last_walk(self) -> bool:
        """Whether the next token is the last one allowed."""
        return self._count + 1 == self._request.max_tokens

    def _show(self, choice: Choice) -> tuple[str, FinishReason | None]:
        """The text this token lets out, and whether it is the last one."""
        if choice.token_id in self._request.end_ids:
            return self._text.finish(), "end"
        tokenizer = self._generator.tokenizer
        shown = "" if tokenizer is None else self._text.push(tokenizer.token_bytes(choice.token_id))
        reason: FinishReason | None = None
        if self._text.matched is not None:
            reason = "stop"
        elif self._count == self._request.max_tokens:
            reason = "length"
        elif self._session.length == self._session.context:
            reason = "context"
        if reason in ("length", "context"):
            shown += self._text.finish()
        return shown, reason

    def _end(self) -> None:
        self._generator.loop.leave(self._session)
        super()._end()

"""From a prompt to a stream of tokens: feed in chunks, choose, feed back, until something ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
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
    """What to generate: ids to feed first, how to choose, when to stop. max_tokens None: until the context is full."""

    ids: Sequence[int]
    sampling: SamplingParams
    max_tokens: int | None
    stop: Sequence[str]
    end_ids: frozenset[int]


def check_room(session: Session, ids: Sequence[int]) -> None:
    """Raises InputError for nothing to feed, ContextLengthError for more than the session has positions for."""
    if not ids:
        raise InputError("the prompt is empty; give at least one token")
    if session.length + len(ids) > session.context:
        raise ContextLengthError(
            f"{len(ids)} tokens after {session.length} do not fit a context of {session.context}; "
            "shorten the prompt or raise the setting `context`"
        )


class Generator:
    """Runs requests for one engine; holds no state of its own between them."""

    def __init__(
        self, loop: StepLoop, compute: Compute, kernels: KernelSet, tokenizer: Tokenizer | None, chunk: int
    ) -> None:
        self._loop = loop
        self._compute = compute
        self._kernels = kernels
        self._tokenizer = tokenizer
        self._chunk = chunk

    async def stream(
        self, session: Session, request: Request, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> AsyncIterator[Token]:
        """Tokens as they are chosen. `progress(done, total)` is called as the prompt is fed.

        Breaking out or being cancelled leaves the session at the last step that was completed; so does
        `StepLoop.stop`, which ends the stream.
        """
        try:
            async for token in self._tokens(session, request, progress):
                yield token
        except StoppedError:
            return

    async def _tokens(
        self, session: Session, request: Request, progress: Callable[[int, int], None]
    ) -> AsyncIterator[Token]:
        sampler = Sampler(request.sampling, exp=self._exp)
        text = TextStream(request.stop)
        began = perf_counter()
        logits = await self.feed(session, [*session.pending, *request.ids], progress)
        prompt_s, count = perf_counter() - began, 0
        while True:
            choice = await self._choose(sampler, logits)
            count += 1
            session.pending = [choice.token_id]
            shown, reason = self._show(choice, text, request, count, session)
            stats = None
            if reason is not None:
                stats = GenerationStats(len(request.ids), count, prompt_s, perf_counter() - began - prompt_s)
            yield Token(choice.token_id, shown, choice.logprob, choice.alternatives, reason, stats)
            if reason is not None:
                return
            logits = (await self._loop.step(session, [choice.token_id], wanted=1))[0]

    async def feed(self, session: Session, ids: Sequence[int], progress: Callable[[int, int], None]) -> FloatArray:
        """Walk `ids` in chunks; the logits after the last one, float32 [vocab]. Raises as `check_room`, at once."""
        check_room(session, ids)
        logits = np.empty((0, 0), np.float32)
        for begin in range(0, len(ids), self._chunk):
            chunk = ids[begin : begin + self._chunk]
            is_last = begin + len(chunk) == len(ids)
            logits = await self._loop.step(session, chunk, wanted=1 if is_last else 0)
            progress(begin + len(chunk), len(ids))
        last: FloatArray = logits[0]
        return last

    async def _choose(self, sampler: Sampler, logits: FloatArray) -> Choice:
        chosen: list[Choice] = []
        await self._compute.run([lambda worker: chosen.append(sampler.choose(logits))])
        return chosen[0]

    def _show(
        self, choice: Choice, text: TextStream, request: Request, count: int, session: Session
    ) -> tuple[str, FinishReason | None]:
        """The text this token lets out, and whether it is the last one."""
        if choice.token_id in request.end_ids:
            return text.finish(), "end"
        shown = "" if self._tokenizer is None else text.push(self._tokenizer.token_bytes(choice.token_id))
        reason: FinishReason | None = None
        if text.matched is not None:
            reason = "stop"
        elif count == request.max_tokens:
            reason = "length"
        elif session.length == session.context:
            reason = "context"
        if reason in ("length", "context"):
            shown += text.finish()
        return shown, reason

    def _exp(self, x: FloatArray) -> FloatArray:
        y = np.empty_like(x)
        self._kernels.exponential(np.ascontiguousarray(x), y)
        return y

"""The walk: one ragged batch of tokens through every layer, from embedding rows to logits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from waste.io.source import WeightSource
from waste.kernels import KernelSet
from waste.model.backlog import Backlog
from waste.model.compute import Compute
from waste.model.config import ModelConfig
from waste.model.embedding import EmbeddingTable
from waste.model.experts import RecordUse
from waste.model.layer import Layer
from waste.model.layout import TrunkLayout, Use, trunk_tensor
from waste.model.lookahead import Lookahead
from waste.model.moe import MoeLayer
from waste.model.next_router import NextRouter
from waste.model.residual import Residuals
from waste.model.routine import Routine
from waste.model.rows import LayerRows
from waste.model.scratch import FloatArray, Scratch, measure
from waste.model.state import Chunk, Draft, SparePool, draft_batch
from waste.model.step import Step, Tap
from waste.model.trunk import Target, TrunkWalk
from waste.sched.cache import ExpertCache
from waste.sched.ring import TrunkRing

WalkWatch = Callable[[str | None, int], None]
"""Told, on the loop's thread, what a walk comes to next: ("embedding", tokens of the step), ("layer", its index),
("head", 0), and (None, 0) when it is over, however it ended."""


class Decoder:
    """The layers of a model. It knows sizes and names; bytes and threads come with each step."""

    def __init__(self, config: ModelConfig, source: WeightSource, align: int) -> None:
        self.config = config
        self.align = align
        self.watch: WalkWatch | None = None
        self._residuals = Residuals(config)
        model = f"{config.prefix}model."
        self._norm = f"{model}norm.weight"
        self._out = f"{model}output_attn_res"
        embedding = f"{model}embed_tokens.weight"
        self._head = embedding if config.tie_word_embeddings else f"{config.prefix}lm_head.weight"
        self.embedding = EmbeddingTable(trunk_tensor(Use(embedding), source.tensors[embedding]), align)
        self._layers: list[Layer] = []
        counts = [0, 0]
        for layer, is_kda in enumerate(config.layer_is_kda):
            self._layers.append(Layer(config, layer, counts[is_kda], source.tensors, source.banks))
            counts[is_kda] += 1
        for before, after in pairwise(self._layers):
            if isinstance(after.ffn, MoeLayer):
                before.next_router = NextRouter(config, after.index, after.prefix, after.ffn, self._residuals)

    def uses(self) -> Iterator[Use]:
        """Every trunk tensor in walk order, the head last."""
        for layer in self._layers:
            yield from layer.uses(self._residuals)
        yield from self._head_uses()

    def _head_uses(self) -> Iterator[Use]:
        yield from self._residuals.uses(self._out)
        yield Use(self._norm, is_vector=True)
        yield Use(self._head)

    def scratch_bytes(self, *, tokens: int, sessions: int, logit_rows: int, threads: int) -> int:
        """Scratch that a step of so many tokens and rows of logits takes, or one of a token of each session."""
        # Layers of one make take the same.
        makes = {(type(at.attention), type(at.ffn), at.next_router is None): at for at in self._layers}

        def take(scratch: Scratch, tokens: int, *, is_decode: bool) -> None:
            self._take_rows(scratch, tokens)
            for layer in makes.values():
                layer.take(scratch, tokens, threads, is_decode=is_decode)
            self._take_head(scratch, min(tokens, logit_rows))

        return max(
            measure(lambda scratch: take(scratch, tokens, is_decode=tokens == sessions)),
            measure(lambda scratch: take(scratch, sessions, is_decode=True)),
        )

    def _take_rows(self, scratch: Scratch, tokens: int) -> LayerRows:
        hidden = self.config.hidden_size
        return LayerRows(
            stream=self._residuals.take(scratch, tokens),
            mixed=scratch.floats(tokens, hidden),
            x=scratch.floats(tokens, hidden),
            y=scratch.floats(tokens, hidden),
            weight=scratch.floats(hidden),
        )

    def _take_head(self, scratch: Scratch, rows: int) -> tuple[FloatArray, FloatArray]:
        return scratch.floats(rows, self.config.hidden_size), scratch.floats(rows, self.config.vocab_size)

    async def forward(
        self,
        memory: StepMemory,
        chunks: Sequence[Chunk],
        tap: Tap,
        *,
        reads_on: bool,
        progress: Callable[[float], None] = lambda part: None,
    ) -> Outcome:
        """Walk a batch. Nothing of the sessions changes: that is for the drafts of the outcome to commit.

        reads_on: another walk is expected to follow, so the trunk's first tiles are read ahead for it. progress: told
        what part of the layers has been gone through, 0 to 1, before each.

        Raises ReadError or DamagedError naming what could not be used; then, as when cancelled, all drafts are
        discarded and the memory is free for the next step.
        """
        if memory.lookahead is not None:
            memory.lookahead.begin()
        drafts = draft_batch(chunks, memory.spares)
        try:
            async with self._step(memory, chunks, drafts, tap, reads_on=reads_on) as step:
                return Outcome(drafts, await self._through(memory, step, chunks, progress))
        except BaseException:
            for draft in drafts:
                draft.discard()
            raise
        finally:
            self._comes_to(None)

    @asynccontextmanager
    async def _step(
        self, memory: StepMemory, chunks: Sequence[Chunk], drafts: list[Draft], tap: Tap, *, reads_on: bool
    ) -> AsyncIterator[Step]:
        """One step's walk over the trunk; at its end the compute threads are done with all memory."""
        tokens = drafts[-1].end
        is_routine = tokens == 1 and memory.ring.is_whole and not tap.sees_hidden
        backlog = Backlog(memory.compute, memory.routine.stages if is_routine else None)
        with (
            memory.scratch.frame(),
            TrunkWalk(
                memory.layout,
                memory.ring,
                memory.compute,
                backlog,
                memory.kernels,
                memory.add_wait,
                end=self._end(memory.layout, chunks),
                reads_on=reads_on,
            ) as walk,
        ):
            step = Step(
                tokens,
                drafts,
                walk,
                memory.compute,
                backlog,
                memory.kernels,
                memory.scratch,
                memory.records,
                tap,
                memory.lookahead if tokens == len(chunks) else None,
            )
            if is_routine:
                step = memory.routine.renew(step)
            try:
                yield step
            finally:
                await backlog.settle()
                # The kept one outlives its sessions.
                step.drafts, step.tap = (), Tap()

    async def _through(
        self, memory: StepMemory, step: Step, chunks: Sequence[Chunk], progress: Callable[[float], None]
    ) -> list[FloatArray]:
        """From the embedding to the logits, see `_logits`."""
        rows = self._take_rows(memory.scratch, step.tokens)
        ids = [token for chunk in chunks for token in chunk.ids]
        self._comes_to("embedding", step.tokens)
        with step.walk.waiting():
            await self.embedding.read(memory.embeddings, memory.compute, memory.kernels, ids, rows.stream.sum)
        for layer in self._layers:
            progress(layer.index / len(self._layers))
            self._tell_when_come(step, "layer", layer.index)
            await layer.forward(step, memory.experts, self._residuals, rows)
        self._tell_when_come(step, "head")
        with step.backlog.part("head"):
            return await self._logits(step, chunks, rows)

    def _tell_when_come(self, step: Step, what: str, number: int = 0) -> None:
        """The walk adds work long before it is done; who watches wants to know when the threads come to it."""
        if self.watch is not None:
            tell = partial(asyncio.get_running_loop().call_soon_threadsafe, self._comes_to, what, number)
            step.backlog.add([lambda worker: None], then=tell)

    def _comes_to(self, what: str | None, number: int = 0) -> None:
        if self.watch is not None:
            self.watch(what, number)

    def _end(self, layout: TrunkLayout, chunks: Sequence[Chunk]) -> int:
        """The tile that this walk ends before: nobody reads the head if nobody wants logits."""
        if any(chunk.wanted for chunk in chunks):
            return len(layout.placements)
        head = {use.name for use in self._head_uses()}
        return 1 + max(piece.tile for piece in layout.pieces if piece.tensor.name not in head)

    async def _logits(self, step: Step, chunks: Sequence[Chunk], rows: LayerRows) -> list[FloatArray]:
        """For each chunk its wanted rows of logits [wanted, vocab], copies that outlive the step."""
        wanted = np.concatenate(
            [np.arange(draft.end - chunk.wanted, draft.end) for draft, chunk in zip(step.drafts, chunks, strict=True)]
        )
        if wanted.size == 0:
            await step.backlog.run()
            return [np.empty((0, self.config.vocab_size), np.float32) for _ in chunks]
        seen = await self._residuals.read(step, rows.stream, self._out, rows.mixed)
        x, logits = self._take_head(step.scratch, wanted.size)
        await step.walk.vectors((self._norm, rows.weight))

        def normalize(worker: int) -> None:
            np.take(seen, wanted, axis=0, out=x, mode="clip")
            step.kernels.rms_norm(x, 0, x.shape[1], rows.weight, self.config.rms_norm_eps, x, 0, wanted.size)

        step.backlog.add([normalize])
        await step.walk.products(Target(self._head, x, logits))
        copies: list[FloatArray] = []

        def copy(worker: int) -> None:
            copies.extend(np.array(part) for part in np.split(logits, np.cumsum([c.wanted for c in chunks])[:-1]))

        step.backlog.add([copy])
        await step.backlog.run()
        return copies


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Everything allocated that a step works with."""

    layout: TrunkLayout
    ring: TrunkRing
    experts: ExpertCache
    embeddings: ExpertCache
    spares: SparePool
    scratch: Scratch
    records: RecordUse
    compute: Compute
    kernels: KernelSet
    add_wait: Callable[[float], None]
    lookahead: Lookahead | None
    routine: Routine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step came to: by chunk a draft to commit and the logits asked for, float32 [wanted, vocab]."""

    drafts: list[Draft]
    logits: list[FloatArray]

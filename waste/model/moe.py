"""A mixture-of-experts layer: route, ask for the experts, do the shared part while they come, sum up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from waste.io.source import Bank
from waste.kernels.choices import SIGMOID, SOFTMAX
from waste.model.compute import Mark
from waste.model.config import ModelConfig, MoeConfig
from waste.model.expert_run import ExpertRun
from waste.model.expert_sweep import ExpertSweep, SweepBuffers
from waste.model.experts import ExpertBuffers, ExpertMath, ExpertWork, sort_by_expert
from waste.model.layout import Use
from waste.model.mlp import GatedMlp, MlpBuffers
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.step import Step
from waste.model.trunk import Target
from waste.sched.cache import ExpertCache

LANES = 8
ROUTERS = {"sigmoid": SIGMOID, "softmax": SOFTMAX}


@dataclass(frozen=True, slots=True)
class RouteBuffers:
    """What a router works with and says, for N tokens, k experts a token."""

    logits: FloatArray  # [N, experts, rounded up]
    bias: FloatArray  # [experts]
    ids: IntArray  # [N, k], ascending
    weights: FloatArray  # [N, k]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Arrays of one layer for N tokens, k experts a token, u inputs of an expert."""

    routed: RouteBuffers
    rows: IntArray  # [N, k]: where each choice's answer is
    latent: FloatArray  # [N, u], empty where experts read x itself
    answers: FloatArray  # [N·k, u], empty where they are summed up in place
    mixed: FloatArray  # [N, u]: Σ weight · answer, empty where it is the layer's answer itself
    norm: FloatArray  # [u]
    shared: MlpBuffers | None
    experts: ExpertBuffers | None
    sweep: SweepBuffers | None


class MoeLayer:
    """`prefix` ends in "block_sparse_moe."; `cache` holds the layer's records under `expert_key`."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, layer: int, prefix: str, bank: Bank) -> None:
        self._moe = moe
        self._hidden = config.hidden_size
        self._eps = config.rms_norm_eps
        self._layer = layer
        self._prefix = prefix
        self.gate = prefix + "gate.weight"
        self.bias = prefix + "gate.e_score_correction_bias"
        self._math = ExpertMath(layer, bank, config.activation)
        self._shared = (
            GatedMlp(config.activation, f"{prefix}shared_experts.", moe.shared_width) if moe.num_shared else None
        )

    def uses(self) -> Iterator[Use]:
        """The layer's trunk tensors in walk order: the router first, so that its reads start early."""
        prefix, moe = self._prefix, self._moe
        yield Use(self.gate)
        yield Use(self.bias, is_vector=True)
        if moe.latent_size is not None:
            yield Use(prefix + "routed_expert_down_proj.weight")
        if self._shared is not None:
            yield from self._shared.uses()
        if moe.latent_size is not None:
            if moe.latent_norm:
                yield Use(prefix + "routed_expert_norm.weight", is_vector=True)
            yield Use(prefix + "routed_expert_up_proj.weight")

    def take(self, scratch: Scratch, tokens: int, threads: int, *, is_decode: bool) -> _Buffers:
        moe = self._moe
        width = moe.input_size(self._hidden)
        is_latent, choices = moe.latent_size is not None, tokens * moe.top_k
        return _Buffers(
            routed=self.take_route(scratch, tokens),
            rows=scratch.ints(tokens, moe.top_k),
            latent=scratch.floats(tokens, width if is_latent else 0),
            answers=scratch.floats(choices if is_decode else 0, width),
            mixed=scratch.floats(tokens, width if is_latent else 0),
            norm=scratch.floats(width),
            shared=None if self._shared is None else self._shared.take(scratch, tokens),
            experts=ExpertBuffers.take(scratch, threads, tokens, choices, width, moe.expert_width)
            if is_decode
            else None,
            sweep=None if is_decode else SweepBuffers.take(scratch, threads, choices, width, moe.expert_width),
        )

    def _take_all(self, step: Step) -> _Buffers:
        return self.take(step.scratch, step.tokens, step.compute.threads, is_decode=step.is_decode)

    def take_route(self, scratch: Scratch, tokens: int) -> RouteBuffers:
        """What `route` works with."""
        moe = self._moe
        return RouteBuffers(
            logits=scratch.floats(tokens, -(-moe.num_experts // LANES) * LANES),
            bias=scratch.floats(moe.num_experts),
            ids=scratch.ints(tokens, moe.top_k),
            weights=scratch.floats(tokens, moe.top_k),
        )

    async def forward(
        self, step: Step, cache: ExpertCache, x: FloatArray, y: FloatArray, half_done: Callable[[], None]
    ) -> None:
        """The layer's answer to x in two halves, [N, H]: y is first what the shared experts say, then the routed ones'.

        When what makes y the first half has been added to the backlog, `half_done` adds what takes it away.
        """
        with step.scratch.frame():
            b = step.scratch.together((self, step.tokens, step.is_decode), lambda: self._take_all(step))
            if step.is_decode:
                await self._as_they_come(step, cache, x, y, b, half_done)
            else:
                await self._in_order(step, cache, x, y, b, half_done)
            if not step.backlog.recall((self, "combine")):
                with step.backlog.part("experts"):
                    await self._combine(step, y, b)
                step.backlog.keep()

    async def _as_they_come(
        self, step: Step, cache: ExpertCache, x: FloatArray, y: FloatArray, b: _Buffers, half_done: Callable[[], None]
    ) -> None:
        """For one token a session: all records are asked for at once, and each is computed with as it lands.

        As soon as the router has chosen, wherever the walk is by then; shared experts and guess are computed meanwhile.
        """
        buffers, source = b.experts, x if self._moe.latent_size is None else b.latent
        assert buffers is not None
        runs: list[ExpertRun] = []
        work: list[ExpertWork] = []

        def ask() -> None:
            runs.append(ExpertRun(step, self._layer, self._math, cache, work, source, buffers, b.answers))
            if step.lookahead is not None:
                step.lookahead.routed(self._layer, b.routed.ids.tolist())

        routed = step.compute.mark(ask)
        try:
            await self._route(step, x, b, work, routed)
            if self._shared is not None:
                await self._add_shared(step, x, y, b, half_done)
            await step.backlog.until(routed)
            step.tap.routing(self._layer, b.routed.ids, b.routed.weights)
        finally:
            # After an error, too: nothing is asked for any more, and the backlog ends what was.
            routed.call_off()
            for run in runs:
                step.backlog.beside(run)

    async def _in_order(
        self,
        step: Step,
        cache: ExpertCache,
        x: FloatArray,
        y: FloatArray,
        b: _Buffers,
        half_done: Callable[[], None],
    ) -> None:
        """For chunks: see `ExpertSweep`."""
        assert b.sweep is not None
        work: list[ExpertWork] = []
        routed = step.compute.mark()
        await self._route(step, x, b, work, routed)
        await step.backlog.until(routed)
        step.tap.routing(self._layer, b.routed.ids, b.routed.weights)
        mixed, source = self._mixed(b, y), x if self._moe.latent_size is None else b.latent
        with ExpertSweep(step, self._layer, self._math, cache, work, source, b.sweep, mixed) as sweep:
            if self._shared is not None:
                await self._add_shared(step, x, y, b, half_done)
            with step.backlog.part("experts"):
                step.by_token(lambda first, last: mixed[first:last].fill(0.0))
            await step.backlog.run()
            await sweep.run()

    def _mixed(self, b: _Buffers, y: FloatArray) -> FloatArray:
        """Where the routed experts' answers are summed up."""
        return y if self._moe.latent_size is None else b.mixed

    async def _route(self, step: Step, x: FloatArray, b: _Buffers, work: list[ExpertWork], routed: Mark) -> None:
        """Add what chooses the experts, and their input; at the mark `work` says who answers whom."""
        choice = b.routed
        with step.backlog.part("router"):
            if not step.backlog.recall((self, "router")):
                await step.walk.products(Target(self.gate, x, choice.logits), vectors=[(self.bias, choice.bias)])
                if self._moe.latent_size is not None:
                    await step.walk.products(Target(self._prefix + "routed_expert_down_proj.weight", x, b.latent))
                if step.tokens > 1:
                    self.route(step, choice)
                step.backlog.keep()

            def sort(worker: int) -> None:
                if step.tokens == 1:
                    self._choose(step, choice, 0, 1)
                work.extend(sort_by_expert(choice.ids, choice.weights, b.rows))
                routed.put()

            step.backlog.add_beside_next(sort)

    def route(self, step: Step, b: RouteBuffers, then: Callable[[], object] | None = None) -> None:
        """Add the router's choice: see the kernel. `then` is called on a compute thread when it has been made."""
        step.by_token(partial(self._choose, step, b), then=then)

    def _choose(self, step: Step, b: RouteBuffers, first: int, last: int) -> None:
        moe = self._moe
        router = ROUTERS[moe.router_activation]
        rule = (router, moe.groups, moe.topk_groups, moe.renormalize, moe.scaling)
        step.kernels.route(b.logits, b.bias, *rule, b.ids, b.weights, first, last)

    async def _add_shared(
        self, step: Step, x: FloatArray, y: FloatArray, b: _Buffers, half_done: Callable[[], None]
    ) -> None:
        assert self._shared is not None
        assert b.shared is not None
        if not step.backlog.recall((self, "shared")):
            with step.backlog.part("shared"):
                await self._shared.forward(step, x, b.shared, y)
                half_done()
            step.backlog.keep()

    async def _combine(self, step: Step, y: FloatArray, b: _Buffers) -> None:
        """y = what the routed experts say, through the latent norm and projection where there are any."""
        moe, prefix = self._moe, self._prefix
        is_latent = moe.latent_size is not None
        is_normed = is_latent and moe.latent_norm
        if is_normed:
            await step.walk.vectors((prefix + "routed_expert_norm.weight", b.norm))
        mixed, is_decode = self._mixed(b, y), step.is_decode

        def mix(first: int, last: int) -> None:
            if is_decode:
                step.kernels.combine(b.answers, b.rows, b.routed.weights, mixed, first, last)
            if is_normed:
                step.kernels.rms_norm(mixed, 0, mixed.shape[1], b.norm, self._eps, mixed, first, last)

        step.by_token(mix)
        if is_latent:
            await step.walk.products(Target(prefix + "routed_expert_up_proj.weight", mixed, y))

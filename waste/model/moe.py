"""A mixture-of-experts layer: route, ask for the experts, do the shared part while they come, sum up."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import partial

from waste.errors import ReadError
from waste.io.extents import Placement
from waste.io.source import Bank
from waste.kernels.choices import SIGMOID, SOFTMAX
from waste.model.config import ModelConfig, MoeConfig
from waste.model.experts import ExpertMath, ExpertWork, ThreadBuffers, expert_key, sort_by_expert
from waste.model.layout import Use
from waste.model.mlp import GatedMlp, MlpBuffers
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.step import Step
from waste.model.trunk import Buffer
from waste.sched.cache import ExpertCache
from waste.sched.lease import Lease

LANES = 8
ROUTERS = {"sigmoid": SIGMOID, "softmax": SOFTMAX}


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Arrays of one layer for N tokens, k experts a token, u inputs of an expert."""

    logits: FloatArray  # [N, experts, rounded up]
    bias: FloatArray  # [experts]
    ids: IntArray  # [N, k], ascending
    weights: FloatArray  # [N, k]
    rows: IntArray  # [N, k]: where each choice's answer is
    latent: FloatArray  # [N, u], empty where experts read x itself
    answers: FloatArray  # [N·k, u]
    mixed: FloatArray  # [N, u]: Σ weight · answer
    norm: FloatArray  # [u]
    routed: FloatArray  # [N, H]: `mixed` on its way back to the hidden width
    shared: MlpBuffers | None
    thread: ThreadBuffers


class MoeLayer:
    """`prefix` ends in "block_sparse_moe."; `cache` holds the layer's records under `expert_key`."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, layer: int, prefix: str, bank: Bank) -> None:
        self._moe = moe
        self._hidden = config.hidden_size
        self._eps = config.rms_norm_eps
        self._layer = layer
        self._prefix = prefix
        self._math = ExpertMath(layer, bank, config.activation)
        self._shared = (
            GatedMlp(config.activation, f"{prefix}shared_experts.", moe.shared_width) if moe.num_shared else None
        )

    def uses(self) -> Iterator[Use]:
        """The layer's trunk tensors in walk order: the router first, so that its reads start early."""
        prefix, moe = self._prefix, self._moe
        yield Use(prefix + "gate.weight")
        yield Use(prefix + "gate.e_score_correction_bias", is_vector=True)
        if moe.latent_size is not None:
            yield Use(prefix + "routed_expert_down_proj.weight")
        if self._shared is not None:
            yield from self._shared.uses()
        if moe.latent_size is not None:
            if moe.latent_norm:
                yield Use(prefix + "routed_expert_norm.weight", is_vector=True)
            yield Use(prefix + "routed_expert_up_proj.weight")

    def take(self, scratch: Scratch, tokens: int, threads: int) -> _Buffers:
        moe = self._moe
        width = moe.input_size(self._hidden)
        is_latent = moe.latent_size is not None
        return _Buffers(
            logits=scratch.floats(tokens, -(-moe.num_experts // LANES) * LANES),
            bias=scratch.floats(moe.num_experts),
            ids=scratch.ints(tokens, moe.top_k),
            weights=scratch.floats(tokens, moe.top_k),
            rows=scratch.ints(tokens, moe.top_k),
            latent=scratch.floats(tokens, width if is_latent else 0),
            answers=scratch.floats(tokens * moe.top_k, width),
            mixed=scratch.floats(tokens, width),
            norm=scratch.floats(width),
            routed=scratch.floats(tokens, self._hidden if is_latent else 0),
            shared=None if self._shared is None else self._shared.take(scratch, tokens),
            thread=ThreadBuffers.take(scratch, threads, tokens, width, moe.expert_width),
        )

    async def forward(self, step: Step, cache: ExpertCache, x: FloatArray, y: FloatArray) -> None:
        """y = the layer's answer to x, both [N, H]."""
        with step.scratch.frame():
            b = self.take(step.scratch, step.tokens, step.compute.threads)
            await self._route(step, x, b)
            work = sort_by_expert(b.ids, b.rows)
            with cache.lease([expert_key(self._layer, item.expert) for item in work]) as lease:
                await self._before_experts(step, x, y, b)
                await self._experts(step, cache, lease, work, x, b)
            await self._combine(step, y, b)

    async def _route(self, step: Step, x: FloatArray, b: _Buffers) -> None:
        moe, prefix = self._moe, self._prefix
        await step.walk.products(x, (prefix + "gate.weight", b.logits, 0))
        await step.walk.vectors((prefix + "gate.e_score_correction_bias", b.bias))
        router = ROUTERS[moe.router_activation]

        def route(first: int, last: int) -> None:
            step.kernels.route(
                b.logits,
                b.bias,
                router,
                moe.groups,
                moe.topk_groups,
                moe.renormalize,
                moe.scaling,
                b.ids,
                b.weights,
                first,
                last,
            )

        await step.by_token(route)
        step.tap.routing(self._layer, b.ids, b.weights)

    async def _before_experts(self, step: Step, x: FloatArray, y: FloatArray, b: _Buffers) -> None:
        """What needs no routed expert, done while their records are read: y = shared experts, `latent`."""
        if self._moe.latent_size is not None:
            await step.walk.products(x, (self._prefix + "routed_expert_down_proj.weight", b.latent, 0))
        if self._shared is not None and b.shared is not None:
            await self._shared.forward(step, x, b.shared, y)

    async def _experts(
        self, step: Step, cache: ExpertCache, lease: Lease, work: list[ExpertWork], x: FloatArray, b: _Buffers
    ) -> None:
        """Each expert is multiplied as its record lands; its slot is free again when that is done."""
        by_key = {expert_key(self._layer, item.expert): item for item in work}
        source = x if self._moe.latent_size is None else b.latent
        running: dict[Hashable, asyncio.Future[None]] = {}
        errors: list[BaseException] = []
        try:
            while lease.pending and not errors:
                if len(running) == cache.slots:
                    # Every slot is being computed with: none can be waited for before one of them is done.
                    await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                with step.walk.waiting():
                    ready = await self._wait(lease)
                for key, data, placement in ready:
                    answer = partial(self._answer, step, by_key[key], data, placement, source, b)
                    running[key] = step.compute.start([answer], partial(_release, lease, key, running, errors))
        finally:
            await step.compute.finish(*running.values())
        if errors:
            raise errors[0]

    def _answer(
        self, step: Step, work: ExpertWork, data: Buffer, placement: Placement, x: FloatArray, b: _Buffers, worker: int
    ) -> None:
        self._math.answer(step.kernels, step.records, work, data, placement, x, b.thread, worker, b.answers)

    async def _wait(self, lease: Lease) -> list[tuple[Hashable, Buffer, Placement]]:
        try:
            return await lease.wait()
        except ReadError as error:
            expert = error.key[1] if isinstance(error.key, tuple) else "?"
            raise ReadError(f"layer {self._layer}, expert {expert}: {error}", key=error.key) from error

    async def _combine(self, step: Step, y: FloatArray, b: _Buffers) -> None:
        """y = shared + routed, the routed sum through the latent norm and projection where there are any."""
        moe, prefix = self._moe, self._prefix
        is_latent = moe.latent_size is not None
        is_normed = is_latent and moe.latent_norm
        if is_normed:
            await step.walk.vectors((prefix + "routed_expert_norm.weight", b.norm))
        routed = b.routed if is_latent else b.mixed

        def mix(first: int, last: int) -> None:
            step.kernels.combine(b.answers, b.rows, b.weights, b.mixed, first, last)
            if is_normed:
                step.kernels.rms_norm(b.mixed, 0, b.mixed.shape[1], b.norm, self._eps, b.mixed, first, last)

        await step.by_token(mix)
        if is_latent:
            await step.walk.products(b.mixed, (prefix + "routed_expert_up_proj.weight", b.routed, 0))
        if self._shared is None:
            await step.copy(routed, y)
        else:
            await step.add(routed, y)


def _release(
    lease: Lease,
    key: Hashable,
    running: dict[Hashable, asyncio.Future[None]],
    errors: list[BaseException],
    error: BaseException | None,
) -> None:
    """An expert has answered or failed: its slot may go."""
    lease.release(key)
    del running[key]
    if error is not None:
        errors.append(error)

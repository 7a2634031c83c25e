"""A latent attention layer: kv_b is absorbed into query and output, head by head, as its rows come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from waste.kernels.workers import Job
from waste.model.config import ModelConfig
from waste.model.layout import Piece, Use
from waste.model.scratch import FloatArray, Scratch
from waste.model.step import SMALL, Step
from waste.model.trunk import Buffer, Target

INNER_EPS = 1e-6
"""Of the two low-rank norms: the released modules' default, whatever `rms_norm_eps` says."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Arrays of one layer for N tokens; L = kv_lora_rank, r = qk_rope_head_dim."""

    low_query: FloatArray  # [N, q_lora_rank]
    query: FloatArray  # [N, heads·(nope + r)]
    latent: FloatArray  # [N, L + r]: [c | k_rope]
    gate: FloatArray  # [N, heads·v]
    out: FloatArray  # [N, heads·v]
    query_norm: FloatArray  # [q_lora_rank]
    latent_norm: FloatArray  # [L]
    absorbed: FloatArray  # [threads, N, L + r]: one head's query over latents
    attended: FloatArray  # [threads, N, L]: one head's mix of latents


class MlaLayer:
    """`index` counts MLA layers, for the session's latents; `prefix` ends in "self_attn."."""

    def __init__(self, config: ModelConfig, index: int, prefix: str) -> None:
        self._config = config.mla
        self._index = index
        self._prefix = prefix
        self._query_width = config.mla.qk_nope_head_dim + config.mla.qk_rope_head_dim
        self._scale = self._query_width**-0.5

    def uses(self) -> Iterator[Use]:
        """The layer's tensors in walk order. kv_b is cut between heads: a head's rows are used together."""
        prefix, mla = self._prefix, self._config
        low_rank = mla.q_lora_rank is not None
        yield Use(prefix + ("q_a_proj.weight" if low_rank else "q_proj.weight"))
        yield Use(prefix + "kv_a_proj_with_mqa.weight")
        if mla.output_gate:
            yield Use(prefix + "g_proj.weight")
        if low_rank:
            yield Use(prefix + "q_a_layernorm.weight", is_vector=True)
        yield Use(prefix + "kv_a_layernorm.weight", is_vector=True)
        if low_rank:
            yield Use(prefix + "q_b_proj.weight")
        yield Use(prefix + "kv_b_proj.weight", unit=mla.qk_nope_head_dim + mla.v_head_dim)
        yield Use(prefix + "o_proj.weight")

    def take(self, scratch: Scratch, tokens: int, threads: int) -> _Buffers:
        mla = self._config
        row = mla.kv_lora_rank + mla.qk_rope_head_dim
        return _Buffers(
            low_query=scratch.floats(tokens, mla.q_lora_rank or 0),
            query=scratch.floats(tokens, mla.num_heads * self._query_width),
            latent=scratch.floats(tokens, row),
            gate=scratch.floats(tokens, mla.num_heads * mla.v_head_dim if mla.output_gate else 0),
            out=scratch.floats(tokens, mla.num_heads * mla.v_head_dim),
            query_norm=scratch.floats(mla.q_lora_rank or 0),
            latent_norm=scratch.floats(mla.kv_lora_rank),
            absorbed=scratch.floats(threads, tokens, row),
            attended=scratch.floats(threads, tokens, mla.kv_lora_rank),
        )

    async def forward(self, step: Step, x: FloatArray, y: FloatArray) -> None:
        """y = the layer's answer to x, both [N, H]."""
        with step.backlog.part("mla"), step.scratch.frame():
            b = step.scratch.together(
                (self, step.tokens), lambda: self.take(step.scratch, step.tokens, step.compute.threads)
            )
            await self._project(step, x, b)

            def heads(data: Buffer, piece: Piece, units: range) -> Job:
                def attend(worker: int) -> None:
                    for unit in units:
                        self._attend(step, b, data, piece, unit, worker)

                return attend

            await step.walk.units(self._prefix + "kv_b_proj.weight", heads)
            if self._config.output_gate:
                parts = step.compute.split(b.out.shape[1], 8, least=SMALL // step.tokens)
                step.backlog.add([_gate_job(step, b, *part) for part in parts])
            await step.walk.products(Target(self._prefix + "o_proj.weight", b.out, y))

    async def _project(self, step: Step, x: FloatArray, b: _Buffers) -> None:
        prefix, mla = self._prefix, self._config
        low_rank = mla.q_lora_rank is not None
        targets = [
            Target(prefix + "q_a_proj.weight", x, b.low_query)
            if low_rank
            else Target(prefix + "q_proj.weight", x, b.query),
            Target(prefix + "kv_a_proj_with_mqa.weight", x, b.latent),
        ]
        if mla.output_gate:
            targets.append(Target(prefix + "g_proj.weight", x, b.gate))
        norms = [(prefix + "q_a_layernorm.weight", b.query_norm)] if low_rank else []
        norms.append((prefix + "kv_a_layernorm.weight", b.latent_norm))
        await step.walk.products(*targets, vectors=norms)

        def normalize(first: int, last: int) -> None:
            rms_norm = step.kernels.rms_norm
            if low_rank:
                rms_norm(b.low_query, 0, b.low_query.shape[1], b.query_norm, INNER_EPS, b.low_query, first, last)
            rms_norm(b.latent, 0, mla.kv_lora_rank, b.latent_norm, INNER_EPS, b.latent, first, last)

        step.by_token(normalize)
        step.backlog.add([lambda worker: self._remember(step, b)])
        if low_rank:
            await step.walk.products(Target(prefix + "q_b_proj.weight", b.low_query, b.query))

    def _remember(self, step: Step, b: _Buffers) -> None:
        """Put the new rows behind each session's latents; nobody else sees them before the commit."""
        for draft in step.drafts:
            latents = draft.state.latents[self._index]
            latents[draft.position : draft.position + draft.count] = b.latent[draft.begin : draft.end]

    def _attend(self, step: Step, b: _Buffers, data: Buffer, piece: Piece, unit: int, worker: int) -> None:
        """One head for every token: absorb kv_b's key rows, attend over latents, apply its value rows."""
        mla = self._config
        tensor = piece.tensor
        kernels = step.kernels.formats[tensor.format.name]
        head = piece.first // tensor.unit + unit
        keys_at, keys_scale_at = piece.row(unit * tensor.unit)
        values_at, values_scale_at = piece.row(unit * tensor.unit + mla.qk_nope_head_dim)
        absorbed, attended = b.absorbed[worker], b.attended[worker]
        column = head * self._query_width
        assert kernels.absorb is not None
        kernels.absorb(data, keys_at, keys_scale_at, tensor.columns, mla.qk_nope_head_dim, b.query, column, absorbed)
        absorbed[:, mla.kv_lora_rank :] = b.query[:, column + mla.qk_nope_head_dim : column + self._query_width]
        for draft in step.drafts:
            latents = draft.state.latents[self._index]
            step.kernels.attend(latents, draft.position, absorbed, self._scale, draft.begin, draft.end, attended)
        out = head * mla.v_head_dim
        kernels.product(data, values_at, values_scale_at, tensor.columns, 0, mla.v_head_dim, attended, b.out, out)


def _gate_job(step: Step, b: _Buffers, first: int, last: int) -> Job:
    return lambda worker: step.kernels.multiply_sigmoid(b.out, b.gate, first, last)

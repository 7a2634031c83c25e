"""A Kimi Delta Attention layer: projections as their tiles come, then everything of a head in one go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from waste.errors import ModelError
from waste.kernels.workers import Job
from waste.model.config import KdaConfig, ModelConfig
from waste.model.layout import Use
from waste.model.scratch import FloatArray, Scratch
from waste.model.state import Draft
from waste.model.step import Step
from waste.model.trunk import Target

LANES = 8


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Arrays of one layer for N tokens, C channels; [N, 3C] rows are [q | k | v]."""

    projected: FloatArray  # [N, 3C], before the convolution
    qkv: FloatArray  # [N, 3C]
    decay: FloatArray  # [N, C]: z, then exp(g)
    beta: FloatArray  # [N, heads, rounded up]
    gate: FloatArray  # [N, C]
    out: FloatArray  # [N, C]
    low_f: FloatArray  # [N, D]
    low_g: FloatArray  # [N, D]
    raw_taps: FloatArray  # [3, C·taps]: as stored, channel by channel
    taps: FloatArray  # [taps, 3C]
    a_log: FloatArray
    dt_bias: FloatArray  # [C]
    norm: FloatArray  # [D]


class KdaLayer:
    """`index` counts KDA layers, for the session's state; `prefix` ends in "self_attn.".

    `stored_a_log`: values in the stored A_log, which releases pad with zeros past the heads.
    """

    def __init__(self, config: ModelConfig, index: int, prefix: str, stored_a_log: int) -> None:
        self._config = config.kda
        self._eps = config.rms_norm_eps
        self._index = index
        self._prefix = prefix
        self._stored_a_log = stored_a_log

    def uses(self) -> Iterator[Use]:
        """The layer's tensors in walk order."""
        names = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "f_a_proj.weight", "b_proj.weight"]
        names += ["g_proj.weight"] if self._config.full_rank_gate else ["g_a_proj.weight"]
        yield from (Use(self._prefix + name) for name in names)
        yield Use(self._prefix + "f_b_proj.weight")
        if not self._config.full_rank_gate:
            yield Use(self._prefix + "g_b_proj.weight")
        for name in (
            "q_conv1d.weight",
            "k_conv1d.weight",
            "v_conv1d.weight",
            "A_log",
            "dt_bias",
            "o_norm.weight",
        ):
            yield Use(self._prefix + name, is_vector=True)
        yield Use(self._prefix + "o_proj.weight")

    def take(self, scratch: Scratch, tokens: int) -> _Buffers:
        kda: KdaConfig = self._config
        channels = kda.channels
        return _Buffers(
            projected=scratch.floats(tokens, 3 * channels),
            qkv=scratch.floats(tokens, 3 * channels),
            decay=scratch.floats(tokens, channels),
            beta=scratch.floats(tokens, -(-kda.num_heads // LANES) * LANES),
            gate=scratch.floats(tokens, channels),
            out=scratch.floats(tokens, channels),
            low_f=scratch.floats(tokens, kda.head_dim),
            low_g=scratch.floats(tokens, kda.head_dim),
            raw_taps=scratch.floats(3, channels * kda.conv_kernel),
            taps=scratch.floats(kda.conv_kernel, 3 * channels),
            a_log=scratch.floats(self._stored_a_log),
            dt_bias=scratch.floats(channels),
            norm=scratch.floats(kda.head_dim),
        )

    async def forward(self, step: Step, x: FloatArray, y: FloatArray) -> None:
        """y = the layer's answer to x, both [N, H]."""
        with step.backlog.part("kda"), step.scratch.frame():
            b = step.scratch.together((self, step.tokens), lambda: self.take(step.scratch, step.tokens))
            await self._project(step, x, b)
            heads = [self._heads_job(step, b, *part) for part in step.compute.split(self._config.num_heads)]
            step.backlog.add(heads)
            await step.walk.products(Target(self._prefix + "o_proj.weight", b.out, y))

    async def _project(self, step: Step, x: FloatArray, b: _Buffers) -> None:
        channels, prefix = self._config.channels, self._prefix
        full_rank = self._config.full_rank_gate
        await step.walk.products(
            Target(prefix + "q_proj.weight", x, b.projected, 0),
            Target(prefix + "k_proj.weight", x, b.projected, channels),
            Target(prefix + "v_proj.weight", x, b.projected, 2 * channels),
            Target(prefix + "f_a_proj.weight", x, b.low_f),
            Target(prefix + "b_proj.weight", x, b.beta),
            Target(prefix + "g_proj.weight", x, b.gate)
            if full_rank
            else Target(prefix + "g_a_proj.weight", x, b.low_g),
        )
        expansions = [Target(prefix + "f_b_proj.weight", b.low_f, b.decay)]
        if not full_rank:
            expansions.append(Target(prefix + "g_b_proj.weight", b.low_g, b.gate))
        vectors = (
            (prefix + "q_conv1d.weight", b.raw_taps[0]),
            (prefix + "k_conv1d.weight", b.raw_taps[1]),
            (prefix + "v_conv1d.weight", b.raw_taps[2]),
            (prefix + "A_log", b.a_log),
            (prefix + "dt_bias", b.dt_bias),
            (prefix + "o_norm.weight", b.norm),
        )
        await step.walk.products(*expansions, vectors=vectors)

    def _check_padding(self, b: _Buffers) -> None:
        if b.a_log[self._config.num_heads :].any():
            raise ModelError(
                f"{self._prefix}A_log holds values past its {self._config.num_heads} heads; expected zeros there: "
                "the checkpoint and linear_attn_config.num_heads disagree"
            )

    def _heads_job(self, step: Step, b: _Buffers, first: int, last: int) -> Job:
        """Heads `first` to `last` from convolution to gated output, every session's tokens."""
        kda, kernels, index = self._config, step.kernels, self._index
        size, channels = kda.head_dim, kda.channels
        begin, end = first * size, last * size
        bound = kda.gate_lower_bound or 0.0

        def run(worker: int) -> None:
            if first == 0:
                self._check_padding(b)
            for part in range(3):
                raw = b.raw_taps[part].reshape(channels, kda.conv_kernel)[begin:end]
                columns = slice(part * channels + begin, part * channels + end)
                b.taps[:, columns] = raw.T
                for draft in step.drafts:
                    past = draft.state.past[index]
                    kernels.short_convolution(
                        b.projected, past, b.taps, draft.begin, draft.end, columns.start, columns.stop, b.qkv
                    )
                    _keep_past(b.projected, past, draft, columns, draft.state.next_past[index])
            kernels.prepare(b.qkv, b.decay, b.beta, b.a_log, b.dt_bias, bound, size, first, last)
            for draft in step.drafts:
                state = draft.state.recurrent[index]
                writes = draft.after is not None
                after = state if draft.after is None else draft.after[index]
                owed, is_owed = draft.state.owed[index], bool(draft.state.is_owed[index, first])
                kernels.scan(
                    state,
                    after,
                    owed,
                    is_owed,
                    b.qkv,
                    b.decay,
                    b.beta,
                    draft.begin,
                    draft.end,
                    writes,
                    first,
                    last,
                    b.out,
                )
                # Whatever comes of this step, and of the other heads: these states now hold what they were owed.
                draft.state.is_owed[index, first:last] = False
                if not writes:
                    _keep_owed(b, draft.begin, channels, first, last, size, draft.state.next_owed[index])
            kernels.gate_output(b.out, b.gate, b.norm, self._eps, size, first, last)

        return run


def _keep_past(x: FloatArray, past: FloatArray, draft: Draft, columns: slice, after: FloatArray) -> None:
    """`after` = the last taps − 1 inputs of these columns, older ones from `past`."""
    kept = past.shape[0]
    new = min(kept, draft.count)
    after[: kept - new, columns] = past[new:, columns]
    after[kept - new :, columns] = x[draft.end - new : draft.end, columns]


def _keep_owed(b: _Buffers, row: int, channels: int, first: int, last: int, size: int, owed: FloatArray) -> None:
    """`owed` = this token's [k | v | decay | β], as far as heads `first` to `last` go."""
    begin, end = first * size, last * size
    owed[begin:end] = b.qkv[row, channels + begin : channels + end]
    owed[channels + begin : channels + end] = b.qkv[row, 2 * channels + begin : 2 * channels + end]
    owed[2 * channels + begin : 2 * channels + end] = b.decay[row, begin:end]
    owed[3 * channels + first : 3 * channels + last] = b.beta[row, first:last]

"""One decoder layer: attention and feed-forward, each between a read from the stream and an addition to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from waste.io.source import Bank, TensorInfo
from waste.model.config import ModelConfig
from waste.model.kda import KdaLayer
from waste.model.layout import Use
from waste.model.mla import MlaLayer
from waste.model.mlp import GatedMlp
from waste.model.moe import MoeLayer
from waste.model.next_router import NextRouter
from waste.model.residual import Residuals
from waste.model.rows import LayerRows
from waste.model.scratch import FloatArray, Scratch
from waste.model.step import Step
from waste.sched.cache import ExpertCache


class Layer:
    """`layer` counts from 0; `index` counts the layers of its attention kind, for the session's state."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        index: int,
        tensors: Mapping[str, TensorInfo],
        banks: Mapping[int, Bank],
    ) -> None:
        self.index = layer
        self._eps = config.rms_norm_eps
        self.prefix = f"{config.prefix}model.layers.{layer}."
        attention = self.prefix + "self_attn."
        self.attention: KdaLayer | MlaLayer
        if config.layer_is_kda[layer]:
            self.attention = KdaLayer(config, index, attention, math.prod(tensors[attention + "A_log"].shape))
        else:
            self.attention = MlaLayer(config, index, attention)
        self.next_router: NextRouter | None = None
        """The router of the layer after this one, if it has one."""
        self.ffn: MoeLayer | GatedMlp
        if config.moe is not None and config.is_moe(layer):
            prefix = self.prefix + "block_sparse_moe."
            self.ffn = MoeLayer(config, config.moe, layer, prefix, banks[layer])
        else:
            self.ffn = GatedMlp(config.activation, self.prefix + "mlp.", config.intermediate_size)

    def uses(self, residuals: Residuals) -> Iterator[Use]:
        """The layer's trunk tensors in walk order."""
        yield from residuals.uses(self.prefix + "self_attention_res", is_first=self.index == 0)
        yield Use(self.prefix + "input_layernorm.weight", is_vector=True)
        yield from self.attention.uses()
        yield from residuals.uses(self.prefix + "mlp_res")
        yield Use(self.prefix + "post_attention_layernorm.weight", is_vector=True)
        yield from self.ffn.uses()

    def take(self, scratch: Scratch, tokens: int, threads: int, *, is_decode: bool) -> None:
        """Take what `forward` takes from the scratch, attention first, for measuring. is_decode: as `Step` has it."""
        with scratch.frame():
            if isinstance(self.attention, KdaLayer):
                self.attention.take(scratch, tokens)
            else:
                self.attention.take(scratch, tokens, threads)
        with scratch.frame():
            if isinstance(self.ffn, MoeLayer):
                self.ffn.take(scratch, tokens, threads, is_decode=is_decode)
            else:
                self.ffn.take(scratch, tokens)
            if is_decode and self.next_router is not None:
                self.next_router.take(scratch, tokens)

    async def forward(self, step: Step, cache: ExpertCache, residuals: Residuals, rows: LayerRows) -> None:
        """Take the batch through the layer; the outcome is in the stream."""
        stream, backlog = rows.stream, step.backlog
        if backlog.recall((self, "attention")):
            residuals.pass_layer(stream, self.index)
        else:
            await self._attend(step, residuals, rows)
            backlog.keep()
        if isinstance(self.ffn, MoeLayer):
            await self.ffn.forward(step, cache, rows.x, rows.y, lambda: self._half_done(step, residuals, rows))
            residuals.add(step, stream, rows.y)
        else:
            if not backlog.recall((self, "dense")):
                await self._dense(step, self.ffn, residuals, rows)
                backlog.keep()
            if step.lookahead is not None:
                # A guess is worth its hand-off only as long as there is something to do before it is put to use.
                await backlog.hand_over()
        if step.tap.sees_hidden:
            await step.backlog.run()
            step.tap.hidden(self.index, stream.sum)

    async def _attend(self, step: Step, residuals: Residuals, rows: LayerRows) -> None:
        """The layer's first half, and what the second one sees."""
        stream, is_first = rows.stream, self.index == 0
        seen = await residuals.read(step, stream, self.prefix + "self_attention_res", rows.mixed, is_first=is_first)
        residuals.seal(stream, self.index)
        await self._norm(step, "input_layernorm.weight", seen, rows)
        await self.attention.forward(step, rows.x, rows.y)
        residuals.add(step, stream, rows.y)
        seen = await residuals.read(step, stream, self.prefix + "mlp_res", rows.mixed)
        await self._norm(step, "post_attention_layernorm.weight", seen, rows)

    async def _dense(self, step: Step, ffn: GatedMlp, residuals: Residuals, rows: LayerRows) -> None:
        with step.backlog.part("dense"), step.scratch.frame():
            await ffn.forward(step, rows.x, ffn.take(step.scratch, step.tokens), rows.y)
            self._half_done(step, residuals, rows)

    def _half_done(self, step: Step, residuals: Residuals, rows: LayerRows) -> None:
        """`rows.y` is what of the feed-forward needs no routed expert: the stream gets it, then the guess is made."""
        residuals.add(step, rows.stream, rows.y)
        if self.next_router is not None and step.lookahead is not None:
            self.next_router.guess(step, step.lookahead, residuals, rows)

    async def _norm(self, step: Step, name: str, seen: FloatArray, rows: LayerRows) -> None:
        await step.walk.vectors((self.prefix + name, rows.weight))
        step.rms_norm(seen, rows.weight, self._eps, rows.x)

"""One decoder layer: attention and feed-forward, each between a read from the stream and an addition to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waste.io.source import Bank, TensorInfo
from waste.model.config import ModelConfig
from waste.model.kda import KdaLayer
from waste.model.layout import Use
from waste.model.mla import MlaLayer
from waste.model.mlp import GatedMlp
from waste.model.moe import MoeLayer
from waste.model.residual import Residuals, Stream
from waste.model.scratch import FloatArray, Scratch
from waste.model.step import Step
from waste.sched.cache import ExpertCache


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Arrays that all layers of one step use in turn, for N tokens."""

    stream: Stream
    mixed: FloatArray  # [N, H]: what a part of the layer sees, before its norm
    x: FloatArray  # [N, H]: after it
    y: FloatArray  # [N, H]: the part's answer
    weight: FloatArray  # [H]: the norm's


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

    def take(self, scratch: Scratch, tokens: int, threads: int) -> None:
        """Take what `forward` takes from the scratch, attention first, for measuring."""
        with scratch.frame():
            if isinstance(self.attention, KdaLayer):
                self.attention.take(scratch, tokens)
            else:
                self.attention.take(scratch, tokens, threads)
        with scratch.frame():
            if isinstance(self.ffn, MoeLayer):
                self.ffn.take(scratch, tokens, threads)
            else:
                self.ffn.take(scratch, tokens)

    async def forward(self, step: Step, cache: ExpertCache, residuals: Residuals, rows: LayerRows) -> None:
        """Take the batch through the layer; the outcome is in the stream."""
        stream, is_first = rows.stream, self.index == 0
        seen = await residuals.read(step, stream, self.prefix + "self_attention_res", rows.mixed, is_first=is_first)
        residuals.seal(stream, self.index)
        await self._norm(step, "input_layernorm.weight", seen, rows)
        await self.attention.forward(step, rows.x, rows.y)
        await residuals.add(step, stream, rows.y)
        seen = await residuals.read(step, stream, self.prefix + "mlp_res", rows.mixed)
        await self._norm(step, "post_attention_layernorm.weight", seen, rows)
        if isinstance(self.ffn, MoeLayer):
            await self.ffn.forward(step, cache, rows.x, rows.y)
        else:
            with step.scratch.frame():
                await self.ffn.forward(step, rows.x, self.ffn.take(step.scratch, step.tokens), rows.y)
        await residuals.add(step, stream, rows.y)
        step.tap.hidden(self.index, stream.sum)

    async def _norm(self, step: Step, name: str, seen: FloatArray, rows: LayerRows) -> None:
        await step.walk.vectors((self.prefix + name, rows.weight))
        await step.rms_norm(seen, rows.weight, self._eps, rows.x)

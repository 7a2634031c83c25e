"""A layer's router asked early, with that layer's own eyes: its residual mixing, its norm, its gate."""

from __future__ import annotations

import asyncio

from waste.model.config import ModelConfig
from waste.model.lookahead import Lookahead
from waste.model.moe import MoeLayer, RouteBuffers
from waste.model.residual import Residuals
from waste.model.rows import LayerRows
from waste.model.scratch import Scratch
from waste.model.step import Step
from waste.model.trunk import Target


class NextRouter:
    """The router of layer `layer`, whose names begin with `prefix`, for whoever works on the layer before."""

    def __init__(self, config: ModelConfig, layer: int, prefix: str, moe: MoeLayer, residuals: Residuals) -> None:
        self._eps = config.rms_norm_eps
        self._layer = layer
        self._moe = moe
        self._residual = prefix + "mlp_res"
        self._norm = prefix + "post_attention_layernorm.weight"
        mixing = [use.name for use in residuals.uses(self._residual)]
        self._names = [*mixing, self._norm, moe.gate, moe.bias]

    def take(self, scratch: Scratch, tokens: int) -> RouteBuffers:
        return self._moe.take_route(scratch, tokens)

    def guess(self, step: Step, lookahead: Lookahead, residuals: Residuals, rows: LayerRows) -> None:
        """Add the guess, made of the stream as it is by then, and hand it to `lookahead` when it is there.

        Overwrites `mixed`, `weight` and `y` of the rows.
        Nothing happens where the router's tensors are not in memory: then the disk has enough to do.
        """
        if not step.walk.has(self._names):
            return
        b = step.scratch.together((self, step.tokens), lambda: self.take(step.scratch, step.tokens))
        loop = asyncio.get_running_loop()

        def tell() -> None:
            # Lists: by the time the loop looks at them, the arrays may be somebody else's.
            loop.call_soon_threadsafe(lookahead.guessed, self._layer, b.ids.tolist(), b.weights.tolist())

        with step.backlog.part("lookahead"):
            seen = residuals.guess(step, rows.stream, self._residual, rows.mixed)
            step.walk.vectors_ahead((self._norm, rows.weight), (self._moe.bias, b.bias))
            step.rms_norm(seen, rows.weight, self._eps, rows.y)
            step.walk.products_ahead(Target(self._moe.gate, rows.y, b.logits))
            self._moe.route(step, b, then=tell)

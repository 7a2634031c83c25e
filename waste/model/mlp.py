"""A gated MLP of the trunk: the dense layers' and the shared experts'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from waste.kernels.workers import Job
from waste.model.config import Activation
from waste.model.experts import activation_kind
from waste.model.layout import Use
from waste.model.scratch import FloatArray, Scratch
from waste.model.step import SMALL, Step
from waste.model.trunk import Target


@dataclass(frozen=True, slots=True)
class MlpBuffers:
    """[N, width] each; `gate` becomes act(gate, up)."""

    gate: FloatArray
    up: FloatArray


class GatedMlp:
    """down·act(gate·x, up·x); `prefix` ends in the MLP's own name and a dot, `width` is the inner one."""

    def __init__(self, activation: Activation, prefix: str, width: int) -> None:
        self._activation = activation
        self._prefix = prefix
        self._width = width

    def uses(self) -> Iterator[Use]:
        """The tensors in walk order."""
        yield from (Use(f"{self._prefix}{name}_proj.weight") for name in ("gate", "up", "down"))

    def take(self, scratch: Scratch, tokens: int) -> MlpBuffers:
        return MlpBuffers(scratch.floats(tokens, self._width), scratch.floats(tokens, self._width))

    async def forward(self, step: Step, x: FloatArray, b: MlpBuffers, y: FloatArray) -> None:
        """y = the MLP's answer to x, both [N, H]."""
        await step.walk.products(
            Target(f"{self._prefix}gate_proj.weight", x, b.gate), Target(f"{self._prefix}up_proj.weight", x, b.up)
        )
        parts = step.compute.split(self._width, 8, least=SMALL // step.tokens)
        step.backlog.add([self._activate(step, b, *part) for part in parts])
        await step.walk.products(Target(f"{self._prefix}down_proj.weight", b.gate, y))

    def _activate(self, step: Step, b: MlpBuffers, first: int, last: int) -> Job:
        kind, beta = activation_kind(self._activation), self._activation.beta
        linear_beta = self._activation.linear_beta or 0.0
        return lambda worker: step.kernels.activate(b.gate, b.up, kind, beta, linear_beta, first, last)

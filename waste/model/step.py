"""What every layer of one step shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from waste.kernels import KernelSet
from waste.model.compute import Compute, Job, split_range
from waste.model.experts import RecordUse
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.state import Draft
from waste.model.trunk import TrunkWalk

TokenJob = Callable[[int, int], None]


class Tap:
    """Sees what passes through the walk, synchronously: look or copy, the arrays are overwritten afterwards.

    This one looks at nothing.
    """

    def hidden(self, layer: int, x: FloatArray) -> None:
        """The residual stream leaving a layer, [N, H]; with attention residuals the running prefix sum."""

    def routing(self, layer: int, ids: IntArray, weights: FloatArray) -> None:
        """A MoE layer's choices [N, k], ids ascending, and their weights."""


@dataclass(frozen=True, slots=True)
class Step:
    """A ragged batch on its way through the layers: `tokens` rows, those of each session next to each other."""

    tokens: int
    drafts: Sequence[Draft]
    walk: TrunkWalk
    compute: Compute
    kernels: KernelSet
    scratch: Scratch
    records: RecordUse
    tap: Tap

    async def by_token(self, job: TokenJob) -> None:
        """Run `job(first, last)` over ranges of tokens on the compute threads."""

        def bind(first: int, last: int) -> Job:
            return lambda worker: job(first, last)

        await self.compute.run([bind(*part) for part in split_range(self.tokens, self.compute.threads)])

    async def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float, y: FloatArray) -> None:
        """y = rms(x)·weight, row by row."""
        width = x.shape[1]
        await self.by_token(lambda first, last: self.kernels.rms_norm(x, 0, width, weight, eps, y, first, last))

    async def add(self, x: FloatArray, y: FloatArray) -> None:
        """y += x, row by row."""
        await self.by_token(lambda first, last: self.kernels.add(x, y, first, last))

    async def copy(self, x: FloatArray, y: FloatArray) -> None:
        """y = x, row by row."""
        await self.by_token(lambda first, last: np.copyto(y[first:last], x[first:last]))

"""What every layer of one step shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from waste.kernels import KernelSet
from waste.kernels.workers import Job
from waste.model.backlog import Backlog
from waste.model.compute import Compute, split_range
from waste.model.experts import RecordUse
from waste.model.lookahead import Lookahead
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.state import Draft
from waste.model.trunk import TrunkWalk

SMALL = 16 * 1024
"""Values to be worked through one by one that are not worth a second thread's waking up."""

TokenJob = Callable[[int, int], None]


class Tap:
    """Sees what passes through the walk, synchronously: look or copy, the arrays are overwritten afterwards.

    This one looks at nothing.
    """

    sees_hidden = False
    """Whether `hidden` is to be called: each time, the walk has to stop for it."""

    def hidden(self, layer: int, x: FloatArray) -> None:
        """The residual stream leaving a layer, [N, H]; with attention residuals the running prefix sum."""

    def routing(self, layer: int, ids: IntArray, weights: FloatArray) -> None:
        """A MoE layer's choices [N, k], ids ascending, and their weights."""


@dataclass(slots=True)
class Step:
    """A ragged batch on its way through the layers: `tokens` rows, those of each session next to each other.

    What layers add to the backlog runs later, in that order; only `backlog.run`, `backlog.until` and a tile of the ring
    that is let go of wait for it. So everything an added job reads is written by a job added before. Jobs of a routine
    (`Backlog.recall`) outlive a step: they find the drafts of their time here.
    """

    tokens: int
    drafts: Sequence[Draft]
    walk: TrunkWalk
    compute: Compute
    backlog: Backlog
    kernels: KernelSet
    scratch: Scratch
    records: RecordUse
    tap: Tap
    lookahead: Lookahead | None
    """None where nothing is to be read ahead, as with prompts: a chunk needs so many experts that guesses hinder it."""

    @property
    def is_decode(self) -> bool:
        """Whether every session of the batch has one token."""
        return self.tokens == len(self.drafts)

    def by_token(self, job: TokenJob, *, then: Callable[[], object] | None = None) -> None:
        """Add `job(first, last)` over ranges of tokens, and `then`, see `Stage`."""

        def bind(first: int, last: int) -> Job:
            return lambda worker: job(first, last)

        parts = [(0, 1)] if self.tokens == 1 else split_range(self.tokens, self.compute.threads)
        self.backlog.add([bind(*part) for part in parts], then=then)

    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float, y: FloatArray) -> None:
        """y = rms(x)·weight, row by row."""
        width = x.shape[1]
        self.by_token(lambda first, last: self.kernels.rms_norm(x, 0, width, weight, eps, y, first, last))

    def add(self, x: FloatArray, y: FloatArray) -> None:
        """y += x, row by row."""
        self.by_token(lambda first, last: self.kernels.add(x, y, first, last))

    def copy(self, x: FloatArray, y: FloatArray) -> None:
        """y = x, row by row."""
        self.by_token(lambda first, last: np.copyto(y[first:last], x[first:last]))

"""Embedding rows on demand: the table stays on disk, a row is a read like any other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np

from waste.errors import ReadError
from waste.io.extents import Placement, place
from waste.kernels import KernelSet
from waste.kernels.workers import Stage
from waste.model.compute import Compute
from waste.model.layout import TrunkTensor
from waste.model.scratch import FloatArray
from waste.sched.cache import ExpertCache


class EmbeddingTable:
    """Where each token's row lies. `cache`s of it are keyed by token id."""

    def __init__(self, tensor: TrunkTensor, align: int) -> None:
        self._tensor = tensor
        self._align = align

    def place(self, token: Hashable) -> Placement:
        """What brings one token's row."""
        assert isinstance(token, int)
        return place(self._tensor.rows_extents(token, 1), align=self._align, max_gap=0)

    @property
    def slot_bytes(self) -> int:
        """A buffer for any one row, wherever it lies in its blocks."""
        extents = self._tensor.rows_extents(0, 1)
        return sum(-(-extent.length // self._align) * self._align + self._align for extent in extents)

    async def read(
        self, cache: ExpertCache, compute: Compute, kernels: KernelSet, ids: Sequence[int], x: FloatArray
    ) -> None:
        """x[t] = the embedding of ids[t], float32. A row wanted twice is read once.

        Raises ReadError naming the token.
        """
        widen = kernels.formats[self._tensor.format.name].widen
        wanted = np.asarray(ids)

        def fill(token: Hashable, data: object, placement: Placement, worker: int) -> None:
            for row in np.flatnonzero(wanted == token):
                at, scale_at = (*placement.starts, 0)[:2]
                widen(data, at, scale_at, self._tensor.columns, 1, x[row : row + 1])

        with cache.lease([int(token) for token in np.unique(wanted)]) as lease:
            while lease.pending:
                try:
                    ready = await lease.wait()
                except ReadError as error:
                    raise ReadError(f"embedding of token {error.key}: {error}", key=error.key) from error
                await compute.run([Stage("embedding", [partial(fill, *record) for record in ready])])
                for token, _, _ in ready:
                    lease.release(token)

"""The experts of one layer for many tokens: in ascending order, each by all threads, added up where the sum belongs.

A chunk needs most of a layer's experts, and each for many tokens. Their records are read in the order they lie in, a
window ahead of the work, and every thread does a part of the rows. Expert after expert adds to the sum of its tokens,
which is the order in which a single token's experts are summed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import numpy as np

from waste.io.extents import Placement
from waste.kernels.workers import Job, Stage
from waste.model.compute import PARTS, Mark, Started, split_range
from waste.model.expert_run import FAMILY, wait_for_records
from waste.model.experts import ExpertBuffers, ExpertMath, ExpertWork, Rows, expert_key
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.step import Step
from waste.model.trunk import Buffer
from waste.sched.cache import ExpertCache
from waste.sched.lease import Lease

TILE = 128
"""Tokens that an expert answers at a time; what it takes to stay in the second-level cache."""
TOKENS_TOGETHER = 8
"""Kernels share each weight among so many tokens, so that many are made up."""

AHEAD = 3
"""Experts that have been handed over: one that has ended, one that is computed, one to go on with."""

Record = tuple[Buffer, Placement]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some tokens that an expert answers together: which, with which weights, filled up to `padded`, and their `x`.

    answers: where they go, and are added up when the next tile is begun.
    """

    tokens: IntArray
    weights: FloatArray
    padded: IntArray
    x: FloatArray
    answers: FloatArray


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """An expert on the compute threads. ending: its last job has begun."""

    key: Hashable
    preparing: Started
    computing: Started
    ending: Mark


@dataclass(frozen=True, slots=True)
class SweepBuffers:
    """For up to `TILE` tokens, rounded up to those that kernels take together: T."""

    x: FloatArray  # [AHEAD, T, input]
    experts: ExpertBuffers  # for T choices; inputs are gathered in x
    answers: FloatArray  # [2, T, input]: of one tile while those of the one before are added up

    @staticmethod
    def take(scratch: Scratch, threads: int, tokens: int, input_size: int, width: int) -> SweepBuffers:
        tile = _rounded(min(tokens, TILE))
        return SweepBuffers(
            x=scratch.floats(AHEAD, tile, input_size),
            experts=ExpertBuffers.take(scratch, threads, 0, tile, input_size, width),
            answers=scratch.floats(2, tile, input_size),
        )


class ExpertSweep:
    """mixed[t] = Σ weight · answer over the experts of each token of the step, ascending; mixed begins as zeros.

    A context manager: entering it asks for the first records, leaving it lets go of what is held.
    """

    def __init__(
        self,
        step: Step,
        layer: int,
        math: ExpertMath,
        cache: ExpertCache,
        work: Sequence[ExpertWork],
        x: FloatArray,
        buffers: SweepBuffers,
        mixed: FloatArray,
    ) -> None:
        self._step = step
        self._layer = layer
        self._math = math
        self._cache = cache
        self._work = work
        self._x = x
        self._b = buffers
        self._mixed = mixed
        self._turn = self._tile = 0
        self._last: _Tile | None = None  # whose answers have still to be added up
        self._windows: deque[Sequence[ExpertWork]] = deque()
        self._asked: deque[tuple[Lease, Sequence[ExpertWork]]] = deque()

    def __enter__(self) -> ExpertSweep:
        # Two windows are under way at a time, and together they must leave nobody without a slot.
        window = max(1, self._cache.slots // 2)
        self._windows = deque(self._work[at : at + window] for at in range(0, len(self._work), window))
        self._ask()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lease, _ in self._asked:
            lease.close()
        self._asked.clear()

    def _ask(self) -> None:
        """Lease the next windows, as far as slots go."""
        while self._windows and len(self._asked) < min(2, self._cache.slots):
            items = self._windows.popleft()
            keys = [expert_key(self._layer, item.expert) for item in items]
            self._asked.append((self._cache.lease(keys), items))

    async def run(self) -> None:
        """Returns when every expert has answered; raises ReadError or DamagedError, layer and expert named."""
        while self._asked:
            lease, items = self._asked[0]
            await self._sweep(lease, items)
            lease.close()
            self._asked.popleft()
            self._ask()
        if self._last is not None:
            await self._step.compute.run([Stage(FAMILY, self._additions(self._last))])

    async def _sweep(self, lease: Lease, items: Sequence[ExpertWork]) -> None:
        """One after the other; while one is computed, the next has been handed over and more records come."""
        ready: dict[Hashable, Record] = {}
        under_way: deque[_UnderWay] = deque()
        try:
            for item in items:
                key = expert_key(self._layer, item.expert)
                while key not in ready:
                    with self._step.walk.waiting():
                        for found, data, placement in await wait_for_records(lease, self._layer):
                            ready[found] = data, placement
                if len(under_way) == AHEAD:
                    # Not when one has ended: then the threads begin the next, and the loop would keep them from it.
                    await under_way[1].ending.reached(under_way[1].computing)
                    await self._end(lease, under_way.popleft())
                before = under_way[-1].computing if under_way else None
                under_way.append(self._start(key, item, *ready.pop(key), before))
            while under_way:
                await self._end(lease, under_way.popleft())
        finally:
            # After an error or a cancellation: what has been begun is let end, and its errors are not the first.
            left = [batch for one in under_way for batch in (one.preparing, one.computing)]
            for batch in left:
                batch.cancel()
            await self._step.compute.end(*left)

    async def _end(self, lease: Lease, one: _UnderWay) -> None:
        await self._step.compute.finish(one.preparing, one.computing)
        lease.release(one.key)

    def _start(
        self, key: Hashable, item: ExpertWork, data: Buffer, placement: Placement, before: Started | None
    ) -> _UnderWay:
        """An expert, to be computed when the one before it is; prepared while that is under way."""
        step, math, b = self._step, self._math, self._b
        self._turn = (self._turn + 1) % AHEAD
        first, *others = self._tiles(item)

        def prepare(worker: int) -> None:
            if math.is_uniform:
                math.check_header(step.records, item.expert, data, placement)  # `share` looks at the scales
            else:
                math.check(step.kernels, step.records, item.expert, data, placement, b.experts.found[worker])
            self._gather(first, (0, first.padded.size), worker)

        preparing = step.compute.start([Stage(FAMILY, [prepare])])
        ending = step.compute.mark()
        stages = self._products(first, item, data, placement)
        for tile in others:
            parts = split_range(tile.padded.size, step.compute.threads)
            stages.append(Stage(FAMILY, [partial(self._gather, tile, part) for part in parts]))
            stages += self._products(tile, item, data, placement)
        *most, last = stages[-1].jobs

        def last_job(worker: int) -> None:
            ending.put()
            last(worker)

        stages[-1] = Stage(FAMILY, [*most, last_job])
        after = [preparing] if before is None else [preparing, before]
        return _UnderWay(key, preparing, step.compute.start(stages, after=after), ending)

    def _tiles(self, item: ExpertWork) -> list[_Tile]:
        tiles = []
        for at in range(0, item.tokens.size, TILE):
            tokens, weights = item.tokens[at : at + TILE], item.weights[at : at + TILE]
            count = _rounded(tokens.size, self._math.one_by_one)
            padded = np.append(tokens, np.repeat(tokens[-1:], count - tokens.size))
            self._tile ^= 1
            tiles.append(_Tile(tokens, weights, padded, self._b.x[self._turn, :count], self._b.answers[self._tile]))
        return tiles

    def _products(self, tile: _Tile, item: ExpertWork, data: Buffer, placement: Placement) -> list[Stage]:
        """The tile's answers, and beside them the sums of the tile before, so that threads wait for each other once."""
        step, math, b = self._step, self._math, self._b
        count = tile.padded.size
        additions = [] if self._last is None else self._additions(self._last)
        self._last = tile
        if not math.is_uniform:
            gate, up = b.experts.gate[:count], b.experts.up[:count]
            inner_rows, outer_rows = math.parts(PARTS * step.compute.threads)
            place = (step.kernels, step.records, data, placement)

            def inner(rows: Rows, worker: int) -> None:
                math.inner(*place, tile.x, gate, up, rows)

            def outer(rows: Rows, worker: int) -> None:
                math.outer(*place, gate, tile.answers[:count], rows)

            return [
                Stage(FAMILY, additions + [partial(inner, rows) for rows in inner_rows]),
                Stage(FAMILY, [partial(outer, rows) for rows in outer_rows]),
            ]
        tokens = np.arange(count)
        group = math.group([(replace(item, tokens=tokens, first=0), data, placement)], tokens)

        def share(part: int, worker: int) -> None:
            if part < len(additions):
                additions[part](worker)
            math.share(step.kernels, step.records, group, tile.x, b.experts, worker, tile.answers)

        return [Stage(FAMILY, [partial(share, part) for part in range(step.compute.threads)])]

    def _additions(self, tile: _Tile) -> list[Job]:
        """Add up a tile's answers, each thread some columns."""

        def add(columns: Rows, worker: int) -> None:
            self._step.kernels.accumulate(tile.answers, tile.tokens, tile.weights, self._mixed, *columns)

        return [partial(add, columns) for columns in self._step.compute.split(self._mixed.shape[1], 8)]

    def _gather(self, tile: _Tile, part: Rows, worker: int) -> None:
        first, last = part
        np.take(self._x, tile.padded[first:last], axis=0, out=tile.x[first:last], mode="clip")


def _rounded(tokens: int, one_by_one: int = 0) -> int:
    """As many as kernels take together, unless no more than a few are left over, which go one by one."""
    left = tokens % TOKENS_TOGETHER
    return tokens if left <= one_by_one else tokens - left + TOKENS_TOGETHER

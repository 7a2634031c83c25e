"""The experts of one layer for many tokens: in ascending order, by all threads, added up where the sum belongs.

A chunk needs most of a layer's experts, and each for many tokens. Their records are read in the order they lie in, a
window ahead of the work. What has come is answered together, as many choices as stay in the cache, and every thread
does a part of the rows. Expert after expert adds to the sum of its tokens, which is the order in which a single
token's experts are summed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import numpy as np

from waste.io.extents import Placement
from waste.kernels.workers import Job, Stage
from waste.model.compute import Mark, Started
from waste.model.expert_run import FAMILY, expert_named, wait_for_records
from waste.model.experts import ExpertBuffers, ExpertMath, ExpertWork, Rows, expert_key
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.step import Step
from waste.model.trunk import Buffer
from waste.sched.cache import ExpertCache
from waste.sched.lease import Lease

TILE = 128
"""Choices that are answered at a time; what it takes to stay in the second-level cache."""
AHEAD = 3
"""Tiles that have been handed over: one that has ended, one that is computed, one to go on with."""

Record = tuple[Buffer, Placement]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Choices that are answered together, of one expert or of several that follow each other.

    members: their work in the tile, in which choices stand for tokens, and their records. tokens, weights: of each
    choice. x: its token's input. answers: where they go, and are added up when the next tile is begun.
    """

    members: Sequence[tuple[ExpertWork, Buffer, Placement]]
    tokens: IntArray
    weights: FloatArray
    x: FloatArray
    answers: FloatArray


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A tile on the compute threads. ending: its last job has begun. keys: records nobody needs after it."""

    keys: Sequence[Hashable]
    preparing: Started
    computing: Started
    ending: Mark


@dataclass(frozen=True, slots=True)
class SweepBuffers:
    """For up to `TILE` choices: T."""

    x: FloatArray  # [AHEAD, T, input]
    experts: ExpertBuffers  # for T choices; inputs are gathered in x
    answers: FloatArray  # [2, T, input]: of one tile while those of the one before are added up

    @staticmethod
    def take(scratch: Scratch, threads: int, choices: int, input_size: int, width: int) -> SweepBuffers:
        tile = min(choices, TILE)
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
        self._turn = 0
        self._pieces: list[tuple[ExpertWork, Record]] = []  # of the next tile, so far
        self._ended: list[Hashable] = []  # records that nobody needs after it
        self._last: _Tile | None = None  # whose answers have still to be added up
        self._windows: deque[Sequence[ExpertWork]] = deque()
        self._asked: deque[tuple[Lease, Sequence[ExpertWork]]] = deque()
        self._under_way: deque[_UnderWay] = deque()

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
        """Tile after tile; while one is computed, the next has been handed over and more records come."""
        ready: dict[Hashable, Record] = {}
        try:
            for item in items:
                key = expert_key(self._layer, item.expert)
                while key not in ready:
                    ready |= await self._news(lease)
                await self._add(lease, item, key, ready.pop(key))
            await self._hand_over(lease)
            while self._under_way:
                await self._end(lease, self._under_way.popleft())
        finally:
            # After an error or a cancellation: what has been begun is let end, and its errors are not the first.
            left = [batch for one in self._under_way for batch in (one.preparing, one.computing)]
            for batch in left:
                batch.cancel()
            await self._step.compute.end(*left)

    async def _news(self, lease: Lease) -> dict[Hashable, Record]:
        """Records that have come; before there is nothing to do but wait, what has been put together is handed over."""
        with expert_named(self._layer):
            found = lease.take()
        if not found:
            await self._hand_over(lease)
            with self._step.walk.waiting():
                found = await wait_for_records(lease, self._layer)
        return {key: (data, placement) for key, data, placement in found}

    async def _add(self, lease: Lease, item: ExpertWork, key: Hashable, record: Record) -> None:
        """The expert's choices go to the next tile, and as many more as they take."""
        at = 0
        while at < item.tokens.size:
            begin = sum(piece.tokens.size for piece, _ in self._pieces)
            end = min(item.tokens.size, at + TILE - begin)
            piece = ExpertWork(item.expert, item.tokens[at:end], item.weights[at:end], begin)
            self._pieces.append((piece, record))
            if end == item.tokens.size:
                self._ended.append(key)
            if begin + end - at == TILE:
                await self._hand_over(lease)
            at = end

    async def _hand_over(self, lease: Lease) -> None:
        """What has been put together goes to the compute threads, as soon as there is room for one more tile."""
        if not self._pieces:
            return
        under_way = self._under_way
        if len(under_way) == AHEAD:
            # Not when one has ended: then the threads begin the next, and the loop would keep them from it.
            await under_way[1].ending.reached(under_way[1].computing)
            await self._end(lease, under_way.popleft())
        before = under_way[-1].computing if under_way else None
        keys, self._ended = self._ended, []
        under_way.append(self._start(self._tile(), keys, before))

    async def _end(self, lease: Lease, one: _UnderWay) -> None:
        await self._step.compute.finish(one.preparing, one.computing)
        for key in one.keys:
            lease.release(key)

    def _tile(self) -> _Tile:
        pieces, self._pieces = self._pieces, []
        tokens = np.concatenate([piece.tokens for piece, _ in pieces])
        weights = np.concatenate([piece.weights for piece, _ in pieces])
        choices = np.arange(tokens.size)
        members = []
        for piece, (data, placement) in pieces:
            own = choices[piece.first : piece.first + piece.tokens.size]
            members.append((ExpertWork(piece.expert, own, piece.weights, piece.first), data, placement))
        self._turn += 1
        x, answers = self._b.x[self._turn % AHEAD], self._b.answers[self._turn % 2]
        return _Tile(members, tokens, weights, x[: tokens.size], answers)

    def _start(self, tile: _Tile, keys: Sequence[Hashable], before: Started | None) -> _UnderWay:
        """A tile, to be computed when the one before it is; prepared while that is under way."""
        step, math = self._step, self._math

        def prepare(worker: int) -> None:
            if math.is_uniform:
                for work, data, placement in tile.members:
                    math.check_header(step.records, work.expert, data, placement)  # `share` looks at the scales
            np.take(self._x, tile.tokens, axis=0, out=tile.x, mode="clip")

        preparing = step.compute.start([Stage(FAMILY, [prepare])])
        ending = step.compute.mark()
        *most, last = self._jobs(tile)

        def last_job(worker: int) -> None:
            ending.put()
            last(worker)

        after = [preparing] if before is None else [preparing, before]
        computing = step.compute.start([Stage(FAMILY, [*most, last_job])], after=after)
        return _UnderWay(keys, preparing, computing, ending)

    def _jobs(self, tile: _Tile) -> list[Job]:
        """The tile's answers, and beside them the sums of the tile before, so that threads wait for each other once."""
        step, math, buffers = self._step, self._math, self._b.experts
        additions = [] if self._last is None else self._additions(self._last)
        self._last = tile
        if not math.is_uniform:

            def alone(member: tuple[ExpertWork, Buffer, Placement], worker: int) -> None:
                math.answer_alone(step.kernels, step.records, member, tile.x, buffers, worker, tile.answers)

            return additions + [partial(alone, member) for member in tile.members]
        group = math.group(tile.members, np.arange(tile.tokens.size))

        def share(part: int, worker: int) -> None:
            if part < len(additions):
                additions[part](worker)
            math.share(step.kernels, step.records, group, tile.x, buffers, worker, tile.answers)

        return [partial(share, part) for part in range(step.compute.threads)]

    def _additions(self, tile: _Tile) -> list[Job]:
        """Add up a tile's answers, each thread some columns."""

        def add(columns: Rows, worker: int) -> None:
            self._step.kernels.accumulate(tile.answers, tile.tokens, tile.weights, self._mixed, *columns)

        return [partial(add, columns) for columns in self._step.compute.split(self._mixed.shape[1], 8)]

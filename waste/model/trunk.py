"""One walk over the trunk: tensors are used in layout order, where they land, tile by tile."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

import numpy as np
import numpy.typing as npt

from waste.errors import ReadError
from waste.kernels import KernelSet
from waste.kernels.workers import Job
from waste.model.backlog import Backlog
from waste.model.compute import PARTS, Compute, part_of, split_range
from waste.model.layout import Piece, TrunkLayout
from waste.model.scratch import FloatArray
from waste.sched.ring import TrunkRing

Buffer = npt.NDArray[np.uint8]

ROWS = 8
"""Rows that kernels take together."""
LEAST_PART = 512 * 1024
"""Bytes of weights that are worth a part of their own, beyond one for each thread."""


@dataclass(frozen=True, slots=True)
class Target:
    """y[:, column + r] = W[r]·x for every row r of the matrix `name`.

    x [tokens, ≥ columns] and y [tokens, ≥ column + rows], both float32 and C-contiguous.
    """

    name: str
    x: FloatArray
    y: FloatArray
    column: int = 0


Held = list[tuple[Buffer, list[Piece]]]
"""Tiles that are in memory, and what of each is meant."""


class TrunkWalk:
    """Holds one tile at a time, and adds what is to be done with it to the backlog.

    A context manager: leaving it, however, lets go of the tile; by then the backlog has been run or thrown away.

    end: the walk uses no tile from this one on. reads_on: another walk is expected to follow.

    Products and vectors name their tensors in walk order; asking for one that was passed raises RuntimeError.
    """

    def __init__(
        self,
        layout: TrunkLayout,
        ring: TrunkRing,
        compute: Compute,
        backlog: Backlog,
        kernels: KernelSet,
        add_wait: Callable[[float], None],
        *,
        end: int,
        reads_on: bool,
    ) -> None:
        self._layout = layout
        self._ring = ring
        self._compute = compute
        self._backlog = backlog
        self._kernels = kernels
        self._add_wait = add_wait
        self._end = end
        self._reads_on = reads_on
        self._tile = -1
        self._data: Buffer | None = None

    def __enter__(self) -> TrunkWalk:
        self._ring.begin(end=self._end, reads_on=self._reads_on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    async def hold(self, tile: int) -> Buffer:
        """The buffer of this tile; the one held before must not be in use any more."""
        if tile < self._tile:
            raise RuntimeError(f"the walk is at tile {self._tile} and was asked to go back to tile {tile}")
        if self._data is None or tile != self._tile:
            if self._data is not None and not self._ring.is_pinned(self._tile):
                # Its place in memory is the next tile's as soon as it is let go of; a pinned one stays.
                await self._backlog.run()
            self._let_go()
            self._tile = tile
            with self.waiting():
                self._data = await self._acquire(tile)
        return self._data

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as time the walk stood still for want of bytes."""
        began = perf_counter()
        try:
            yield
        finally:
            self._add_wait(perf_counter() - began)

    async def _acquire(self, tile: int) -> Buffer:
        try:
            return await self._ring.acquire(tile)
        except ReadError as error:
            name = next(piece.tensor.name for piece in self._layout.pieces if piece.tile == tile)
            layer = re.search(r"layers\.(\d+)\.", name)
            where = "the head" if layer is None else f"layer {layer[1]}"
            raise ReadError(f"{where}, trunk tile {tile}, from {name} on: {error}", key=error.key) from error

    def _let_go(self) -> None:
        if self._data is not None:
            self._data = None
            self._ring.release(self._tile)

    async def vectors(self, *targets: tuple[str, FloatArray]) -> None:
        """Add: widen whole tensors to float32 into 1-D arrays, which may be longer than the tensor."""
        await self.products(vectors=targets)

    async def products(self, *targets: Target, vectors: Sequence[tuple[str, FloatArray]] = ()) -> None:
        """Add the products of tensors that follow each other in the walk; none of them needs another one's outcome.

        vectors: those that come next, to be widened meanwhile.
        """
        by_name, arrays = {target.name: target for target in targets}, dict(vectors)

        def jobs(held: Held) -> list[Job]:
            matrices, rest = _only(held, by_name), _only(held, arrays)
            # The one job first, so that the threads end together with parts of the others.
            widen = [self._widen(rest, arrays)] if rest else []
            return widen + (self._shares(matrices, by_name) if matrices else [])

        await self._sweep([*by_name, *arrays], jobs)

    def has(self, names: Sequence[str]) -> bool:
        """Whether all of these tensors, further on in the walk, stay in memory: then the `_ahead` methods take them."""
        return all(self._ring.peek(tile) is not None for tile, _ in self._layout.groups(names))

    def vectors_ahead(self, *targets: tuple[str, FloatArray]) -> None:
        """As `vectors`, of tensors that the walk has not come to; it stays where it is."""
        arrays = dict(targets)
        self._backlog.add([self._widen(self._there(list(arrays)), arrays)])

    def products_ahead(self, *targets: Target) -> None:
        """As `products`, of tensors that the walk has not come to; it stays where it is."""
        by_name = {target.name: target for target in targets}
        self._backlog.add(self._shares(self._there(list(by_name)), by_name))

    async def units(self, name: str, job: Callable[[Buffer, Piece, range], Job]) -> None:
        """Add `job(data, piece, units)` for all units of rows of a tensor, a few together, as its tiles come."""
        threads = self._compute.threads

        def jobs(held: Held) -> list[Job]:
            return [
                job(data, piece, range(*part))
                for data, pieces in held
                for piece in pieces
                for part in split_range(piece.count // piece.tensor.unit, PARTS * threads)
            ]

        await self._sweep([name], jobs)

    def _there(self, names: Sequence[str]) -> Held:
        """Where these tensors lie, all of which are in memory."""
        held: Held = []
        for tile, pieces in self._layout.groups(names):
            data = self._ring.peek(tile)
            assert data is not None
            held.append((data, pieces))
        return held

    async def _sweep(self, names: Sequence[str], jobs: Callable[[Held], list[Job]]) -> None:
        """Add the jobs of each tile that these tensors are in; those of pinned ones in a row side by side."""
        held: Held = []
        for tile, pieces in self._layout.groups(names):
            if held and not self._ring.is_pinned(tile):
                self._backlog.add(jobs(held))
                held = []
            data = await self.hold(tile)
            held.append((data, pieces))
        self._backlog.add(jobs(held))

    def _widen(self, held: Held, arrays: dict[str, FloatArray]) -> Job:
        def widen(worker: int) -> None:
            for data, pieces in held:
                for piece in pieces:
                    tensor = piece.tensor
                    row = arrays[tensor.name][: tensor.columns].reshape(1, tensor.columns)
                    kernels = self._kernels.formats[tensor.format.name]
                    kernels.widen(data, piece.at, piece.scale_at, tensor.columns, 1, row)

        return widen

    def _shares(self, held: Held, targets: dict[str, Target]) -> list[Job]:
        size = sum(piece.count * piece.tensor.row_bytes for _, pieces in held for piece in pieces)
        threads = self._compute.threads
        parts = threads * min(PARTS * len(held), max(1, size // (threads * LEAST_PART)))
        return [self._share(held, targets, part, parts) for part in range(parts)]

    def _share(self, held: Held, targets: dict[str, Target], part: int, parts: int) -> Job:
        """One part of the rows of every piece."""

        def multiply(worker: int) -> None:
            for data, pieces in held:
                for piece in pieces:
                    first, last = part_of(piece.count, part, parts, ROWS)
                    if first < last:
                        target, tensor = targets[piece.tensor.name], piece.tensor
                        product = self._kernels.formats[tensor.format.name].product
                        column = target.column + piece.first
                        product(data, piece.at, piece.scale_at, tensor.columns, first, last, target.x, target.y, column)

        return multiply


def _only(held: Held, names: Container[str]) -> Held:
    """The pieces of these tensors."""
    found = ((data, [piece for piece in pieces if piece.tensor.name in names]) for data, pieces in held)
    return [(data, pieces) for data, pieces in found if pieces]

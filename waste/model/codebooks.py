"""The codebooks of every bank as float32 tables in memory, read when the model is opened."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from waste.errors import DamagedError, ReadError
from waste.io.arena import Arena
from waste.io.codebooks import Codebooks
from waste.io.extents import Placement, place
from waste.io.record import MATRICES
from waste.io.source import WeightSource
from waste.model.compute import Compute
from waste.model.scratch import FloatArray
from waste.sched.priority import Priority
from waste.sched.scheduler import ReadScheduler

_FLOAT_BYTES = 4


def codebook_bytes(source: WeightSource, align: int) -> int:
    """Memory that the tables take, with the buffer they are read through; 0 without codebooks."""
    banks = _banks(source)
    buffers = (_place(books, align).buffer_bytes for books in banks.values())
    return sum(map(_table_bytes, banks.values())) + max(buffers, default=0)


class CodebookTables:
    """`by_bank`: the tables of each bank that has some, float32 [3 matrices, values], filled by `load`.

    verify: whether checksums are compared, where there are some.
    """

    def __init__(self, source: WeightSource, align: int, *, verify: bool) -> None:
        self._source = source
        self._align = align
        self._verify = verify
        self._banks = _banks(source)
        self._arena = Arena(1, sum(map(_table_bytes, self._banks.values())))
        values, begin = self._arena.slot(0).view(np.float32), 0
        tables: dict[int, FloatArray] = {}
        for number, books in self._banks.items():
            end = begin + _table_bytes(books) // _FLOAT_BYTES
            tables[number] = values[begin:end].reshape(len(MATRICES), books.matrix_values)
            begin = end
        self.by_bank: Mapping[int, FloatArray] = tables

    async def load(self, scheduler: ReadScheduler, compute: Compute) -> None:
        """Read and check all of them, bank by bank.

        Raises ReadError or DamagedError naming the layer and what is wrong.
        """
        placements = {number: _place(books, self._align) for number, books in self._banks.items()}
        buffer = Arena(1, max((placement.buffer_bytes for placement in placements.values()), default=0))
        try:
            for number, placement in placements.items():
                raw = buffer.slot(0)
                try:
                    await scheduler.submit(
                        ("codebooks", number),
                        kind="other",
                        placement=placement,
                        buffer=raw.data,
                        priority=Priority.DEMAND,
                    ).wait()
                    await compute.call(partial(self._widen, number, placement, raw))
                except ReadError as error:
                    raise ReadError(f"codebooks of layer {number}: {error}", key=error.key) from error
        finally:
            buffer.close()

    def close(self) -> None:
        """Let go of the memory."""
        self.by_bank = {}
        self._arena.close()

    def _widen(self, number: int, placement: Placement, raw: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        books = self._banks[number]
        begin = placement.starts[0]
        stored = raw[begin : begin + books.extent.length]
        try:
            books.widen(stored, self.by_bank[number])
            if self._verify:
                books.check_sums(stored)
        except DamagedError as error:
            raise DamagedError(f"layer {number}: {self._source.describe_extent(books.extent)}: {error}") from error


def _banks(source: WeightSource) -> dict[int, Codebooks]:
    return {number: bank.codebooks for number, bank in source.banks.items() if bank.codebooks is not None}


def _table_bytes(books: Codebooks) -> int:
    return len(MATRICES) * books.matrix_values * _FLOAT_BYTES


def _place(books: Codebooks, align: int) -> Placement:
    return place([books.extent], align=align, max_gap=0)

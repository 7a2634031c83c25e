"""The routed experts of one layer: what a record holds, and multiplying it as it lands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import numpy as np

from waste.errors import DamagedError, UnsupportedError
from waste.io.extents import Placement
from waste.io.record import HEADER_BYTES, check_payload
from waste.io.source import Bank
from waste.kernels import KernelSet
from waste.kernels.choices import SILU, SITU, SITU_UNCAPPED
from waste.kernels.formats import BF16, F32, MXFP4
from waste.kernels.twins.experts import gather
from waste.model.config import Activation
from waste.model.scratch import FloatArray, IntArray, Scratch
from waste.model.trunk import Buffer

Matrix = Literal["w1", "w3", "w2"]
Rows = tuple[int, int]
"""The first, and the one after the last."""


ACTIVATIONS = {"silu": SILU, "situ": SITU}


def activation_kind(activation: Activation) -> int:
    """The kernels' number for an activation."""
    if activation.name == "situ" and activation.linear_beta is None:
        return SITU_UNCAPPED
    return ACTIVATIONS[activation.name]


@dataclass(frozen=True, slots=True)
class MatrixParts:
    """One matrix of every record of a bank: its parts' places in the record's extents, -1 without scales.

    scale_count: scales of a record's matrix. position: 0 gate, 1 up, 2 down.
    """

    name: Matrix
    format: str
    rows: int
    columns: int
    weights: int
    scales: int
    scale_count: int
    position: int


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The three matrices of a record: gate w1, up w3, down w2. header: the place of that part, -1 without one."""

    gate: MatrixParts
    up: MatrixParts
    down: MatrixParts
    header: int

    @property
    def matrices(self) -> tuple[MatrixParts, MatrixParts, MatrixParts]:
        """In the order of `MatrixParts.position`."""
        return self.gate, self.up, self.down

    @staticmethod
    def of(bank: Bank) -> RecordLayout:
        """Raises UnsupportedError for parts that no expert kernel multiplies."""
        gate, up, down = (_matrix(bank, name, position) for position, name in enumerate(_MATRICES))
        return RecordLayout(gate, up, down, -1 if bank.header is None else _names(bank).index("header"))


_MATRICES: tuple[Matrix, ...] = ("w1", "w3", "w2")


def _names(bank: Bank) -> list[str]:
    return [part.name for part in bank.parts]


def _matrix(bank: Bank, name: Matrix, position: int) -> MatrixParts:
    names = _names(bank)
    if f"{name}.weight_packed" in names:
        weights, scales = names.index(f"{name}.weight_packed"), names.index(f"{name}.weight_scale")
        rows, packed = bank.parts[weights].shape
        count = rows * MXFP4.scale_bytes(packed * 2)
        return MatrixParts(name, MXFP4.name, rows, packed * 2, weights, scales, count, position)
    weights = names.index(f"{name}.weight")
    part = bank.parts[weights]
    rows, columns = part.shape
    if bank.codebooks is not None:
        scales = names.index(f"{name}.weight_scale")
        return MatrixParts(name, part.dtype, rows, columns, weights, scales, rows, position)
    if part.dtype not in (BF16.name, F32.name):
        raise UnsupportedError(f"experts are stored as {part.dtype}; they may be MXFP4, BF16 or F32")
    return MatrixParts(name, part.dtype, rows, columns, weights, -1, 0, position)


@dataclass(frozen=True, slots=True)
class RecordUse:
    """What all records are used with. codebooks: by layer, float32 [3, values]. verify: whether checksums are."""

    codebooks: Mapping[int, FloatArray]
    verify: bool


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """What experts are answered in, for N tokens and all their choices."""

    x: FloatArray  # [threads, N, input]: the inputs of one expert
    gate: FloatArray  # [choices, width]
    up: FloatArray  # [choices, width]
    found: IntArray  # [threads, 4]: bad scales

    @staticmethod
    def take(scratch: Scratch, threads: int, tokens: int, choices: int, input_size: int, width: int) -> ExpertBuffers:
        return ExpertBuffers(
            x=scratch.floats(threads, tokens, input_size),
            gate=scratch.floats(choices, width),
            up=scratch.floats(choices, width),
            found=scratch.ints(threads, 4),
        )


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Which expert answers which tokens: `tokens` are batch rows, ascending, `weights` what their answers count for.

    first: how many choices, of all tokens, fell on experts with lower ids.
    """

    expert: int
    tokens: IntArray
    weights: FloatArray
    first: int


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Records that threads answer together.

    tokens: the row of x of each choice of the layer. table: as kernels take it. turns: who does what, zeros at first.
    """

    members: Sequence[tuple[ExpertWork, Buffer, Placement]]
    tokens: IntArray
    table: IntArray
    turns: IntArray


_ONLY = np.zeros(1, np.int64)


def sort_by_expert(ids: IntArray, weights: FloatArray, rows: IntArray) -> list[ExpertWork]:
    """Group [N, k] choices by expert, ascending; fills `rows` [N, k] with each choice's place in that order."""
    if len(ids) == 1:
        # Ascending as they are, and numpy's way to see it would take longer than a small kernel.
        rows[0] = np.arange(ids.size)
        return [
            ExpertWork(expert, _ONLY, weights[0, place : place + 1], place)
            for place, expert in enumerate(ids[0].tolist())
        ]
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    rows.reshape(-1)[order] = np.arange(flat.size)
    experts, begins = np.unique(flat[order], return_index=True)
    tokens, sorted_weights = order // ids.shape[1], weights.reshape(-1)[order]
    ends = np.append(begins[1:], flat.size)
    return [
        ExpertWork(int(expert), tokens[begin:end], sorted_weights[begin:end], int(begin))
        for expert, begin, end in zip(experts, begins, ends, strict=True)
    ]


class ExpertMath:
    """An expert's MLP: w2·act(w1·x, w3·x), one compute thread, straight from the record's bytes."""

    def __init__(self, layer: int, bank: Bank, activation: Activation) -> None:
        self._layer = layer
        self._bank = bank
        self._record = RecordLayout.of(bank)
        matrices = self._record.matrices
        self.is_uniform = len({matrix.format for matrix in matrices}) == 1
        """Whether its matrices have one format, and threads can answer it together."""
        # In the order in which the kernels take their places; what stands for scales that are none is never looked at.
        stored = [m.weights for m in matrices] + [m.scales if m.scales >= 0 else m.weights for m in matrices]
        self._places = itemgetter(*stored)
        self._kind = activation_kind(activation)
        self._beta = activation.beta
        self._linear_beta = activation.linear_beta or 0.0

    def group(self, members: Sequence[tuple[ExpertWork, Buffer, Placement]], tokens: IntArray) -> ExpertGroup:
        """Records to be answered together. The buffers must outlive it."""
        # On the loop, and in a hurry: an array's own way to tell its address takes three times as long.
        table: list[int] = []
        for work, data, placement in members:
            table += addressof(c_char.from_buffer(data.data)), data.size, work.first, work.tokens.size
            table += self._places(placement.starts)
        rows = np.fromiter(table, np.int64, len(table)).reshape(len(members), -1)
        return ExpertGroup(members, tokens, rows, np.zeros(4, np.int64))

    def answer_together(
        self,
        kernels: KernelSet,
        use: RecordUse,
        group: ExpertGroup,
        part: int,
        x: FloatArray,
        buffers: ExpertBuffers,
        worker: int,
        answers: FloatArray,
    ) -> None:
        """One thread's share of answers[work.first + j] = the expert's answer to x[work.tokens[j]] for each member.

        To be called once for each `part` of as many threads as there are; the answers are whole when all have returned.
        Raises DamagedError if a record is not what the source promised, or a scale of it is not a number.
        """
        self.share(kernels, use, group, x, buffers, worker, answers)
        # Whatever a damaged record says, sizes and places were the layout's; and threads that wait for the
        # interpreter here have their share behind them.
        for work, data, placement in group.members[part :: len(buffers.x)]:
            self.check_header(use, work.expert, data, placement)

    def share(
        self,
        kernels: KernelSet,
        use: RecordUse,
        group: ExpertGroup,
        x: FloatArray,
        buffers: ExpertBuffers,
        worker: int,
        answers: FloatArray,
    ) -> None:
        """As `answer_together`, of records whose headers have been looked at."""
        found = buffers.found[worker]
        rest = (
            *(x, group.tokens, buffers.x[worker], buffers.gate, buffers.up, answers),
            *(self._kind, self._beta, self._linear_beta, group.turns, found),
        )
        name = self._record.gate.format
        if self._bank.codebooks is None:
            experts = kernels.formats[name].experts
            assert experts is not None
            experts(group.table, *rest)
        else:
            block, books = self._bank.codebooks.index_block, use.codebooks[self._layer]
            kernels.codebook_formats[name].experts(group.table, block, books, *rest)
        if found[0] >= 0:
            raise self._damaged(group.members[found[0]][0].expert, self._record.matrices[found[1]], found[2])

    def answer_alone(
        self,
        kernels: KernelSet,
        use: RecordUse,
        member: tuple[ExpertWork, Buffer, Placement],
        x: FloatArray,
        buffers: ExpertBuffers,
        worker: int,
        answers: FloatArray,
    ) -> None:
        """The same for one whole expert, whose matrices may differ in their formats."""
        work, data, placement = member
        choices = slice(work.first, work.first + work.tokens.size)
        gate, up = buffers.gate[choices], buffers.up[choices]
        seen = gather(x, work.tokens, buffers.x[worker])
        self.check(kernels, use, work.expert, data, placement, buffers.found[worker])
        self.inner(kernels, use, data, placement, seen, gate, up, (0, self._record.gate.rows))
        self.outer(kernels, use, data, placement, gate, answers[choices], (0, self._record.down.rows))

    def check(
        self, kernels: KernelSet, use: RecordUse, expert: int, data: Buffer, placement: Placement, found: IntArray
    ) -> None:
        """Raise DamagedError if the record is not what the source promised, or a scale of it is not a number."""
        self.check_header(use, expert, data, placement)
        for matrix in self._record.matrices:
            self._check_scales(kernels, expert, matrix, data, placement.starts, found)

    def inner(
        self,
        kernels: KernelSet,
        use: RecordUse,
        data: Buffer,
        placement: Placement,
        x: FloatArray,
        gate: FloatArray,
        up: FloatArray,
        rows: Rows,
    ) -> None:
        """gate[:, r] = act(w1·x, w3·x) for some rows r; up is overwritten."""
        record, starts = self._record, placement.starts
        self._multiply(kernels, use, record.gate, data, starts, x, gate, rows)
        self._multiply(kernels, use, record.up, data, starts, x, up, rows)
        kernels.activate(gate, up, self._kind, self._beta, self._linear_beta, *rows)

    def outer(
        self,
        kernels: KernelSet,
        use: RecordUse,
        data: Buffer,
        placement: Placement,
        gate: FloatArray,
        y: FloatArray,
        rows: Rows,
    ) -> None:
        """y[:, r] = w2·gate for some rows r."""
        self._multiply(kernels, use, self._record.down, data, placement.starts, gate, y, rows)

    def _multiply(
        self,
        kernels: KernelSet,
        use: RecordUse,
        matrix: MatrixParts,
        data: Buffer,
        starts: Sequence[int],
        x: FloatArray,
        y: FloatArray,
        rows: Rows,
    ) -> None:
        at, scale_at = starts[matrix.weights], starts[matrix.scales] if matrix.scales >= 0 else 0
        if self._bank.codebooks is None:
            product = kernels.formats[matrix.format].product
            product(data, at, scale_at, matrix.columns, *rows, x, y, 0)
        else:
            books, block = use.codebooks[self._layer][matrix.position], self._bank.codebooks.index_block
            product = kernels.codebook_formats[matrix.format].product
            product(data, at, scale_at, matrix.columns, *rows, block, books, x, y)

    def check_header(self, use: RecordUse, expert: int, data: Buffer, placement: Placement) -> None:
        """Raise DamagedError if the record is not what the source promised; its scales are not looked at."""
        header = self._bank.header
        if header is None:
            return
        begin = placement.starts[self._record.header]
        try:
            checksum = header.check(data[begin : begin + HEADER_BYTES], expert)
            if use.verify:
                check_payload(data[begin + HEADER_BYTES : begin + header.end], checksum)
        except DamagedError as error:
            raise DamagedError(f"layer {self._layer}, expert {expert}: {error}") from error

    def _check_scales(
        self, kernels: KernelSet, expert: int, matrix: MatrixParts, data: Buffer, starts: Sequence[int], found: IntArray
    ) -> None:
        if self._bank.codebooks is None:
            find = kernels.formats[matrix.format].find_bad_scale
        else:
            find = kernels.codebook_formats[matrix.format].find_bad_scale
        if find is None:
            return
        find(data, starts[matrix.scales], matrix.scale_count, found, 0)
        if found[0] >= 0:
            raise self._damaged(expert, matrix, found[0])

    def _damaged(self, expert: int, matrix: MatrixParts, scale: int) -> DamagedError:
        what = "is infinite or NaN" if self._bank.codebooks else "is 255, which is not a number; expected 0 to 254"
        return DamagedError(
            f"layer {self._layer}, expert {expert}: scale {scale} of {matrix.name} {what}. Fetch the file again"
        )


def expert_key(layer: int, expert: int) -> Hashable:
    """The cache's name for a record."""
    return (layer, expert)

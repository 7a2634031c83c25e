"""How far the weights of one source are from those of another, by kind of tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from waste.convert.decode import DECODERS, ExpertDecoder, decode_rows
from waste.convert.jobs import Jobs
from waste.convert.pace import Pace
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.errors import InputError
from waste.io.names import legible
from waste.io.record import MATRICES
from waste.io.source import WeightSource
from waste.kernels._jit import compile_kernel
from waste.kernels.encoders import prepare_encoders

CHUNK_WEIGHTS = 1 << 20
_MATRIX_KINDS = dict(zip(MATRICES, ("experts, gate", "experts, up", "experts, down"), strict=True))
_KINDS = (
    ("embed_tokens.weight", "embedding"),
    ("lm_head.weight", "head"),
    (".block_sparse_moe.gate.", "router"),
    ("norm.weight", "norms"),
    (".self_attn.", "attention"),
    (".shared_experts.", "shared experts"),
    (".routed_expert_", "latent projections"),
    (".mlp.", "dense MLP"),
    ("_res_", "attention residuals"),
)


@dataclass(frozen=True, slots=True)
class KindError:
    """Of one kind of tensor: how many weights, and the norm of the difference over that of the weights."""

    kind: str
    weights: int
    error: float


@dataclass(frozen=True, slots=True)
class _Sums:
    kind: str
    weights: int
    lost: float
    total: float


def kind_of(name: str) -> str:
    """The kind of a trunk tensor."""
    return next((kind for mark, kind in _KINDS if mark in name), "others")


class Comparison:
    """`found` against `exact`: every tensor that both have, and every expert of the banks that both have."""

    def __init__(self, found: WeightSource, exact: WeightSource, jobs: Jobs, pace: Pace) -> None:
        self._found, self._exact = found, exact
        self._jobs, self._pace = jobs, pace

    def run(self) -> list[KindError]:
        """By kind, in the order of their first tensors. Raises InputError where the two are not the same model."""
        prepare_encoders(lambda done, total: self._jobs.check())
        for kernel in DECODERS:
            compile_kernel(kernel)
        ours = SourceFiles(self._found.paths, range(len(self._found.paths)))
        theirs = SourceFiles(self._exact.paths, range(len(self._exact.paths)))
        try:
            buffers = [ReadBuffer() for _ in range(self._jobs.count)]
            free = list(buffers)
            compare = partial(self._compare_tensor, ours, theirs, free)
            sums = self._jobs.map(compare, [name for name in self._found.tensors if name in self._exact.tensors])
            for bank in self._found.banks:
                if bank in self._exact.banks:
                    sums += self._compare_bank(bank, ours, theirs, free)
        finally:
            ours.close()
            theirs.close()
        return list(_by_kind(sums))

    def _compare_tensor(
        self, ours: SourceFiles, theirs: SourceFiles, free: list[ReadBuffer], name: str, buffer: ReadBuffer
    ) -> _Sums:
        found, exact = self._found.tensors[name], self._exact.tensors[name]
        if np.prod(found.shape, dtype=np.int64) != np.prod(exact.shape, dtype=np.int64):
            raise InputError(
                f"{legible(name)} is {list(found.shape)}, and {list(exact.shape)} in the other: other models?"
            )
        columns = found.shape[-1]
        if exact.shape != found.shape:
            exact = type(exact)(exact.dtype, found.shape, exact.extent, exact.scales)
        rows = int(np.prod(found.shape[:-1], dtype=np.int64))
        step = max(1, CHUNK_WEIGHTS // columns)
        lost = total = 0.0
        second = free.pop()
        try:
            for first in range(0, rows, step):
                self._jobs.check()
                count = min(step, rows - first)
                a = decode_rows(found, first, count, ours, buffer).astype(np.float64)
                b = decode_rows(exact, first, count, theirs, second).astype(np.float64)
                lost, total = lost + float(np.square(a - b).sum()), total + float(np.square(b).sum())
        finally:
            free.append(second)
        self._pace.advance(found.extent.length)
        return _Sums(kind_of(name), rows * columns, lost, total)

    def _compare_bank(self, bank: int, ours: SourceFiles, theirs: SourceFiles, free: list[ReadBuffer]) -> list[_Sums]:
        found, exact = self._found.banks[bank], self._exact.banks[bank]
        if found.records != exact.records:
            raise InputError(f"layer {bank} has {found.records} experts, the other {exact.records}: other models?")
        raw = None
        if found.codebooks is not None:
            data, (start,) = ours.read([found.codebooks.extent], ReadBuffer())
            raw = data[start : start + found.codebooks.extent.length]
        our_decoder, their_decoder = ExpertDecoder(found, raw), ExpertDecoder(exact, None)

        def compare(index: int, buffer: ReadBuffer) -> list[_Sums]:
            second = free.pop()
            try:
                our_extents = self._found.record(bank, index)
                mine = ours.read(our_extents, buffer)
                other = theirs.read(self._exact.record(bank, index), second)
                sums = []
                for matrix in MATRICES:
                    self._jobs.check()
                    a = our_decoder.decode(matrix, *mine)
                    b = their_decoder.decode(matrix, *other)
                    difference = (a - b).reshape(-1)
                    lost, total = float(_square_sum(difference)), float(_square_sum(b.reshape(-1)))
                    sums.append(_Sums(_MATRIX_KINDS[matrix], a.size, lost, total))
            finally:
                free.append(second)
            self._pace.advance(sum(extent.length for extent in our_extents))
            return sums

        return [sums for expert in self._jobs.map(compare, range(found.records)) for sums in expert]


def _square_sum(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """In float64, a part at a time: a matrix of a K3 would take 90 MB more as a whole."""
    parts = range(0, len(values), CHUNK_WEIGHTS)
    return sum(float(np.square(values[at : at + CHUNK_WEIGHTS].astype(np.float64)).sum()) for at in parts)


def _by_kind(sums: list[_Sums]) -> Iterator[KindError]:
    kinds: dict[str, list[_Sums]] = {}
    for each in sums:
        kinds.setdefault(each.kind, []).append(each)
    for kind, group in kinds.items():
        lost, total = sum(each.lost for each in group), sum(each.total for each in group)
        error = (lost / total) ** 0.5 if total else 0.0 if not lost else float("inf")
        yield KindError(kind, sum(each.weights for each in group), error)

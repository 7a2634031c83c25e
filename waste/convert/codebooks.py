"""Codebooks by k-means: one a stage, each fitted to what the ones before leave of the vectors.

Serial and in one fixed order, so that the same vectors and seed give the same bits on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from waste.io.codebooks import pack_header
from waste.io.record import MATRICES, VECTOR, VectorFormat
from waste.kernels.vq_encode import AT_ONCE, SCRATCH, assign

Floats = npt.NDArray[np.float32]

MAX_ROUNDS = 100
LEAST_GAIN = 1e-4
"""The part of the error by which a round must lessen it, or it was the last."""


class Codebooks:
    """The codebooks of one matrix: `values` float32 [stages·entries·8], each exact in float16."""

    def __init__(self, form: VectorFormat, values: Floats) -> None:
        self.form = form
        self.values = np.ascontiguousarray(values.reshape(-1), np.float32)
        self.halves = negative_half_squares(self.values)

    def pack(self, stage: int) -> bytes:
        """The entries of one stage as they are stored."""
        entries = self.values.reshape(self.form.stages, -1)[stage]
        return bytes(entries.astype("<f2").data)


def pack_books(form: VectorFormat, books: Mapping[str, Codebooks], base: int) -> list[bytes]:
    """Every codebook of a bank as it is stored, header included, by matrix and stage; `base` is the first's number."""
    return [
        pack_header(base + position * form.stages + stage, form) + books[matrix].pack(stage)
        for position, matrix in enumerate(MATRICES)
        for stage in range(form.stages)
    ]


def negative_half_squares(values: Floats) -> Floats:
    """−|c|²/2 of each vector, added up component by component in float64."""
    vectors = values.reshape(-1, VECTOR).astype(np.float64)
    total = vectors[:, 0] * vectors[:, 0]
    for component in range(1, VECTOR):
        total = total + vectors[:, component] * vectors[:, component]
    return (-0.5 * total).astype(np.float32)


def fit_codebooks(
    vectors: Floats, form: VectorFormat, random: np.random.Generator, check: Callable[[], None] = lambda: None
) -> Codebooks:
    """Fit all stages to `vectors`, float32 [n, 8]; `check` is called again and again and may raise to call it off."""
    residual = np.resize(vectors, (-(-len(vectors) // AT_ONCE) * AT_ONCE, VECTOR))
    books = np.empty((form.stages, form.entries, VECTOR), np.float32)
    for stage in range(form.stages):
        fitting = _Fitting(residual, form.entries, random)
        books[stage] = fitting.run(check)
        residual -= books[stage][fitting.labels]
    return Codebooks(form, books)


class _Fitting:
    """k-means of one codebook. `labels`: the entry nearest to each vector, of the entries that `run` returned."""

    def __init__(self, vectors: Floats, entries: int, random: np.random.Generator) -> None:
        self._vectors = vectors
        self._entries = entries
        self.labels = np.empty(len(vectors), np.int64)
        self._errors = np.empty(len(vectors), np.float32)
        self._sums = np.empty((entries, VECTOR), np.float64)
        self._counts = np.empty(entries, np.int64)
        self._total = np.empty(1, np.float64)
        self._scratch = np.empty(SCRATCH, np.float32)
        chosen = random.permutation(len(vectors))[:entries]
        self._book = vectors[np.resize(chosen, entries)].copy()

    def run(self, check: Callable[[], None]) -> Floats:
        """Rounds until the error hardly lessens; the entries [entries, 8], rounded to float16."""
        before = np.inf
        for _ in range(MAX_ROUNDS):
            check()
            self._assign()
            total = float(self._total[0])
            self._move()
            if before - total <= LEAST_GAIN * total:
                break
            before = total
        self._book = self._book.astype(np.float16).astype(np.float32)
        self._assign()
        return self._book

    def _assign(self) -> None:
        book = self._book.reshape(-1)
        assign(
            self._vectors, book, negative_half_squares(book), self._entries, self._scratch,
            self.labels, self._errors, self._sums, self._counts, self._total,
        )  # fmt: skip

    def _move(self) -> None:
        """Entries to the mean of their vectors; one without any to the vector that is worst off."""
        used = self._counts > 0
        self._book[used] = self._sums[used] / self._counts[used, None]
        unused = np.flatnonzero(~used)
        if len(unused):
            worst = np.argsort(-self._errors, kind="stable")[: len(unused)]
            worst = worst[self._errors[worst] > 0]
            self._book[unused[: len(worst)]] = self._vectors[worst]

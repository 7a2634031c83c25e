"""One bank: its codebooks, then all its records, each read, encoded and written on whichever thread is free."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from waste.convert.codebooks import Codebooks, fit_codebooks, pack_books
from waste.convert.durable import OutputFile, move, write_file
from waste.convert.experts import ExpertWeights, PackedEncoder, RecordEncoder, VectorEncoder, normalize
from waste.convert.jobs import Jobs
from waste.convert.layout import ContainerLayout, bank_file
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.convert.workspace import Workspace
from waste.errors import WasteError
from waste.io.extents import Extent
from waste.io.record import MATRICES, VECTOR
from waste.io.source import Part

MAX_VECTORS = 1 << 18
"""Vectors that a matrix's codebooks are fitted to: a thousand for each entry."""


class BankConverter:
    """Converts the bank of layer `number`. Every step is made anew if it was not finished before."""

    def __init__(
        self,
        workspace: Workspace,
        layout: ContainerLayout,
        number: int,
        files: SourceFiles,
        jobs: Jobs,
        advance: Callable[[int], None],
    ) -> None:
        self._workspace = workspace
        self._layout = layout
        self._number = number
        self._files = files
        self._jobs = jobs
        self._advance = advance
        self._bank = layout.tables.banks[number]

    def convert(self) -> list[int]:
        """Write codebooks and records durably; returns the CRC-32 of every record, then of every codebook."""
        form = self._layout.banks[self._number]
        books: list[bytes] = []
        encoder: RecordEncoder
        if self._layout.vectors is None:
            encoder = PackedEncoder(form, self._jobs.check)
        else:
            fitted = dict(zip(MATRICES, self._jobs.map(self._fit, MATRICES), strict=True))
            encoder = VectorEncoder(form, self._jobs.check, self._layout.vectors, fitted)
            books = pack_books(self._layout.vectors, fitted, form.header.codebook_base)
            write_file(self._workspace.codebooks_path(self._number), b"".join(books))
        return self._write_records(encoder) + [zlib.crc32(book) for book in books]

    def _write_records(self, encoder: RecordEncoder) -> list[int]:
        size = self._layout.banks[self._number].header.record_bytes
        partial = self._workspace.folder / bank_file(self._number)
        output = OutputFile(partial, size=self._layout.bank_bytes(self._number), is_new=True)

        def write(index: int, buffer: ReadBuffer) -> int:
            extents = self._layout.tables.record(self._number, index)
            data, starts = self._files.read(extents, buffer)
            try:
                record = encoder.encode(index, ExpertWeights(self._bank.parts, data, starts))
            except WasteError as error:
                raise type(error)(f"layer {self._number}, expert {index}: {error}") from error
            output.write(record.data, index * size)
            self._advance(sum(extent.length for extent in extents))
            return zlib.crc32(record.data)

        try:
            found = self._jobs.map(write, range(self._bank.records))
            output.sync()
        finally:
            output.close()
        move(partial, self._workspace.bank_path(self._number))
        return found

    def _fit(self, matrix: str, buffer: ReadBuffer) -> Codebooks:
        options, form = self._layout.options, self._layout.vectors
        assert form is not None
        # Seeds by layer and matrix: what is fitted depends neither on the others nor on which comes first.
        random = np.random.Generator(np.random.PCG64([options.seed, self._number, MATRICES.index(matrix)]))
        return fit_codebooks(self._sample(matrix, random, buffer), form, random, self._jobs.check)

    def _sample(self, matrix: str, random: np.random.Generator, buffer: ReadBuffer) -> npt.NDArray[np.float32]:
        """Vectors [n, 8] of normalized rows: a run of rows, somewhere, of each of `sample` experts."""
        rows, columns = self._layout.shapes[matrix]
        count = min(self._layout.options.sample, self._bank.records)
        chosen = np.sort(random.permutation(self._bank.records)[:count])
        run = min(rows, max(1, -(-MAX_VECTORS // (count * (columns // VECTOR)))))
        sampled = np.empty((count, run, columns), np.float32)
        for position, expert in enumerate(chosen):
            self._jobs.check()
            first = int(random.integers(0, rows - run + 1))
            parts, extents = self._rows(matrix, int(expert), first, run)
            data, starts = self._files.read(extents, buffer)
            sampled[position] = normalize(ExpertWeights(parts, data, starts).widen(matrix, 0, run))[0]
        return sampled.reshape(-1, VECTOR)[:MAX_VECTORS]

    def _rows(self, matrix: str, expert: int, first: int, run: int) -> tuple[list[Part], list[Extent]]:
        """Some rows of an expert's matrix, as parts of their own and where they lie."""
        parts, extents = [], []
        for part, extent in zip(self._bank.parts, self._layout.tables.record(self._number, expert), strict=True):
            if part.name.startswith(f"{matrix}."):
                row_bytes = extent.length // part.shape[0]
                parts.append(Part(part.name, part.dtype, (run, part.shape[1])))
                extents.append(Extent(extent.file, extent.offset + first * row_bytes, run * row_bytes))
        return parts, extents

"""Synthetic containers: noise in a container's formats, with the headers and checksums that a conversion writes.

What lies where, the manifest, the codebooks and the records' headers come from the code that conversions use. Every
entry and every record draws from a generator of its own, so the bytes are the same whatever the threads do.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from waste.convert.codebooks import pack_books
from waste.convert.durable import write_at
from waste.convert.experts import seal
from waste.convert.jobs import Jobs, StoppedError
from waste.convert.layout import ContainerLayout, bank_file, pack_manifest
from waste.convert.options import ConvertOptions
from waste.convert.pace import Pace, Progress
from waste.convert.published import published_source
from waste.convert.reading import ReadBuffer
from waste.convert.synth_folder import FolderWriter
from waste.convert.synth_noise import ContainerNoise
from waste.io.container import CODEBOOKS_NAME, TRUNK_NAME
from waste.io.manifest import MANIFEST_NAME
from waste.io.record import BLOCK_BYTES, HEADER_BYTES

_ZEROS = bytes(1 << 20)
_TRUNK, _BOOKS, _RECORD = range(3)
"""What a generator is for: the first of its key."""


class ContainerWriter(FolderWriter):
    """Writes one container of noise; sparse, of holes that have the right headers and checksums."""

    def __init__(
        self, raw: Mapping[str, Any], *, experts: str, trunk: str, seed: int, is_sparse: bool, jobs: int
    ) -> None:
        """experts, trunk: storage formats by name, as in `ConvertOptions`; jobs: threads.

        Raises InputError, ModelError, UnsupportedError as `ContainerLayout` does.
        """
        super().__init__(is_sparse=is_sparse)
        self._layout = ContainerLayout(published_source(raw)[0], ConvertOptions(experts, trunk, seed=seed))
        self._noise = ContainerNoise(seed, () if is_sparse else {entry.format.name for entry in self._layout.trunk})
        self._job_count = jobs
        self._jobs: Jobs | None = None

    def stop(self) -> None:
        """See `FolderWriter.stop`."""
        super().stop()
        if self._jobs is not None:
            self._jobs.stop()

    @property
    def total_bytes(self) -> int:
        """See `FolderWriter.total_bytes`."""
        return self._layout.total_bytes

    @property
    def disk_bytes(self) -> int:
        """See `FolderWriter.disk_bytes`: sparse, a block for each record's header, and the codebooks."""
        if not self.is_sparse:
            return self.total_bytes
        records = sum(self._layout.tables.banks[number].records for number in self._layout.banks)
        return records * BLOCK_BYTES + len(self._layout.banks) * self._layout.layer_codebook_bytes

    def _write_files(self, folder: Path, progress: Progress) -> None:
        pace = Pace(progress, self.total_bytes)
        pace.what = "writing"
        with Jobs(self._job_count) as jobs:
            self._jobs = jobs
            self._check_stopped()
            try:
                run = _Run(self._layout, self._noise, jobs, pace, is_sparse=self.is_sparse)
                trunk = run.write_trunk(folder)
                books = run.write_books(folder)
                for number in self._layout.banks:
                    run.write_bank(folder, number)
            except StoppedError:
                raise KeyboardInterrupt from None
        manifest = self._layout.manifest({"trunk": trunk, "codebooks": books, "files": {}})
        (folder / MANIFEST_NAME).write_bytes(pack_manifest(manifest))


class _Run:
    """One container being written. Raises OSError where the system refuses, StoppedError when `jobs` is stopped."""

    def __init__(
        self, layout: ContainerLayout, noise: ContainerNoise, jobs: Jobs, pace: Pace, *, is_sparse: bool
    ) -> None:
        self._layout = layout
        self._noise = noise
        self._jobs = jobs
        self._pace = pace
        self._is_sparse = is_sparse

    def write_trunk(self, folder: Path) -> dict[str, int]:
        """Write `trunk.bin`; the CRC-32 of each entry."""
        entries = self._layout.trunk
        with (folder / TRUNK_NAME).open("wb") as file:
            file.truncate(self._layout.trunk_bytes)
            found = self._jobs.map(lambda position, buffer: self._write_entry(file, position), range(len(entries)))
        return {entry.name: checksum for entry, checksum in zip(entries, found, strict=True)}

    def _write_entry(self, file: BinaryIO, position: int) -> int:
        entry = self._layout.trunk[position]
        if self._is_sparse:
            self._pace.advance(entry.end - entry.offset)
            return zeros_checksum(entry.end - entry.offset)
        at, checksum = entry.offset, 0
        for piece in self._noise.entry(entry, self._noise.generator(_TRUNK, position)):
            self._jobs.check()
            checksum = zlib.crc32(piece.data, checksum)
            write_at(file.fileno(), piece.data, at)
            at += piece.nbytes
            self._pace.advance(piece.nbytes)
        assert at == entry.end
        return checksum

    def write_books(self, folder: Path) -> list[int]:
        """Write `codebooks.bin`, which no holes are for: it is small, and zeros are read like any others."""
        form = self._layout.vectors
        if form is None:
            return []
        found = []
        with (folder / CODEBOOKS_NAME).open("wb") as file:
            for number, record in self._layout.banks.items():
                books = self._noise.books(form, self._noise.generator(_BOOKS, number))
                for packed in pack_books(form, books, record.header.codebook_base):
                    found.append(zlib.crc32(packed))
                    file.write(packed)
        self._pace.advance(len(self._layout.banks) * self._layout.layer_codebook_bytes)
        return found

    def write_bank(self, folder: Path, number: int) -> None:
        """Write the records of a layer, or their headers over holes."""
        form, records = self._layout.banks[number], self._layout.tables.banks[number].records
        size = form.header.record_bytes
        write = self._write_header if self._is_sparse else self._write_record
        with (folder / bank_file(number)).open("wb") as file:
            file.truncate(records * size)

            def write_one(index: int, buffer: ReadBuffer) -> None:
                write(file, number, index, buffer)
                self._pace.advance(size)

            self._jobs.map(write_one, range(records))

    def _write_header(self, file: BinaryIO, number: int, index: int, buffer: ReadBuffer) -> None:
        header = self._layout.banks[number].header
        packed = header.pack(index, zeros_checksum(header.end - HEADER_BYTES))
        write_at(file.fileno(), memoryview(packed), index * header.record_bytes)

    def _write_record(self, file: BinaryIO, number: int, index: int, buffer: ReadBuffer) -> None:
        form = self._layout.banks[number]
        size = form.header.record_bytes
        record = buffer.at_least(size)[:size]
        self._noise.fill(record, form, self._layout.shapes, self._noise.generator(_RECORD, number, index))
        seal(record, form.header, index)
        write_at(file.fileno(), record.data, index * size)


@cache
def zeros_checksum(count: int) -> int:
    """CRC-32 of that many zero bytes. A model has few different sizes."""
    checksum = 0
    for begin in range(0, count, len(_ZEROS)):
        checksum = zlib.crc32(memoryview(_ZEROS)[: count - begin], checksum)
    return checksum

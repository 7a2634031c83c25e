"""Whether the files of a model are what they were written as: every byte is read, every checksum there is compared."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from waste.convert.coverage import SMALL_FILES, Coverage
from waste.convert.decode import Bytes, read_books
from waste.convert.jobs import Jobs
from waste.convert.pace import Pace, Progress
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.errors import DamagedError, ModelError, ReadError, UnsupportedError
from waste.io.container import Container
from waste.io.extents import Extent
from waste.io.files import file_error
from waste.io.jsonfile import open_regular
from waste.io.names import legible
from waste.io.record import compare_checksums
from waste.io.source import WeightSource, open_source
from waste.model.config import parse_config
from waste.model.tensors import check_tensors

CHUNK_BYTES = 8 << 20
SMALL_CHUNK_BYTES = 1 << 20
MAX_SMALL_BYTES = 64 << 20
"""Of a file beside the weights, as conversions take them."""
_NAN_SCALE = 255


@dataclass(frozen=True, slots=True)
class Report:
    """damages: one line each; unprotected: what no checksum covers, in words; read_bytes: how much was looked at."""

    damages: tuple[str, ...]
    unprotected: tuple[str, ...]
    read_bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of bytes: of a trunk tensor (checksum None: there is none), a record or a bank's codebooks."""

    name: str
    extents: tuple[Extent, ...]
    checksum: int | None = None
    bank: int | None = None
    record: int | None = None

    @property
    def size(self) -> int:
        return sum(extent.length for extent in self.extents)


class Verifier:
    """Verifies the model at `path`. Raises DamagedError at once if its tables contradict themselves."""

    def __init__(self, path: Path, jobs: Jobs, progress: Progress) -> None:
        self.source: WeightSource = open_source(path)
        self._path = path
        self._jobs = jobs
        self._container = self.source if isinstance(self.source, Container) else None
        self._pieces = list(self._all_pieces())
        self._pace = Pace(progress, sum(piece.size for piece in self._pieces))
        self._pace.what = "verifying"

    def run(self) -> Report:
        """Read everything. Raises StoppedError; damage is in the report."""
        files = SourceFiles(self.source.paths, range(len(self.source.paths)))
        try:
            found = self._jobs.map(partial(self._check, files), self._pieces)
        finally:
            files.close()
        damages = [line for line in found if line is not None]
        unprotected: list[str] = []
        self._compare_config(damages, unprotected)
        if self._container is None:
            unprotected.append("weights: safetensors has no checksums, so one that is still a number may have changed")
        else:
            damages += self._check_small_files(self._container)
            try:
                coverage = Coverage(self._container, self._path)
            except OSError as error:
                raise file_error(self._path, error) from error
            damages += coverage.orphans()
            unprotected += coverage.gaps()
        return Report(tuple(damages), tuple(unprotected), sum(piece.size for piece in self._pieces))

    def _all_pieces(self) -> Iterator[_Piece]:
        sums = self._container.manifest.trunk_checksums if self._container is not None else {}
        for name, tensor in self.source.tensors.items():
            scales = () if tensor.scales is None else (tensor.scales,)
            yield _Piece(legible(name), (tensor.extent, *scales), sums.get(name))
        for number, bank in self.source.banks.items():
            if bank.codebooks is not None:
                yield _Piece(f"the codebooks of layer {number}", (bank.codebooks.extent,), bank=number)
            for index in range(bank.records):
                extents = self.source.record(number, index)
                yield _Piece(f"layer {number}, expert {index}", extents, bank=number, record=index)

    def _check(self, files: SourceFiles, piece: _Piece, buffer: ReadBuffer) -> str | None:
        """What is wrong with a piece, or None."""
        try:
            if piece.bank is None:
                self._check_tensor(files, piece, buffer)
            elif piece.record is None:
                self._check_codebooks(piece.bank, files, piece, buffer)
            else:
                self._check_record(piece.bank, piece.record, files, piece, buffer)
        except (DamagedError, ReadError) as error:
            return f"{piece.name}: {error} ({self.source.describe_extent(piece.extents[0])})"
        return None

    def _chunks(self, files: SourceFiles, extent: Extent, buffer: ReadBuffer) -> Iterator[tuple[int, Bytes]]:
        """The bytes of an extent, a few at a time whatever a table says of its length, and where each begins."""
        for at in range(0, extent.length, CHUNK_BYTES):
            self._jobs.check()
            part = Extent(extent.file, extent.offset + at, min(CHUNK_BYTES, extent.length - at))
            data, (start,) = files.read([part], buffer)
            yield part.offset, data[start : start + part.length]
            self._pace.advance(part.length)

    def _check_tensor(self, files: SourceFiles, piece: _Piece, buffer: ReadBuffer) -> None:
        checksum = 0
        for extent in piece.extents:
            for _, chunk in self._chunks(files, extent, buffer):
                checksum = zlib.crc32(chunk.data, checksum)
        if piece.checksum is not None and checksum != piece.checksum:
            raise DamagedError(
                f"has the checksum {checksum:08x}, the manifest says {piece.checksum:08x}; fetch it again"
            )

    def _check_codebooks(self, bank: int, files: SourceFiles, piece: _Piece, buffer: ReadBuffer) -> None:
        books = self.source.banks[bank].codebooks
        assert books is not None
        data, (start,) = files.read(piece.extents, buffer)
        raw = data[start : start + piece.size]
        read_books(books, raw)
        books.check_sums(raw)
        self._pace.advance(piece.size)

    def _check_record(self, bank: int, index: int, files: SourceFiles, piece: _Piece, buffer: ReadBuffer) -> None:
        parts, header = self.source.banks[bank].parts, self.source.banks[bank].header
        scales = [
            (part.name, extent)
            for part, extent in zip(parts, piece.extents, strict=True)
            if part.name.endswith("_scale") and part.dtype == "U8"
        ]
        begin, promised, checksum = piece.extents[0], 0, 0
        runs = merged(piece.extents)
        if header is not None:
            data, (start,) = files.read([begin], buffer)
            promised = header.check(data[start : start + begin.length], index)
            # From the header's end on, with what lies between the parts: that is what the checksum is of.
            runs = [Extent(begin.file, begin.end, header.end - begin.length)]
        for run in runs:
            for at, chunk in self._chunks(files, run, buffer):
                checksum = zlib.crc32(chunk.data, checksum)
                for name, scale in scales:
                    first, last = max(0, scale.offset - at), max(0, scale.end - at)
                    if scale.file == run.file and (chunk[first:last] == _NAN_SCALE).any():
                        raise DamagedError(f"{name} holds 255, which is no scale; fetch it again")
        if header is not None:
            compare_checksums(checksum, promised)

    def _compare_config(self, damages: list[str], unprotected: list[str]) -> None:
        """Whether the tensors are those that the config implies."""
        try:
            config = parse_config(self.source.config, prefix=self.source.tensor_prefix)
            check_tensors(config, self.source.tensors, self.source.banks)
        except ModelError as error:
            damages.append(f"config and tensors: {error}")
        except UnsupportedError as error:
            unprotected.append(f"whether there are all tensors that the config implies: {error}")

    def _check_small_files(self, container: Container) -> Iterator[str]:
        for name, expected in container.manifest.file_digests.items():
            if name not in SMALL_FILES:
                continue  # any file of the machine's might be there under that name
            path = self._path / name
            try:
                found = self._digest(path)
            except (ModelError, ReadError) as error:
                yield f"{error}; fetch it again"
                continue
            if found != expected:
                yield f"{path} does not have the SHA-256 of the manifest; fetch it again"

    def _digest(self, path: Path) -> str:
        """Raises ModelError, ReadError, DamagedError for what is far too large."""
        stream, size = open_regular(path)
        with stream:
            if size > MAX_SMALL_BYTES:
                raise DamagedError(f"{path} has {size:,} bytes; expected at most {MAX_SMALL_BYTES:,}")
            found = hashlib.sha256()
            try:
                while chunk := stream.read(SMALL_CHUNK_BYTES):
                    self._jobs.check()
                    found.update(chunk)
            except OSError as error:
                raise file_error(path, error) from error
        return found.hexdigest()


def merged(extents: Sequence[Extent]) -> list[Extent]:
    """The same bytes in file order, extents that touch as one."""
    runs: list[Extent] = []
    for extent in sorted(extents, key=lambda extent: (extent.file, extent.offset)):
        if runs and (runs[-1].file, runs[-1].end) == (extent.file, extent.offset):
            runs[-1] = Extent(extent.file, runs[-1].offset, runs[-1].length + extent.length)
        else:
            runs.append(extent)
    return runs

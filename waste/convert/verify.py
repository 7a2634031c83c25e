"""Whether the files of a model are what they were written as: every byte is read, every checksum there is compared."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from waste.convert.decode import Bytes, read_books
from waste.convert.jobs import Jobs
from waste.convert.pace import Pace, Progress
from waste.convert.reading import ReadBuffer, SourceFiles
from waste.errors import DamagedError, ReadError
from waste.io.container import Container
from waste.io.extents import Extent
from waste.io.jsonfile import read_json
from waste.io.manifest import MAX_MANIFEST_BYTES
from waste.io.record import check_payload
from waste.io.source import WeightSource, open_source

CHUNK_BYTES = 8 << 20
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
        self._is_container = isinstance(self.source, Container)
        self._sums = self._checksums()
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
        damages = [line for line in found if line is not None] + list(self._check_small_files())
        return Report(tuple(damages), tuple(self._unprotected()), sum(piece.size for piece in self._pieces))

    def _checksums(self) -> Mapping[str, Any]:
        if not isinstance(self.source, Container):
            return {}
        manifest: Any = read_json(self.source.manifest.path, max_bytes=MAX_MANIFEST_BYTES, unique_keys=True)
        sums = manifest.get("checksums", {})
        kinds = (("trunk", dict), ("codebooks", list), ("files", dict))
        if not isinstance(sums, dict) or any(not isinstance(sums.get(key, kind()), kind) for key, kind in kinds):
            raise DamagedError(f"{self.source.manifest.path}: checksums are not as expected; fetch the file again")
        return sums

    def _all_pieces(self) -> Iterator[_Piece]:
        trunk = self._sums.get("trunk", {})
        for name, tensor in self.source.tensors.items():
            scales = () if tensor.scales is None else (tensor.scales,)
            yield _Piece(name, (tensor.extent, *scales), trunk.get(name))
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

    def _check_tensor(self, files: SourceFiles, piece: _Piece, buffer: ReadBuffer) -> None:
        checksum = 0
        for extent in piece.extents:
            for at in range(0, extent.length, CHUNK_BYTES):
                self._jobs.check()
                part = Extent(extent.file, extent.offset + at, min(CHUNK_BYTES, extent.length - at))
                data, (start,) = files.read([part], buffer)
                checksum = zlib.crc32(data[start : start + part.length].data, checksum)
                self._pace.advance(part.length)
        if piece.checksum is not None and checksum != piece.checksum:
            raise DamagedError(f"has the checksum {checksum:08x}, the manifest says {piece.checksum}; fetch it again")

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
        data, starts = files.read(piece.extents, buffer)
        pieces: dict[str, Bytes] = {
            part.name: data[start : start + extent.length]
            for part, start, extent in zip(parts, starts, piece.extents, strict=True)
        }
        if header is not None:
            promised = header.check(pieces["header"], index)
            begin = starts[0]
            check_payload(data[begin + len(pieces["header"]) : begin + header.end], promised)
        for part in parts:
            if part.name.endswith("_scale") and part.dtype == "U8" and (pieces[part.name] == _NAN_SCALE).any():
                raise DamagedError(f"{part.name} holds 255, which is no scale; fetch it again")
        self._pace.advance(piece.size)

    def _check_small_files(self) -> Iterator[str]:
        for name, expected in self._sums.get("files", {}).items():
            path = self._path / Path(name).name
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                yield f"{path}: {error.strerror or error}; fetch it again"
                continue
            if found != expected:
                yield f"{path} does not have the SHA-256 of the manifest; fetch it again"

    def _unprotected(self) -> Iterator[str]:
        if not self._is_container:
            yield "weights: safetensors has no checksums, so a changed weight that is still a number cannot be seen"
            return
        yield "manifest.json itself, the padding of records, and reserved fields of headers"
        missing = [key for key in ("trunk", "codebooks", "files") if key not in self._sums]
        if missing:
            yield f"{', '.join(missing)}: the container was written without their checksums"

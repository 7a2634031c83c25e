"""What of a container no checksum covers, and which checksums are of nothing: from its tables and the files' sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from waste.convert.wanted import SMALL
from waste.io.codebooks import Codebooks, codebook_bytes
from waste.io.container import CODEBOOKS_NAME, TRUNK_NAME, Container
from waste.io.manifest import MANIFEST_NAME
from waste.io.names import legible

SMALL_FILES = frozenset((*SMALL, "vision.json", "chat.json", "usage.waste"))
"""Files beside the weights that a container may have."""


class Coverage:
    """Of `container`, which lies in `folder`. Raises OSError if that cannot be listed any more."""

    def __init__(self, container: Container, folder: Path) -> None:
        self._container = container
        self._manifest = container.manifest
        self._sizes = {path.name: path.stat().st_size for path in container.paths}
        self._names = sorted(path.name for path in folder.iterdir())

    def orphans(self) -> Iterator[str]:
        """A line for each checksum of something that is not there, and that nothing is compared with."""
        where = f"{self._manifest.path}: checksums"
        for name in self._manifest.trunk_checksums:
            if name not in self._container.tensors:
                yield f"{where}.trunk names {legible(name)}, which the trunk does not have"
        promised, there = len(self._manifest.codebook_checksums), self._codebooks_there()
        if promised > there:
            yield f"{where}.codebooks has {promised:,} checksums for {there:,} codebooks"
        for name in self._manifest.file_digests:
            if name not in SMALL_FILES:
                yield f"{where}.files names {legible(name)}, which is no file that a container has beside its weights"

    def gaps(self) -> Iterator[str]:
        """A line for each thing that may change unseen."""
        yield "manifest.json itself, the padding of records, and reserved fields of headers"
        tensors = list(self._container.tensors)
        yield from _without(TRUNK_NAME, "tensor", tensors, self._manifest.trunk_checksums)
        used = [number for books in self._codebooks() for number in range(books.first, books.first + books.count)]
        covered = range(len(self._manifest.codebook_checksums))
        yield from _without(CODEBOOKS_NAME, "codebook", [f"{n}" for n in used], {f"{n}" for n in covered})
        unused = self._codebooks_there() - len(set(used))
        if unused:
            yield f"{CODEBOOKS_NAME}: {unused:,} codebooks that no layer uses"
        yield from self._unclaimed()
        small = [name for name in self._names if name in SMALL_FILES]
        for name in small:
            if name not in self._manifest.file_digests:
                yield f"{name}: it has no checksum"
        for name in self._names:
            if name not in self._sizes and name not in SMALL_FILES and name != MANIFEST_NAME:
                yield f"{legible(name)}: it is no part of the container"

    def _codebooks(self) -> Iterator[Codebooks]:
        return (bank.codebooks for bank in self._container.banks.values() if bank.codebooks is not None)

    def _codebooks_there(self) -> int:
        """How many the file holds."""
        entries = next((books.entries for books in self._codebooks()), None)
        return self._sizes[CODEBOOKS_NAME] // codebook_bytes(entries) if entries is not None else 0

    def _unclaimed(self) -> Iterator[str]:
        """Bytes of the weights' files that belong to nothing."""
        claimed = {TRUNK_NAME: sum(info.stored_bytes for info in self._container.tensors.values())}
        for entry in self._manifest.banks:
            claimed[entry.file] = max(claimed.get(entry.file, 0), entry.size)
        for name, size in claimed.items():
            if size < self._sizes[name]:
                yield f"{name}: {self._sizes[name] - size:,} bytes that belong to nothing"


def _without(file: str, noun: str, names: Sequence[str], covered: Collection[str]) -> Iterator[str]:
    """A line for each of `names` that is not covered, one if none of several is."""
    bare = [name for name in names if name not in covered]
    if len(bare) == len(names) > 1:
        yield f"{file}: none of the {len(names):,} {noun}s has a checksum"
        return
    for name in bare:
        yield f"{file}: {noun} {legible(name)} has no checksum"

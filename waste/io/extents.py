"""Where bytes lie, and how to fetch many pieces in few aligned reads. Pure functions: no file is touched here.

An `Extent` is a piece somebody wants. `place` turns the extents of one request into `PlacedRead`s: neighbours
are merged, every read is widened to whole blocks, and each gets its own block-aligned region of one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Linux returns at most 2 GiB - 4 KiB from one read; half of that is safe everywhere and costs nothing.
MAX_READ_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """`length` bytes at byte `offset` of file number `file` (an index into the source's `paths`)."""

    file: int
    offset: int
    length: int

    def __post_init__(self) -> None:
        if self.file < 0 or self.offset < 0 or self.length < 0:
            raise ValueError(f"an extent cannot be negative: {self}")

    @property
    def end(self) -> int:
        """The first byte after the extent."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class PlacedRead:
    """One read of whole blocks into one region of a buffer.

    file, offset, length: what is asked from the device; offset and length are multiples of the alignment.
    at: byte of the buffer where the read goes, a multiple of the alignment too.
    need: how many bytes from `offset` must arrive. It is less than `length` where the last wanted byte lies
        inside the last block, which the end of the file may cut short.
    """

    file: int
    offset: int
    length: int
    at: int
    need: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The reads of one request and where its extents end up.

    starts[i] is the byte of the buffer where the caller's extent i begins (0 for an empty extent, which reads
    nothing). Reads are sorted by (file, offset), lie in the buffer in that order and never overlap there.
    """

    reads: tuple[PlacedRead, ...]
    starts: tuple[int, ...]
    buffer_bytes: int


def coalesce(extents: Iterable[Extent], *, max_gap: int) -> list[Extent]:
    """The fewest runs that cover `extents`, sorted by (file, offset).

    Extents of one file that overlap, touch or leave at most `max_gap` unwanted bytes between them become one
    run. Empty extents are left out.
    """
    runs: list[Extent] = []
    for extent in sorted(extents):
        if extent.length == 0:
            continue
        last = runs[-1] if runs else None
        if last is not None and last.file == extent.file and extent.offset - last.end <= max_gap:
            runs[-1] = Extent(last.file, last.offset, max(last.end, extent.end) - last.offset)
        else:
            runs.append(extent)
    return runs


def place(extents: Sequence[Extent], *, align: int, max_gap: int, max_read_bytes: int = MAX_READ_BYTES) -> Placement:
    """Plan the reads that bring `extents` into one buffer.

    Each run of extents (see `coalesce`) is read by its aligned superset; runs whose supersets share or touch
    a block are one read, so that no block is read twice. Reads above `max_read_bytes` come out split.

    Raises ValueError if `align` is not positive or `max_read_bytes` is no multiple of it.
    """
    if align <= 0 or max_gap < 0:
        raise ValueError(f"align must be positive and max_gap not negative, got {align} and {max_gap}")
    runs = _merge_blocks(coalesce(extents, max_gap=max_gap), align)
    reads: list[PlacedRead] = []
    starts = [0] * len(extents)
    order = sorted((i for i, extent in enumerate(extents) if extent.length), key=lambda i: extents[i])
    at = 0
    cursor = 0
    for run in runs:
        offset = run.offset // align * align
        need = run.end - offset
        length = -(-need // align) * align
        reads.extend(split(PlacedRead(run.file, offset, length, at, need), max_bytes=max_read_bytes, align=align))
        while cursor < len(order) and _holds(run, extents[order[cursor]]):
            starts[order[cursor]] = at + extents[order[cursor]].offset - offset
            cursor += 1
        at += length
    return Placement(tuple(reads), tuple(starts), at)


def split(read: PlacedRead, *, max_bytes: int, align: int) -> tuple[PlacedRead, ...]:
    """`read` as consecutive reads of at most `max_bytes`, each still aligned and each with bytes it needs.

    Raises ValueError if `max_bytes` is not a positive multiple of `align`.
    """
    if max_bytes <= 0 or max_bytes % align:
        raise ValueError(f"a read limit of {max_bytes} bytes is not a positive multiple of {align}")
    if read.length <= max_bytes:
        return (read,)
    return tuple(
        PlacedRead(
            file=read.file,
            offset=read.offset + done,
            length=min(max_bytes, read.length - done),
            at=read.at + done,
            need=min(max_bytes, read.need - done),
        )
        for done in range(0, read.need, max_bytes)
    )


def _merge_blocks(runs: list[Extent], align: int) -> list[Extent]:
    """Join the runs whose block-aligned supersets overlap or touch."""
    merged: list[Extent] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last is not None and last.file == run.file and run.offset // align <= -(-last.end // align):
            merged[-1] = Extent(last.file, last.offset, run.end - last.offset)
        else:
            merged.append(run)
    return merged


def _holds(run: Extent, extent: Extent) -> bool:
    return run.file == extent.file and run.offset <= extent.offset and extent.end <= run.end

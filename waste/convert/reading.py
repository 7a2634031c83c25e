"""Reading a source for conversion: positional reads past the page cache, each on the thread that wants the bytes.

Not through the read scheduler, on purpose. That orders the reads of an engine, where urgent ones must overtake others
and an event loop may not block. A conversion has one kind of read, its order is the work's own, and as many are in
flight as there are jobs; a thread that waits for its bytes is all the scheduling there is to do. Files are open only
while the unit that reads them is converted, so that a reclaimed one gives its room back at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from waste.errors import ReadError
from waste.io.arena import Arena
from waste.io.extents import Extent, PlacedRead, place
from waste.io.files import FileSet, file_error

Bytes = npt.NDArray[np.uint8]

_MAX_GAP = 64 << 10


class ReadBuffer:
    """Memory that reads of one thread land in; it grows to the largest and is used again by the next."""

    def __init__(self) -> None:
        self._arena = Arena(1, 0)

    def at_least(self, size: int) -> Bytes:
        if self._arena.slot_bytes < size:
            self._arena = Arena(1, size)
        return self._arena.slot(0)


class SourceFiles:
    """The files `numbers` of `paths`, open for reading until `close`; `read` may run on any thread."""

    def __init__(self, paths: Sequence[Path], numbers: Collection[int]) -> None:
        order = sorted(numbers)
        self._local = {number: position for position, number in enumerate(order)}
        self._files = FileSet([paths[number] for number in order])
        self._files.open()

    def read(self, extents: Sequence[Extent], buffer: ReadBuffer) -> tuple[Bytes, tuple[int, ...]]:
        """The buffer, and where in it each extent begins; valid until the next read into it.

        Raises ReadError naming the file if the device fails or the file has become shorter.
        """
        here = [Extent(self._local[extent.file], extent.offset, extent.length) for extent in extents]
        placement = place(here, align=self._files.alignment, max_gap=_MAX_GAP)
        memory = buffer.at_least(placement.buffer_bytes)
        for read in placement.reads:
            self._fetch(read, memory.data)
        return memory, placement.starts

    def close(self) -> None:
        self._files.close()

    def _fetch(self, read: PlacedRead, memory: memoryview) -> None:
        path = self._files.paths[read.file]
        done = 0
        while done < read.need:
            try:
                part = memory[read.at + done : read.at + read.length]
                count = self._files.read_into(read.file, part, read.offset + done)
            except OSError as error:
                raise file_error(path, error) from error
            if count == 0:
                raise ReadError(f"{path} ends at {read.offset + done:,}, expected {read.need - done:,} bytes more")
            done += count

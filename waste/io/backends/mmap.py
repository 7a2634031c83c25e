"""The `mmap` backend: what reading through mapped files costs when a memory budget has to hold.

A file is never mapped as a whole: its pages would count as ours for as long as the kernel likes. Each reader maps a
window, copies it out and unmaps it, and asks the kernel to drop the pages from its cache too. So this backend holds
at most a window a reader, and no address space between reads, and shows the price: a copy and a page fault for
every page, where a direct read has neither.
"""

from __future__ import annotations

import mmap
import os
from functools import partial

import numpy as np

from waste.io.backends import register
from waste.io.backends.base import Deliver, ReadOp
from waste.io.backends.threads import ThreadsBackend, read_fully
from waste.io.files import FileSet

# Small against any budget, and large enough that mapping it costs little beside reading it.
WINDOW_BYTES = 1 << 20
# Of all readers together: where there are many, each maps less at a time.
WINDOWS_BYTES = 16 << 20


def window_bytes(queue_depth: int) -> int:
    """What one of so many readers maps at a time, beside the part of a page or allocation unit in front of it."""
    return max(mmap.ALLOCATIONGRANULARITY, min(WINDOW_BYTES, WINDOWS_BYTES // queue_depth))


def windows_bytes(queue_depth: int) -> int:
    """The most that so many readers have mapped together."""
    return queue_depth * (window_bytes(queue_depth) + mmap.ALLOCATIONGRANULARITY)


class MmapBackend(ThreadsBackend):
    """`threads`, with windows of mapped memory instead of positional reads. Always through the page cache."""

    def __init__(self, queue_depth: int) -> None:
        super().__init__(queue_depth, read=partial(_read, window=window_bytes(queue_depth)))

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        """See `Backend.start`. Raises UnsupportedError if direct reads are demanded."""
        files.use_page_cache("the mmap backend reads through the page cache")
        await super().start(files, deliver)


def _read(files: FileSet, op: ReadOp, *, window: int) -> int:
    _advise(files.descriptor(op.file), op.offset, op.length, "POSIX_FADV_WILLNEED")
    try:
        return read_fully(files, op, read_into=partial(_copy_out, files, window))
    finally:
        _advise(files.descriptor(op.file), op.offset, op.length, "POSIX_FADV_DONTNEED")


def _copy_out(files: FileSet, most: int, file: int, buffer: memoryview, offset: int) -> int:
    """Copy from `offset` as much as fits `buffer` and a window of `most` bytes; returns how much, 0 at the end.

    Touching a mapped page that the file no longer reaches kills the process, so the size is asked each time. Only a
    file that shrinks within the microseconds after that could still do harm.
    """
    descriptor = files.descriptor(file)
    length = min(buffer.nbytes, most, os.fstat(descriptor).st_size - offset)
    if length <= 0:
        return 0
    lead = offset % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(descriptor, lead + length, access=mmap.ACCESS_READ, offset=offset - lead) as window:
        pages = np.frombuffer(window, dtype=np.uint8)
        # Not a memoryview's assignment: numpy lets go of the interpreter lock, so no fault here stops the event loop.
        np.copyto(np.frombuffer(buffer, dtype=np.uint8)[:length], pages[lead:])
        del pages  # a view would keep the window from closing
    return length


def _advise(descriptor: int, offset: int, length: int, advice: str) -> None:
    """Tell the kernel what becomes of a range, where it listens."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, length, getattr(os, advice))


register("mmap", MmapBackend, window_bytes=windows_bytes)

"""How fast the disk is: a few direct reads of the model's own files."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from waste.errors import WasteError
from waste.io.arena import Arena
from waste.io.files import FileSet
from waste.settings import MIB

READ_BYTES = 4 * MIB
READS = 48
DEPTH = 8


def measure_rate(paths: Sequence[Path]) -> float | None:
    """Bytes a second of reads spread over the files, several at once; None where there is nothing to read.

    Files that are smaller than a few reads say little: the rate is what they give, page cache or not.
    """
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    places = [
        (number, begin) for number, size in enumerate(sizes) for begin in range(0, size - mmap.PAGESIZE, READ_BYTES)
    ]
    if not places:
        return None
    step = max(1, len(places) // READS)
    chosen = places[::step][:READS]
    files = FileSet(paths, warn=lambda text: None)
    arena = Arena(DEPTH, READ_BYTES)
    try:
        with suppress(WasteError, OSError), ThreadPoolExecutor(DEPTH) as pool:
            files.open()

            def read(slot: int) -> int:
                buffer = arena.slot(slot).data
                return sum(files.read_into(number, buffer, begin) for number, begin in chosen[slot::DEPTH])

            began = perf_counter()
            total = sum(pool.map(read, range(DEPTH)))
            return total / (perf_counter() - began)
        return None
    finally:
        files.close()
        arena.close()

"""How fast the disk is: direct reads of the model's own files, or of a temporary one."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from waste.errors import InputError, WasteError
from waste.io.arena import Arena
from waste.io.files import FileSet, file_error
from waste.settings import MIB

READ_BYTES = 4 * MIB
READS = 48
DEPTH = 8

RECORD_BYTES = 5 * MIB // 2
"""About an expert of Kimi-Linear; one of K3 is seven times that, and reads no faster for it."""
SCRATCH_BYTES = 256 * MIB
LEAST_SCRATCH_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class DepthRate:
    """What `depth` reads at once brought: how many there were, and bytes a second of all together."""

    depth: int
    reads: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Random reads of `block_bytes` over files of `file_bytes` in all.

    is_direct: they went past the page cache, so the rates are the disk's. is_sparse: more than half of the files is
    holes, which no disk has to read. rates: by ascending depth, none for files without a whole block.
    """

    file_bytes: int
    block_bytes: int
    is_direct: bool
    is_sparse: bool
    rates: tuple[DepthRate, ...]

    def at_depth(self, depth: int) -> float | None:
        """Bytes a second with so many reads at once, by the nearest depth below that was measured."""
        return next((rate.bytes_per_s for rate in reversed(self.rates) if rate.depth <= depth), None)


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


def measure_depths(paths: Sequence[Path], *, depths: Sequence[int], seconds: float, check: Callable[[], None]) -> Sweep:
    """Random reads of record-sized blocks at each queue depth, `seconds` for each and one read a thread at least.

    Files smaller than a record are read in smaller blocks. `check()` comes before every read, from any thread, and may
    raise to call it off. Raises ModelError or ReadError as `FileSet.open` does, ReadError for a read that fails.
    """
    files = FileSet(paths, warn=lambda text: None)
    try:
        files.open()
        stats = [path.stat() for path in paths]
        sizes = [stat.st_size for stat in stats]
        block = min(RECORD_BYTES, max(sizes, default=0) // files.alignment * files.alignment)
        rates = [_rate_at(files, sizes, block, depth, seconds, check) for depth in depths] if block else []
        stored = [getattr(stat, "st_blocks", size) * 512 for stat, size in zip(stats, sizes, strict=True)]
        return Sweep(sum(sizes), block, files.direct_obtained, 2 * sum(stored) < sum(sizes), tuple(rates))
    finally:
        files.close()


def _rate_at(
    files: FileSet, sizes: Sequence[int], block: int, depth: int, seconds: float, check: Callable[[], None]
) -> DepthRate:
    """`depth` threads read blocks of at least as large files, each place as likely as any other."""
    large = [number for number, size in enumerate(sizes) if size >= block]
    weights = [sizes[number] for number in large]
    arena = Arena(depth, block)
    began = perf_counter()

    def read(slot: int) -> tuple[int, int]:
        places, buffer, reads, size = random.Random(slot), arena.slot(slot).data, 0, 0
        while not reads or perf_counter() < began + seconds:
            check()
            file = places.choices(large, weights)[0]
            offset = places.randrange(sizes[file] - block + 1) // files.alignment * files.alignment
            try:
                size += files.read_into(file, buffer, offset)
            except OSError as error:
                raise file_error(files.paths[file], error) from error
            reads += 1
        return reads, size

    try:
        with ThreadPoolExecutor(depth, thread_name_prefix="waste-disk") as pool:
            done = list(pool.map(read, range(depth)))
        took = perf_counter() - began
    finally:
        arena.close()
    return DepthRate(depth, sum(reads for reads, _ in done), sum(size for _, size in done) / took)


@contextmanager
def scratch_file(folder: Path, *, check: Callable[[], None]) -> Iterator[Path]:
    """A file of noise in `folder` to measure with, of 256 MiB or a quarter of what is free; afterwards it is gone.

    On Linux it has no name in the folder while it is there, so that whatever ends the process ends it, too. `check()`
    comes again and again while it is written and may raise to call it off.

    Raises InputError where there is no room or no folder that can be written to, ReadError for a failing device.
    """
    try:
        free = shutil.disk_usage(folder).free
        size = min(SCRATCH_BYTES, free // 4) // MIB * MIB
        if size < LEAST_SCRATCH_BYTES:
            raise InputError(f"{folder}: {free:,} bytes are free, {4 * LEAST_SCRATCH_BYTES:,} are needed to measure")
        descriptor, name = tempfile.mkstemp(prefix=".waste-", dir=folder)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from error
    path = Path(name)
    try:
        nameless = Path(f"/proc/self/fd/{descriptor}")
        if nameless.exists():
            path.unlink()
            path = nameless
        try:
            _write_noise(descriptor, size, check)
        except OSError as error:
            raise file_error(folder, error) from error
        yield path
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)


def _write_noise(descriptor: int, size: int, check: Callable[[], None]) -> None:
    """Bytes that no filesystem compresses: the same MiB again and again is further than they look back."""
    noise = random.Random(0).randbytes(MIB)
    for _ in range(size // MIB):
        check()
        left = memoryview(noise)
        while left:
            left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)

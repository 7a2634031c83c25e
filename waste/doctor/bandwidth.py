"""How fast memory is read: by one core, and by all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from time import perf_counter

import numpy as np

from waste.settings import MIB

SHARE_BYTES = 64 * MIB
"""What one core reads again and again: more than its part of the last cache."""
LEAST_SHARE_BYTES = MIB
LATE_S = 10.0
"""A thread that has not begun by then never will."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second that numpy's maximum of float32 reads; a kernel that multiplies reads no faster."""

    one_core: float
    all_cores: float


def measure_bandwidth(cores: int, *, room_bytes: int, seconds: float, check: Callable[[], None]) -> Bandwidth | None:
    """Read for `seconds` twice. Takes at most an eighth of `room_bytes`; None if that, or what there is, is too little.

    `check()` comes again and again, from any thread, and may raise to call it off.
    """
    share = min(SHARE_BYTES, room_bytes // 8 // cores)
    if share < LEAST_SHARE_BYTES:
        return None

    def rate(threads: int) -> float:
        together = Barrier(threads)

        def read(_: int) -> tuple[float, int]:
            values = np.ones(share // 4, np.float32)  # pages that were never written are all the same one
            together.wait(LATE_S)
            began, size = perf_counter(), 0
            while not size or perf_counter() < began + seconds:
                check()
                np.maximum.reduce(values)
                size += values.nbytes
            return perf_counter() - began, size

        with ThreadPoolExecutor(threads, thread_name_prefix="waste-memory") as pool:
            done = list(pool.map(read, range(threads)))
        return sum(size for _, size in done) / max(took for took, _ in done)

    try:
        return Bandwidth(one_core=rate(1), all_cores=rate(cores))
    except (MemoryError, RuntimeError):  # RuntimeError: a thread that could not be started, and who waited for it
        return None

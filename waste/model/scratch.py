"""The step's working memory: one block, handed out from the bottom and taken back frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from waste.io.arena import Arena

T = TypeVar("T")

_MOST_TAKEN = 2048  # a batch of another size takes other arrays
_ALIGN = 64  # a cache line, so that no two threads' rows share one

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Scratch:
    """A stack of arrays over `size` bytes; contents are not cleared.

    One walk uses it at a time. Without an arena it only measures: arrays have the right shape and no memory.
    """

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._bytes = None if arena is None else arena.slot(0)
        # Every layer of every step takes the same arrays at the same places.
        self._taken: dict[tuple[int, tuple[int, ...], str], npt.NDArray[np.generic]] = {}
        self._together: dict[tuple[int, Hashable], tuple[Any, int]] = {}
        self._top = 0
        self.peak = 0

    def floats(self, *shape: int) -> FloatArray:
        """An uninitialized float32 array, C-contiguous."""
        return cast(FloatArray, self._take(shape, np.dtype(np.float32)))

    def ints(self, *shape: int) -> IntArray:
        """An uninitialized int64 array, C-contiguous."""
        return cast(IntArray, self._take(shape, np.dtype(np.int64)))

    def together(self, key: Hashable, take: Callable[[], T]) -> T:
        """What `take()` makes of arrays of this scratch; the same object whenever `key` comes at the same place."""
        begin = self._top
        known = self._together.get((begin, key))
        if known is not None:
            self._top = known[1]
            taken: T = known[0]
            return taken
        taken = take()
        if len(self._together) >= _MOST_TAKEN:
            self._together.clear()
        self._together[begin, key] = taken, self._top
        return taken

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What is taken inside is given back at the end."""
        top = self._top
        try:
            yield
        finally:
            self._top = top

    def close(self) -> None:
        """Let go of the memory."""
        if self._arena is not None:
            self._taken.clear()
            self._together.clear()
            self._bytes = np.empty(0, np.uint8)
            self._arena.close()

    def _take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
        begin = self._top
        known = self._taken.get((begin, shape, dtype.char))
        if known is not None:
            self._top = begin + -(-known.nbytes // _ALIGN) * _ALIGN
            return known
        count = 1
        for size in shape:
            count *= size
        self._top = begin + -(-count * dtype.itemsize // _ALIGN) * _ALIGN
        self.peak = max(self.peak, self._top)
        if self._bytes is None:
            return np.broadcast_to(np.zeros((), dtype), shape)
        if self._top > self._bytes.size:
            raise RuntimeError(f"the step needs {self._top} bytes of scratch, the plan counted {self._bytes.size}")
        taken = self._bytes[begin : begin + count * dtype.itemsize].view(dtype).reshape(shape)
        if len(self._taken) >= _MOST_TAKEN:
            self._taken.clear()
        self._taken[begin, shape, dtype.char] = taken
        return taken


def measure(take: Callable[[Scratch], object]) -> int:
    """Bytes at the peak of what `take` allocates from a scratch."""
    scratch = Scratch(None)
    take(scratch)
    return scratch.peak

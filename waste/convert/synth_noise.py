"""Noise as a container stores it: codes, indices and scales cut from pools of random ones, at random places.

Weights have zero mean and the spread of `weight_spread`, in every format. A pool is read only and shared; what is cut
from where follows from the generator that the caller gives, so threads may draw in any order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waste.convert.codebooks import Codebooks
from waste.convert.quantize import LARGEST_CODE, pack_nibbles
from waste.io.manifest import GROUP, TrunkEntry
from waste.io.record import HEADER_BYTES, MATRICES, MXFP4_GROUP, VECTOR, RecordForm, Shapes, VectorFormat

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

POOL_VALUES = 1 << 22
POOL_BYTES = 1 << 24
CHUNK_BYTES = 2 << 20
"""Less than any pool."""
_CODES = 1 << 24
_LARGEST_OF_GROUP = 2.75
"""Standard deviations that the largest of 128 normal values is away, about: so wide are codes spread."""
_NORMALIZED = 0.25
"""Standard deviation of the weights of a row that its absolute maximum was divided out of, about."""
_SCALE_RANGE = 0.1
"""By which part scales are larger or smaller than they have to be, so that no two rows or groups agree."""
_FILLING = {"Q8G": 0, "Q4G": 0x88}
"""The byte that stands for zeros at the end of a row."""


class Spread(NamedTuple):
    """Mean and standard deviation of a tensor's values."""

    mean: float
    deviation: float


def weight_spread(name: str, columns: int) -> Spread:
    """What keeps activations of order one: rows of length one in products, norms around one, decays not all alike."""
    if name.endswith("norm.weight"):
        return Spread(1, 0.1)
    if name.endswith("A_log"):
        return Spread(0, 0)
    if name.endswith(("dt_bias", "e_score_correction_bias")):
        return Spread(0, 0.05)
    if "conv1d" in name:
        return Spread(0, 0.5)
    if name.endswith("embed_tokens.weight"):
        return Spread(0, 1)
    return Spread(0, float(np.float32(columns**-0.5)))


def narrow(values: Floats) -> Bytes:
    """Float32 as bf16, cut off, and as bytes."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def mxfp4_scale(columns: int) -> int:
    """The scale byte that gives rows of n random codes, which deviate by 3, the length one."""
    return 127 - round(math.log2(3.0 * columns**0.5))


class ContainerNoise:
    """Draws trunk entries, codebooks and records. Everything follows from `seed` and the generators given."""

    def __init__(self, seed: int, formats: Collection[str]) -> None:
        """formats: those of the trunk entries that will be drawn."""
        random = np.random.Generator(np.random.PCG64(seed))
        self._seed = seed
        self._bytes = random.integers(0, 256, POOL_BYTES, dtype=np.uint8)
        self._normal = random.standard_normal(POOL_VALUES, dtype=np.float32)
        self._ranges = 1 + np.float32(_SCALE_RANGE) * random.uniform(-1, 1, POOL_VALUES // 16).astype(np.float32)
        self._codes = {name: _grouped_codes(name, random) for name in sorted(LARGEST_CODE.keys() & formats)}
        self._narrow: dict[Spread, Bytes] = {}
        self._lock = Lock()

    def generator(self, *key: int) -> np.random.Generator:
        """One of its own for each key."""
        return np.random.Generator(np.random.PCG64([self._seed, *key]))

    def entry(self, entry: TrunkEntry, random: np.random.Generator) -> Iterator[Bytes]:
        """The bytes of a trunk entry in file order, scales included, some MiB at a time."""
        name, columns = entry.format.name, entry.shape[-1]
        spread = weight_spread(entry.name, columns)
        if name == "BF16":
            yield from _cuts(self._narrowed(spread), entry.weight_bytes, 2, random)
            return
        if name == "F32":
            for piece in _cuts(self._normal.view(np.uint8), entry.weight_bytes, 4, random):
                yield _spread_out(piece.view(np.float32), spread).view(np.uint8)
            return
        codes, deviation = self._codes[name]
        row_bytes = -(-columns // GROUP) * GROUP * entry.format.bits // 8
        filled = columns * entry.format.bits // 8
        whole = CHUNK_BYTES // row_bytes * row_bytes or row_bytes
        for piece in _cuts(codes, entry.weight_bytes, 1, random, at_once=whole):
            if filled < row_bytes:
                piece = piece.copy()
                piece.reshape(-1, row_bytes)[:, filled:] = _FILLING[name]
            yield piece
        for begin in range(0, entry.scale_bytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, entry.scale_bytes - begin) // 2
            yield self._scales(spread.deviation / deviation, count, random).view(np.uint8)

    def books(self, form: VectorFormat, random: np.random.Generator) -> dict[str, Codebooks]:
        """Codebooks of each matrix: normal entries of zero mean, whose sums over the stages have one deviation."""
        books = {}
        for matrix in MATRICES:
            values = random.standard_normal((form.stages, form.entries, VECTOR), dtype=np.float32)
            values -= values.mean(1, keepdims=True)
            values *= np.float32(_NORMALIZED * form.stages**-0.5)
            books[matrix] = Codebooks(form, values.astype(np.float16).astype(np.float32))
        return books

    def fill(self, record: Bytes, form: RecordForm, shapes: Shapes, random: np.random.Generator) -> None:
        """Put noise into everything of `record` but its header, and zeros between parts and behind them."""
        at = HEADER_BYTES
        for span in form.spans[1:]:
            record[at : span.offset] = 0
            at = span.offset + span.length
            part, columns = record[span.offset : at], shapes[span.name.split(".")[0]][1]
            if span.dtype == "F16":
                part[:] = self._scales(columns**-0.5 / _NORMALIZED, span.shape[0], random).view(np.uint8)
            elif span.name.endswith("_scale"):
                assert span.shape[1] * MXFP4_GROUP == columns
                part[:] = mxfp4_scale(columns)
            else:
                begin = 0
                for piece in _cuts(self._bytes, span.length, 1, random, at_once=POOL_BYTES // 2):
                    part[begin : begin + len(piece)] = piece
                    begin += len(piece)
        record[at:] = 0

    def _scales(self, wanted: float, count: int, random: np.random.Generator) -> npt.NDArray[np.float16]:
        """`count` float16 around `wanted`."""
        pieces = _cuts(self._ranges.view(np.uint8), 4 * count, 4, random, at_once=self._ranges.nbytes // 2)
        ranges = np.concatenate([piece.view(np.float32) for piece in pieces])
        return (ranges * np.float32(wanted)).astype("<f2")

    def _narrowed(self, spread: Spread) -> Bytes:
        """Values of this spread as bf16. They are kept: many tensors have the same few spreads."""
        with self._lock:
            if spread not in self._narrow:
                self._narrow[spread] = narrow(_spread_out(self._normal, spread))
            return self._narrow[spread]


def _spread_out(normal: Floats, spread: Spread) -> Floats:
    return np.float32(spread.mean) + np.float32(spread.deviation) * normal


def _grouped_codes(name: str, random: np.random.Generator) -> tuple[Bytes, float]:
    """A pool of codes as they are stored, and their standard deviation."""
    top = LARGEST_CODE[name]
    codes = np.empty(_CODES, np.float32)
    random.standard_normal(out=codes, dtype=np.float32)
    codes *= np.float32(top / _LARGEST_OF_GROUP)
    np.rint(codes, out=codes)
    np.clip(codes, -top, top, out=codes)
    whole = codes.astype(np.int8)
    np.square(codes, out=codes)
    # Whole numbers add up exactly, in whatever order a machine does that.
    deviation = math.sqrt(float(codes.sum(dtype=np.float64)) / _CODES)
    if name == "Q8G":
        return whole.view(np.uint8), deviation
    return pack_nibbles((whole + np.int8(8)).view(np.uint8).reshape(1, -1)).reshape(-1), deviation


def _cuts(
    pool: Bytes, count: int, item_bytes: int, random: np.random.Generator, *, at_once: int = CHUNK_BYTES
) -> Iterator[Bytes]:
    """`count` bytes in pieces of `at_once`, the last maybe less, each from somewhere in the pool at a whole item.

    The pool has more bytes than a piece.
    """
    while count:
        length = min(count, at_once)
        begin = int(random.integers(0, (len(pool) - length) // item_bytes + 1)) * item_bytes
        yield pool[begin : begin + length]
        count -= length

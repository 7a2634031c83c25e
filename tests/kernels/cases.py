"""One table of inputs for every kernel: it drives the comparison with the numpy twins and between instruction sets."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from waste.kernels.choices import SIGMOID, SILU, SITU, SITU_UNCAPPED, SOFTMAX
from waste.kernels.kernel_set import Kernel

Arguments = tuple[Any, ...]
Labelled = Iterator[tuple[str, Arguments]]


@dataclass(frozen=True)
class Case:
    """One call: `writes` are the positions of the arguments it changes, `scratch` of those it leaves in any state."""

    kernel: str
    label: str
    arguments: Arguments
    writes: tuple[int, ...]
    scratch: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}-{self.label}"

    def run(self, kernel: Kernel) -> list[Any]:
        """Call it on copies of the arguments and return those."""
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in self.arguments]
        kernel(*copies)
        return copies


CASES: list[Case] = []


def cases(
    kernel: str, writes: tuple[int, ...], scratch: tuple[int, ...] = ()
) -> Callable[[Callable[[np.random.Generator], Labelled]], None]:
    def collect(make: Callable[[np.random.Generator], Labelled]) -> None:
        rng = np.random.default_rng(zlib.crc32(kernel.encode()))
        CASES.extend(Case(kernel, label, arguments, writes, scratch) for label, arguments in make(rng))

    return collect


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


@dataclass(frozen=True)
class Rows:
    """Random rows of a format in a buffer, not aligned to anything, with bytes of no meaning around them."""

    data: np.ndarray
    at: int
    scale_at: int


def f16_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").view(np.uint8)


def random_rows(rng: np.random.Generator, format_name: str, rows: int, columns: int) -> Rows:
    scales = np.empty(0, np.uint8)
    if format_name == "MXFP4":
        weights = rng.integers(0, 256, rows * columns // 2, np.uint8)
        scales = rng.integers(110, 132, rows * columns // 32, np.uint8)
    elif format_name in ("Q8G", "Q4G"):
        groups = rows * -(-columns // 128)
        weights = rng.integers(0, 256, groups * (128 if format_name == "Q8G" else 64), np.uint8)
        scales = f16_bytes(normal(rng, groups))
    else:
        values = normal(rng, rows * columns)
        halves = {"BF16": lambda: values.view(np.uint16)[1::2].copy().view(np.uint8), "F16": lambda: f16_bytes(values)}
        weights = values.view(np.uint8) if format_name == "F32" else halves[format_name]()
    return in_a_buffer(rng, weights, scales)


def in_a_buffer(rng: np.random.Generator, weights: np.ndarray, scales: np.ndarray) -> Rows:
    parts = [rng.integers(0, 255, n, np.uint8) for n in (5, 3, 2)]
    data = np.concatenate([parts[0], weights, parts[1], scales, parts[2]])
    return Rows(data, 5, 5 + weights.size + 3)


VECTOR_FORMATS = {"VQ3R": (3, 3, 256), "VQ2R": (2, 2, 256), "VQ4P": (3, 4, 64)}
"""Bytes of eight weights, codebooks, entries."""


def random_vectors(
    rng: np.random.Generator, format_name: str, rows: int, columns: int, block: int
) -> tuple[Rows, np.ndarray]:
    """Rows of a vector-quantized format in index blocks, and the codebooks."""
    vector_bytes, stages, entries = VECTOR_FORMATS[format_name]
    stored = -(-rows // max(block, 1)) * max(block, 1)
    indices = rng.integers(0, 256, stored * columns // 8 * vector_bytes, np.uint8)
    return in_a_buffer(rng, indices, f16_bytes(normal(rng, rows))), normal(rng, stages * entries * 8)


def format_cases(format_name: str, widths: tuple[int, ...], *, has_absorb: bool = True) -> None:
    @cases(f"{format_name}.product", writes=(7,))
    def product(rng: np.random.Generator) -> Labelled:
        for width in widths:
            rows = random_rows(rng, format_name, 7, width)
            for tokens in range(1, 10):
                first, last = (0, 7) if tokens % 2 else (2, 5)
                x, y = normal(rng, tokens, width), normal(rng, tokens, 11)
                yield (
                    f"{width}-wide-{tokens}-tokens",
                    (rows.data, rows.at, rows.scale_at, width, first, last, x, y, 3),
                )
        rows = random_rows(rng, format_name, 3, 32)
        x, y = normal(rng, 5, 48), normal(rng, 5, 3)
        yield "rows-of-x-wider", (rows.data, rows.at, rows.scale_at, 32, 0, 3, x, y, 0)
        yield "no-rows", (rows.data, rows.at, rows.scale_at, 32, 2, 2, x, y, 0)

    @cases(f"{format_name}.widen", writes=(5,))
    def widen(rng: np.random.Generator) -> Labelled:
        for width in widths:
            rows = random_rows(rng, format_name, 4, width)
            yield f"{width}-wide", (rows.data, rows.at, rows.scale_at, width, 4, normal(rng, 5, width))

    if not has_absorb:
        return

    @cases(f"{format_name}.absorb", writes=(7,))
    def absorb(rng: np.random.Generator) -> Labelled:
        for count, width, tokens in ((1, 8, 1), (16, 32, 4), (24, 72, 9)):
            rows = random_rows(rng, format_name, count, width)
            x, y = normal(rng, tokens, count + 13), normal(rng, tokens, width + 8)
            yield f"{count}x{width}-{tokens}-tokens", (rows.data, rows.at, rows.scale_at, width, count, x, 5, y)


format_cases("BF16", (8, 24, 64, 3104))
format_cases("F16", (8, 24, 64, 3104))
format_cases("F32", (8, 24, 64, 3104))
format_cases("MXFP4", (32, 64, 96, 3104), has_absorb=False)
format_cases("Q8G", (8, 24, 128, 200, 3104))
format_cases("Q4G", (8, 24, 128, 200, 3104))


@cases("Q8G.widen", writes=(5,))
def _widen_odd_q8g(rng: np.random.Generator) -> Labelled:
    for width in (3, 131):
        rows = random_rows(rng, "Q8G", 2, width)
        yield f"{width}-wide", (rows.data, rows.at, rows.scale_at, width, 2, normal(rng, 2, width))


def codebook_cases(format_name: str) -> None:
    @cases(f"{format_name}.product", writes=(9,))
    def product(rng: np.random.Generator) -> Labelled:
        for width, block, tokens, first, last in (
            (8, 0, 1, 0, 13),
            (24, 4, 1, 1, 13),
            (3104, 64, 1, 0, 150),
            (64, 64, 7, 3, 130),
            (64, 0, 8, 0, 11),
            (40, 64, 9, 60, 71),
            (64, 10, 19, 0, 23),
            (16, 8, 3, 5, 5),
        ):
            rows, books = random_vectors(rng, format_name, max(last, 1), width, block)
            x, y = normal(rng, tokens, width + 8 * (tokens > 7)), normal(rng, tokens, last + 2)
            place = (rows.data, rows.at, rows.scale_at, width, first, last)
            yield f"{width}-wide-block-{block}-{tokens}-tokens", (*place, block, books, x, y)

    @cases(f"{format_name}.widen", writes=(7,))
    def widen(rng: np.random.Generator) -> Labelled:
        for width, block, count in ((8, 0, 3), (72, 64, 130), (24, 4, 9)):
            rows, books = random_vectors(rng, format_name, count, width, block)
            y = normal(rng, count + 1, width + 8)
            yield f"{width}-wide-block-{block}", (rows.data, rows.at, rows.scale_at, width, count, block, books, y)

    @cases(f"{format_name}.find_bad_scale", writes=(3,))
    def find_bad_scale(rng: np.random.Generator) -> Labelled:
        for label, bad in (("none", []), ("first", [0]), ("last", [49]), ("several", [41, 17]), ("outside", [50])):
            scales = normal(rng, 51)
            scales[bad] = rng.choice([np.inf, -np.inf, np.nan], len(bad))
            data = np.concatenate([np.zeros(3, np.uint8), f16_bytes(scales)])
            yield label, (data, 3, 50, np.array([7, 7, 7], np.int64), 1)


for name in VECTOR_FORMATS:
    codebook_cases(name)


@dataclass(frozen=True)
class Expert:
    """The three matrices of a record. books: float32 [3, values], None for a format without."""

    data: np.ndarray
    places: np.ndarray  # int64 [6]
    books: np.ndarray | None


def random_expert(rng: np.random.Generator, format_name: str, inputs: int, width: int, block: int) -> Expert:
    """A record of a format; w1, w3 [width, inputs], w2 [inputs, width]."""
    parts, books, begin, places = [], [], 0, np.empty(6, np.int64)
    for matrix, (rows, columns) in enumerate([(width, inputs), (width, inputs), (inputs, width)]):
        if format_name in VECTOR_FORMATS:
            stored, values = random_vectors(rng, format_name, rows, columns, block)
            books.append(values)
        else:
            stored = random_rows(rng, format_name, rows, columns)
        places[[matrix, 3 + matrix]] = begin + stored.at, begin + stored.scale_at
        parts.append(stored.data)
        begin += stored.data.size
    return Expert(np.concatenate(parts), places, np.stack(books) if books else None)


_KEPT: list[np.ndarray] = []
"""What the arguments of `experts` kernels say only the addresses of."""


def expert_arguments(
    rng: np.random.Generator,
    experts: Sequence[Expert],
    block: int,
    width: int,
    x: np.ndarray,
    tokens: Sequence[Sequence[int]],
    kind: int,
) -> Arguments:
    """Everything an `experts` kernel takes, for experts with these tokens; a choice before and after is nobody's."""
    inputs, records, first = x.shape[1], np.empty((len(experts), 10), np.int64), 1
    for record, expert, own in zip(records, experts, tokens, strict=True):
        record[:4] = expert.data.ctypes.data, expert.data.size, first, len(own)
        record[4:] = expert.places
        first += len(own)
        _KEPT.append(expert.data)
    flat = np.array([0, *(token for own in tokens for token in own), 0], np.int64)
    gathered = normal(rng, max(map(len, tokens)), inputs)
    table = () if experts[0].books is None else (block, experts[0].books)
    return (
        *(records, *table, x, flat, gathered, normal(rng, flat.size, width), normal(rng, flat.size, width)),
        *(normal(rng, flat.size, inputs), kind, 4.0, 25.0, np.zeros(4, np.int64), np.array([7, 7, 7, 7], np.int64)),
    )


EXPERT_FORMATS = ("MXFP4", "BF16", "F32", *VECTOR_FORMATS)


def expert_cases(format_name: str) -> None:
    x_at = 3 if format_name in VECTOR_FORMATS else 1
    gathered, turns, found = x_at + 2, x_at + 9, x_at + 10

    @cases(f"{format_name}.experts", writes=(x_at + 3, x_at + 4, x_at + 5), scratch=(gathered, turns, found))
    def experts(rng: np.random.Generator) -> Labelled:
        for label, inputs, width, block, tokens, kind in (
            ("alone", 64, 96, 0, [[0]], SILU),
            ("one", 96, 64, 4, [[2]], SITU),
            ("three", 32, 64, 64, [[0, 9], [3], [1, 2, 4]], SILU),
            ("seven", 64, 96, 64, [[0, 1, 3, 4, 6, 7, 9]], SITU_UNCAPPED),
            ("nine", 32, 64, 64, [[0, 1, 2, 3, 4, 5, 7, 8, 9]], SITU),
            ("parts", 32, 8192 + 64, 64, [[3], [1, 2]], SILU),
        ):
            x = normal(rng, 1 if label == "alone" else 10, inputs, scale=0.1)
            records = [random_expert(rng, format_name, inputs, width, block) for _ in tokens]
            records = [replace(record, books=records[0].books) for record in records]
            yield label, expert_arguments(rng, records, block, width, x, tokens, kind)


for name in EXPERT_FORMATS:
    expert_cases(name)


@cases("MXFP4.find_bad_scale", writes=(3,))
def _find_bad_scale(rng: np.random.Generator) -> Labelled:
    good = rng.integers(0, 255, 100, np.uint8)
    for label, bad in (("none", []), ("first", [10]), ("last", [59]), ("several", [40, 17, 31]), ("outside", [9, 60])):
        data = good.copy()
        data[bad] = 255
        yield label, (data, 10, 50, np.array([7, 7, 7], np.int64), 1)


@cases("rms_norm", writes=(5,))
def _rms_norm(rng: np.random.Generator) -> Labelled:
    for width in (8, 40, 576):
        x, weight, y = normal(rng, 5, width + 24), normal(rng, width), normal(rng, 5, width + 8)
        yield f"{width}-wide", (x, 16, width, weight, 1e-5, y, 1, 4)
    yield "zeros", (np.zeros((2, 16), np.float32), 0, 16, normal(rng, 16), 1e-6, normal(rng, 2, 16), 0, 2)


@cases("activate", writes=(0,))
def _activate(rng: np.random.Generator) -> Labelled:
    for label, kind in (("silu", SILU), ("situ", SITU), ("uncapped", SITU_UNCAPPED)):
        gate, up = normal(rng, 3, 48, scale=5), normal(rng, 3, 40, scale=40)
        yield label, (gate, up, kind, 4.0, 25.0, 8, 32)


@cases("multiply_sigmoid", writes=(0,))
def _multiply_sigmoid(rng: np.random.Generator) -> Labelled:
    yield "columns", (normal(rng, 3, 40), normal(rng, 3, 32, scale=20), 8, 24)


@cases("add", writes=(1,))
def _add(rng: np.random.Generator) -> Labelled:
    yield "middle", (normal(rng, 5, 24), normal(rng, 5, 24), 1, 4)


@cases("exponential", writes=(1,))
def _exponential(rng: np.random.Generator) -> Labelled:
    for size in (1, 7, 8, 9, 30):
        yield f"{size}", (normal(rng, size, scale=20), normal(rng, size))


@cases("mix_residuals", writes=(5,))
def _mix_residuals(rng: np.random.Generator) -> Labelled:
    for count in (1, 2, 5):
        stream, norm, query = normal(rng, 6, 4, 32), normal(rng, 32), normal(rng, 32)
        yield f"{count}-rows", (stream, count, norm, query, 1e-5, normal(rng, 4, 32), 1, 3)


@cases("short_convolution", writes=(7,))
def _short_convolution(rng: np.random.Generator) -> Labelled:
    for size, begin, end in ((4, 0, 1), (4, 2, 4), (4, 1, 9), (2, 3, 6), (1, 0, 2)):
        x, past, taps = normal(rng, 9, 48), normal(rng, size - 1, 48), normal(rng, size, 48)
        yield f"kernel-{size}-tokens-{begin}-{end}", (x, past, taps, begin, end, 8, 32, normal(rng, 9, 48))


@cases("prepare", writes=(0, 1, 2))
def _prepare(rng: np.random.Generator) -> Labelled:
    for label, bound in (("bounded", -5.0), ("unbounded", 0.0)):
        qkv, decay, beta = normal(rng, 4, 3 * 48), normal(rng, 4, 48, scale=4), normal(rng, 4, 3, scale=3)
        yield label, (qkv, decay, beta, normal(rng, 3), normal(rng, 48), bound, 16, 1, 3)


def scan_inputs(rng: np.random.Generator, tokens: int, heads: int = 3, size: int = 16) -> dict[str, np.ndarray]:
    """What `prepare` leaves: q and k of length one, decays and β below one."""
    channels = heads * size
    qkv = normal(rng, tokens, 3 * channels)
    unit = qkv[:, : 2 * channels].reshape(tokens, 2 * heads, size)
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    return {
        "state": normal(rng, heads, size, size),
        "owed": np.concatenate([normal(rng, 2 * channels, scale=0.2), rng.random(channels + heads, np.float32)]),
        "qkv": qkv,
        "decay": rng.random((tokens, channels), np.float32),
        "beta": rng.random((tokens, heads), np.float32),
        "out": normal(rng, tokens, channels),
    }


@cases("scan", writes=(0, 1, 12))
def _scan(rng: np.random.Generator) -> Labelled:
    for owed in (0, 1):
        for begin, end, write in ((0, 1, 0), (2, 3, 1), (1, 6, 1), (3, 3, 0)):
            a = scan_inputs(rng, 6)
            after = normal(rng, *a["state"].shape)
            label = f"owed-{owed}-tokens-{begin}-{end}-write-{write}"
            yield (
                label,
                (
                    *(a["state"], after, a["owed"], owed, a["qkv"], a["decay"], a["beta"]),
                    *(begin, end, write, 1, 3, a["out"]),
                ),
            )


@cases("gate_output", writes=(0,))
def _gate_output(rng: np.random.Generator) -> Labelled:
    yield "heads", (normal(rng, 3, 48), normal(rng, 3, 48, scale=4), normal(rng, 16), 1e-5, 16, 1, 3)


@cases("attend", writes=(6,))
def _attend(rng: np.random.Generator) -> Labelled:
    for position in (0, 1, 62, 63, 64, 65, 200):
        for begin, end in ((0, 1), (1, 4)):
            cache, query = normal(rng, position + end - begin, 40), normal(rng, 4, 40, scale=3)
            arguments = (cache, position, query, 0.25, begin, end, normal(rng, 4, 32))
            yield f"position-{position}-tokens-{begin}-{end}", arguments


@cases("route", writes=(7, 8))
def _route(rng: np.random.Generator) -> Labelled:
    for label, experts, k, activation, groups, kept, renormalize in (
        ("plain", 256, 8, SIGMOID, 1, 1, 1),
        ("raw-weights", 13, 3, SIGMOID, 1, 1, 0),
        ("one", 9, 1, SIGMOID, 1, 1, 1),
        ("all", 5, 5, SIGMOID, 1, 1, 1),
        ("softmax", 30, 4, SOFTMAX, 1, 1, 1),
        ("softmax-raw", 30, 4, SOFTMAX, 1, 1, 0),
        ("groups", 24, 4, SIGMOID, 6, 2, 1),
        ("groups-of-one", 7, 2, SIGMOID, 7, 3, 1),
        ("all-groups-kept", 24, 4, SIGMOID, 4, 4, 1),
    ):
        ids, weights = np.full((4, k), -9, np.int64), np.full((4, k), -9, np.float32)
        logits, bias = normal(rng, 4, experts + 3), normal(rng, experts, scale=0.1)
        yield label, (logits, bias, activation, groups, kept, renormalize, 2.446, ids, weights, 1, 3)
        ties = np.round(logits)
        yield f"{label}-ties", (ties, bias * 0, activation, groups, kept, renormalize, 1.0, ids, weights, 0, 4)


@cases("combine", writes=(3,))
def _combine(rng: np.random.Generator) -> Labelled:
    for k in (1, 3):
        rows = rng.integers(0, 10, (4, k))
        yield f"{k}-experts", (normal(rng, 10, 24), rows, normal(rng, 4, k), normal(rng, 4, 24), 1, 3)


@cases("accumulate", writes=(3,))
def _accumulate(rng: np.random.Generator) -> Labelled:
    tokens = np.array([4, 0, 2], np.int64)
    yield "all", (normal(rng, 3, 24), tokens, normal(rng, 3), normal(rng, 5, 24), 0, 24)
    again = np.array([4, 0, 4, 4], np.int64)
    yield "a-token-more-than-once", (normal(rng, 4, 24), again, normal(rng, 4), normal(rng, 5, 24), 0, 24)
    yield "padded-and-some-columns", (normal(rng, 8, 24), tokens, normal(rng, 3), normal(rng, 5, 24), 8, 16)

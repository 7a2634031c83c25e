"""One expert's answer: by threads together, or by parts where a record has several formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.cases import Expert, f16_bytes, normal, random_expert, random_rows
from waste.errors import DamagedError
from waste.io.codebooks import Codebooks
from waste.io.extents import Extent, Placement
from waste.io.source import Bank, Part
from waste.kernels import KernelSet, load_kernels, prepare
from waste.model.config import Activation
from waste.model.experts import ExpertBuffers, ExpertMath, ExpertWork, RecordUse
from waste.model.scratch import Scratch

INPUTS, WIDTH, BLOCK, TOKENS, FIRST, THREADS = 64, 96, 64, 3, 2, 2
CHOICES = FIRST + TOKENS + 1
SHAPES = {"w1": (WIDTH, INPUTS), "w3": (WIDTH, INPUTS), "w2": (INPUTS, WIDTH)}
SITU = Activation("situ", 4.0, 25.0)
WORK = ExpertWork(5, np.array([1, 2, 4]), np.ones(TOKENS, np.float32), FIRST)


@pytest.fixture(scope="module", params=["numba", "numpy"])
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    found = load_kernels(request.param).only(["VQ3R", "MXFP4", "BF16", "F32"])
    prepare(found)
    return found


@dataclass
class Record:
    """A record and what goes with it."""

    math: ExpertMath
    data: np.ndarray
    placement: Placement
    books: np.ndarray | None
    x: np.ndarray

    @property
    def use(self) -> RecordUse:
        return RecordUse({} if self.books is None else {3: self.books}, verify=False)

    def answer(self, kernels: KernelSet) -> np.ndarray:
        buffers = expert_buffers()
        answers = np.full((CHOICES, INPUTS), 7, np.float32)
        member = (WORK, self.data, self.placement)
        if self.math.is_uniform:
            tokens = np.concatenate([np.zeros(FIRST, np.int64), WORK.tokens, [0]])
            group = self.math.group([member], tokens)
            for part in range(THREADS):
                self.math.answer_together(kernels, self.use, group, part, self.x, buffers, part, answers)
        else:
            self.math.answer_alone(kernels, self.use, member, self.x, buffers, 1, answers)
        assert (answers[:FIRST] == 7).all()
        assert (answers[-1] == 7).all()
        return answers[FIRST:-1]

    def by_parts(self, kernels: KernelSet) -> np.ndarray:
        """As several threads would, that share it."""
        gate, up, y = (np.empty((TOKENS, size), np.float32) for size in (WIDTH, WIDTH, INPUTS))
        x, place = np.take(self.x, WORK.tokens, axis=0), (kernels, self.use, self.data, self.placement)
        self.math.check(kernels, self.use, WORK.expert, self.data, self.placement, np.empty(1, np.int64))
        for rows in ((0, 64), (64, WIDTH)):
            self.math.inner(*place, x, gate, up, rows)
        self.math.outer(*place, gate, y, (0, INPUTS))
        return y


def expert_buffers() -> ExpertBuffers:
    class Memory(Scratch):
        def _take(self, shape: tuple[int, ...], dtype: Any) -> Any:
            return np.zeros(shape, dtype)

    return ExpertBuffers.take(Memory(None), THREADS, TOKENS + 1, CHOICES, INPUTS, WIDTH)


def record_of(rng: np.random.Generator, format_name: str) -> Record:
    expert = random_expert(rng, format_name, INPUTS, WIDTH, BLOCK)
    suffixes = ("weight",) if format_name in ("BF16", "F32") else ("weight", "weight_scale")
    suffixes = ("weight_packed", "weight_scale") if format_name == "MXFP4" else suffixes
    parts, starts = [], []
    for kind, suffix in enumerate(suffixes):
        for matrix, (name, (rows, columns)) in enumerate(SHAPES.items()):
            width = columns // 2 if suffix == "weight_packed" else columns
            parts.append(Part(f"{name}.{suffix}", "U8" if format_name == "MXFP4" else format_name, (rows, width)))
            starts.append(int(expert.places[3 * kind + matrix]))
    books = None if expert.books is None else Codebooks(Extent(0, 0, 0), 0, 3, 256, BLOCK, ())
    return in_a_bank(rng, expert, Bank(16, tuple(parts), None, books), starts)


def in_a_bank(rng: np.random.Generator, expert: Expert, bank: Bank, starts: list[int]) -> Record:
    placement = Placement((), tuple(starts), expert.data.size)
    x = normal(rng, 6, INPUTS, scale=0.1)
    return Record(ExpertMath(3, bank, SITU), expert.data, placement, expert.books, x)


@pytest.mark.parametrize("name", ["VQ3R", "MXFP4", "BF16", "F32"])
def test_one_call_has_the_bits_of_the_parts(name: str, kernels: KernelSet) -> None:
    record = record_of(np.random.default_rng(1), name)
    whole, parts = record.answer(kernels), record.by_parts(kernels)
    assert np.isfinite(whole).all()
    if kernels.name == "numba":
        assert whole.tobytes() == parts.tobytes()
    else:
        np.testing.assert_allclose(whole, parts, rtol=1e-5, atol=1e-5 * np.abs(parts).max())


def test_matrices_of_several_formats(kernels: KernelSet) -> None:
    rng = np.random.default_rng(2)
    formats = {"w1": "BF16", "w3": "F32", "w2": "BF16"}
    stored = [random_rows(rng, formats[name], *shape) for name, shape in SHAPES.items()]
    begins = np.cumsum([0, *(rows.data.size for rows in stored)])
    starts = [int(begin) + rows.at for begin, rows in zip(begins, stored, strict=False)]
    parts = tuple(Part(f"{name}.weight", formats[name], shape) for name, shape in SHAPES.items())
    expert = Expert(np.concatenate([rows.data for rows in stored]), np.empty(6, np.int64), None)
    record = in_a_bank(rng, expert, Bank(16, parts), starts)
    assert record.answer(kernels).tobytes() == record.by_parts(kernels).tobytes()


@pytest.mark.parametrize("matrix", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "bad", "says"),
    [
        ("VQ3R", f16_bytes(np.array([np.nan])), "is infinite or NaN"),
        ("MXFP4", np.array([255], np.uint8), "is 255, which is not a number; expected 0 to 254"),
    ],
)
def test_a_bad_scale_is_named(name: str, bad: np.ndarray, says: str, matrix: int, kernels: KernelSet) -> None:
    record = record_of(np.random.default_rng(3), name)
    begin = record.placement.starts[3 + matrix] + 17 * bad.size
    record.data[begin : begin + bad.size] = bad
    expected = f"layer 3, expert 5: scale 17 of {('w1', 'w3', 'w2')[matrix]} {says}. Fetch the file again"
    for answer in (record.answer, record.by_parts):
        with pytest.raises(DamagedError) as caught:
            answer(kernels)
        assert str(caught.value) == expected


def test_a_record_that_is_none_of_ours_is_not_computed(kernels: KernelSet) -> None:
    record = record_of(np.random.default_rng(4), "F32")

    class Header:
        end = 0

        def check(self, raw: np.ndarray, index: int) -> int:
            raise DamagedError(f"no header of record {index} in {raw.size} bytes")

    bank = Bank(16, (Part("header", "U8", (48,)), *(Part(f"{n}.weight", "F32", s) for n, s in SHAPES.items())))
    header: Any = Header()
    math = ExpertMath(3, replace(bank, header=header), SITU)
    placement = Placement((), (0, *record.placement.starts), record.data.size)
    with pytest.raises(DamagedError, match="layer 3, expert 5: no header of record 5 in 48 bytes"):
        replace(record, math=math, placement=placement).answer(kernels)

"""The planner, by property: what it plans is carried out on real files and compared byte by byte."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waste.io.arena import Arena
from waste.io.backends import create
from waste.io.backends.base import ReadOp
from waste.io.backends.contract import run_reads
from waste.io.extents import Extent, PlacedRead, coalesce, place, split
from waste.io.files import FileSet

ALIGN = 64
FILES, FILE_BYTES = 3, 2000

extents_of_files = st.lists(
    st.builds(
        lambda file, offset, length: Extent(file, offset, min(length, FILE_BYTES - offset)),
        st.integers(0, FILES - 1),
        st.integers(0, FILE_BYTES),
        st.integers(0, 400),
    ),
    max_size=25,
)


def covered(extents: list[Extent]) -> set[tuple[int, int]]:
    return {(extent.file, byte) for extent in extents for byte in range(extent.offset, extent.end)}


@given(extents_of_files, st.integers(0, 300))
def test_coalesce_covers_in_few_sorted_runs(extents: list[Extent], max_gap: int) -> None:
    runs = coalesce(extents, max_gap=max_gap)
    assert runs == sorted(runs)
    assert covered(extents) <= covered(runs)
    for before, after in pairwise(runs):
        assert before.file < after.file or after.offset - before.end > max_gap
    edges = {(e.file, e.offset) for e in extents if e.length} | {(e.file, e.end) for e in extents if e.length}
    assert all((run.file, run.offset) in edges and (run.file, run.end) in edges for run in runs)


def test_coalesce_without_gap_reads_nothing_unwanted() -> None:
    extents = [Extent(0, 10, 5), Extent(0, 0, 10), Extent(0, 16, 4), Extent(1, 20, 1), Extent(0, 3, 2)]
    assert coalesce(extents, max_gap=0) == [Extent(0, 0, 15), Extent(0, 16, 4), Extent(1, 20, 1)]
    assert coalesce(extents, max_gap=1) == [Extent(0, 0, 20), Extent(1, 20, 1)]


@given(extents_of_files, st.integers(0, 300), st.sampled_from([ALIGN, 3 * ALIGN, 1 << 30]))
def test_place_is_aligned_disjoint_and_sufficient(extents: list[Extent], max_gap: int, max_read_bytes: int) -> None:
    placement = place(extents, align=ALIGN, max_gap=max_gap, max_read_bytes=max_read_bytes)
    assert [(r.file, r.offset) for r in placement.reads] == sorted((r.file, r.offset) for r in placement.reads)
    at = 0
    for read in placement.reads:
        assert read.offset % ALIGN == read.length % ALIGN == read.at % ALIGN == 0
        assert 0 < read.need <= read.length <= max_read_bytes
        assert read.at == at
        at += read.length
    assert placement.buffer_bytes == at
    blocks = [(r.file, block) for r in placement.reads for block in range(r.offset, r.offset + r.length, ALIGN)]
    assert len(blocks) == len(set(blocks)), "a block is read twice"
    needed = {(r.file, byte) for r in placement.reads for byte in range(r.offset, r.offset + r.need)}
    assert covered(extents) <= needed


@given(extents_of_files)
def test_place_reads_no_block_without_a_wanted_byte_when_no_gap_is_allowed(extents: list[Extent]) -> None:
    placement = place(extents, align=ALIGN, max_gap=0)
    wanted = {(file, byte // ALIGN) for file, byte in covered(extents)}
    assert wanted == {
        (r.file, block) for r in placement.reads for block in range(r.offset // ALIGN, (r.offset + r.length) // ALIGN)
    }


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, bytes]:
    """Files of odd sizes, above and below a block."""
    folder = tmp_path_factory.mktemp("noise")
    contents = {folder / f"{size}": random.Random(size).randbytes(size) for size in (1, 4096, 30_001)}
    for path, content in contents.items():
        path.write_bytes(content)
    return contents


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), max_gap=st.sampled_from([0, 100, 5000]), direct=st.sampled_from(["auto", "off"]))
async def test_what_is_placed_is_read(noise: dict[Path, bytes], data: st.DataObject, max_gap: int, direct: str) -> None:
    contents = list(noise.values())
    extents = []
    for file in data.draw(st.lists(st.integers(0, 2), max_size=12)):
        offset = data.draw(st.integers(0, len(contents[file])))
        extents.append(Extent(file, offset, data.draw(st.integers(0, len(contents[file]) - offset))))
    placement = place(extents, align=FileSet.alignment, max_gap=max_gap, max_read_bytes=2 * FileSet.alignment)
    buffer = Arena(1, placement.buffer_bytes).slot(0)
    ops = [
        ReadOp(token, r.file, r.offset, r.length, r.need, buffer[r.at : r.at + r.length].data)
        for token, r in enumerate(placement.reads)
    ]
    files = FileSet(tuple(noise), direct=direct, warn=lambda message: None)  # type: ignore[arg-type]
    completions = await run_reads(create("threads", queue_depth=2), files, ops)
    assert all(completion.error is None for completion in completions.values())
    for extent, start in zip(extents, placement.starts, strict=True):
        assert buffer[start : start + extent.length].tobytes() == contents[extent.file][extent.offset : extent.end]
    assert isinstance(buffer, np.ndarray)


def test_nothing_wanted_is_nothing_read() -> None:
    placement = place([Extent(0, 100, 0)], align=ALIGN, max_gap=0)
    assert (placement.reads, placement.starts, placement.buffer_bytes) == ((), (0,), 0)


def test_reads_above_the_limit_are_split_by_default() -> None:
    gib = 1 << 30
    placement = place([Extent(0, 5, 2 * gib)], align=4096, max_gap=0)
    assert [(r.offset, r.length, r.at, r.need) for r in placement.reads] == [
        (0, gib, 0, gib),
        (gib, gib, gib, gib),
        (2 * gib, 4096, 2 * gib, 5),
    ]


def test_split_keeps_a_small_read_and_refuses_a_crooked_limit() -> None:
    read = PlacedRead(0, 0, 4096, 0, 1)
    assert split(read, max_bytes=4096, align=4096) == (read,)
    with pytest.raises(ValueError, match="multiple"):
        split(read, max_bytes=5000, align=4096)


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_an_extent_is_never_negative(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        Extent(*numbers)

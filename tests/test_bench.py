"""What a benchmark makes of its runs: pure functions with numbers done by hand, and the order of the runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.harness import GOLDEN, IDS, assert_same_bits, load_golden, logits_in_chunks, open_model
from waste.bench import course
from waste.bench.course import Opening, Variant, check_context, measure, plan_openings
from waste.bench.figures import Spread, overlap, percentile, ratios, split_time, spread_of
from waste.bench.sample import Shape, Spent, spent_between
from waste.errors import ClosedError, ContextLengthError, InputError
from waste.settings import MIB, Settings

MODEL = GOLDEN / "tiny-k3"
SHAPE = Shape(3, 2, 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "DISK_S", 0.001)
    monkeypatch.setattr(course, "MEMORY_S", 0.001)


def test_overlap_is_against_the_slower_of_disk_and_kernels() -> None:
    rate = {"disk_bytes_per_s": 100.0, "threads": 2}
    # 300 bytes take the disk 3 s; 4 s of kernels on two threads take 2 s.
    assert overlap(4.5, useful_bytes=300, compute_s=4.0, **rate) == 1.5  # type: ignore[arg-type]
    # 100 bytes take 1 s: now it is the kernels.
    assert overlap(5.0, useful_bytes=100, compute_s=4.0, **rate) == 2.5  # type: ignore[arg-type]


def test_overlap_where_something_is_missing() -> None:
    assert overlap(3.0, useful_bytes=1, disk_bytes_per_s=None, compute_s=4.0, threads=1) is None
    assert overlap(6.0, useful_bytes=0, disk_bytes_per_s=None, compute_s=4.0, threads=1) == 1.5
    assert overlap(6.0, useful_bytes=0, disk_bytes_per_s=1.0, compute_s=0.0, threads=1) is None


def test_split_adds_up_and_shares_kernels_among_threads() -> None:
    parts = {"kda": 4.0, "experts": 8.0}
    split = split_time(10.0, io_wait_s=2.0, compute_s_by_part=parts, loop_s=1.0, threads=4, tokens=2)
    assert split.parts_s == {"kda": 0.5, "experts": 1.0}
    assert (split.wall_s, split.io_wait_s, split.loop_s, split.rest_s) == (5.0, 1.0, 0.5, 2.0)
    # What ran during waits is counted twice, so there may be less than nothing left.
    assert split_time(1.0, io_wait_s=1.0, compute_s_by_part=parts, loop_s=0.0, threads=12, tokens=1).rest_s == -1.0


def test_medians_and_percentiles() -> None:
    assert spread_of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)
    assert spread_of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert spread_of([]) is None
    assert [percentile([4.0, 1.0, 3.0, 2.0, 5.0], at) for at in (0, 50, 95, 100)] == [1.0, 3.0, 4.8, 5.0]
    assert percentile([7.0], 95) == 7.0


def test_ratios_are_taken_round_by_round() -> None:
    # Both got twice as slow in the second round, which is the machine's doing.
    assert ratios([3.0, 1.5], [2.0, 1.0]) == Spread(1.5, 1.5, 1.5)


def test_openings_take_turns() -> None:
    assert plan_openings(1, 3, is_cold=False) == [Opening(0, (0, 1, 2, 3))]
    assert plan_openings(2, 2, is_cold=False) == [
        Opening(0, (0, 1)),
        Opening(1, (0, 1)),
        Opening(0, (0, 2)),
        Opening(1, (0, 2)),
    ]
    assert plan_openings(1, 2, is_cold=True) == [Opening(0, (0,)), Opening(0, (1,)), Opening(0, (2,))]
    cold = plan_openings(2, 2, is_cold=True)
    assert [(opening.variant, opening.runs) for opening in cold] == [(v, (r,)) for r in range(3) for v in range(2)]


def test_ids_are_the_same_each_time_and_others_in_each_run() -> None:
    shape = Shape(20, 10, 7)
    assert shape.ids(1, 50) == shape.ids(1, 50)
    assert len(shape.ids(1, 50)) == 30
    assert set(shape.ids(1, 50)) <= set(range(50))
    assert shape.ids(1, 50) != shape.ids(2, 50)
    assert shape.ids(1, 50) != Shape(20, 10, 8).ids(1, 50)


def spent(read: int, wasted: int) -> Spent:
    return Spent({"trunk": read - 10, "experts": 10}, {}, 0, 0, 0, 0, wasted, 0.0, {"kda": 1.0, "mla": 2.0}, 0.0)


def test_bytes_read_ahead_for_nothing_are_of_no_use() -> None:
    assert spent(100, 30).useful_bytes == 70
    assert spent(100, -30).useful_bytes == 100, "what was read before was not read here"
    assert spent(100, 0).compute_s == 3.0


def run(variants: list[Variant], *, runs: int, is_cold: bool = False) -> tuple[course.Found, list[str]]:
    """What was measured, and the names of the runs as they began."""
    begun = []

    def progress(what: str, done: int, total: int) -> None:
        if what.endswith(": tokens") and done == 0:
            begun.append(what.removesuffix(": tokens"))

    paths = sorted(MODEL.glob("*.safetensors"))
    work = measure(MODEL, paths, variants, SHAPE, runs=runs, is_cold=is_cold, timeline=None, progress=progress)
    return asyncio.run(work), begun


SMALL: dict[str, Any] = {"ram": 1024 * MIB, "context": 64, "compute_threads": 2}


def test_variants_are_run_in_turns_and_counted_apart() -> None:
    variants = [Variant(str(depth), Settings(**SMALL, io_queue_depth=depth)) for depth in (2, 4)]
    found, begun = run(variants, runs=2)
    rounds = [("2", 1), ("4", 1), ("2", 2), ("4", 2)]
    assert begun == [name for value, number in rounds for name in (f"{value}, warm-up", f"{value}, run {number}")]
    for result, variant in zip(found.results, variants, strict=True):
        assert result.variant is variant
        assert [sample.number for sample in result.samples] == [1, 2]
        assert {rate.depth for sweep in result.sweeps for rate in sweep.rates} == {variant.settings.io_queue_depth}
        assert len(result.sweeps) == 4, "before and after each opening"


def test_a_warm_cache_reads_no_expert_again_and_a_cold_one_does() -> None:
    warm, begun = run([Variant(None, Settings(**SMALL))], runs=2)
    assert begun == ["warm-up", "run 1", "run 2"]
    cold, _ = run([Variant(None, Settings(**SMALL))], runs=2, is_cold=True)
    for ours, others in zip(warm.results[0].samples, cold.results[0].samples, strict=True):
        assert len(ours.token_s) == SHAPE.tokens
        assert sum(others.prompt.bytes_read.values()) > sum(ours.prompt.bytes_read.values())
        used = [s.prompt.expert_hits + s.prompt.expert_misses for s in (ours, others)]
        assert used[0] == used[1] > 0, "the same ids ask for the same experts"
        # A prompt asks for each expert once, so a cold one finds none.
        assert others.prompt.expert_hits == 0
        assert ours.direct_io == others.direct_io


def test_a_sample_is_what_the_engine_counted_meanwhile() -> None:
    async def main() -> None:
        async with open_model("tiny-k3") as engine:
            counted = [engine.stats()]
            async with engine.session() as session:
                for part in (IDS[:4], IDS[4:6]):
                    await engine.feed(session, part)
                    counted.append(engine.stats())
            first, second = map(spent_between, counted, counted[1:])
            both = spent_between(counted[0], counted[2])
            for kind, size in counted[2].bytes_read.items():
                assert both.bytes_read[kind] == first.bytes_read[kind] + second.bytes_read[kind]
                assert counted[0].bytes_read[kind] + both.bytes_read[kind] == size
            assert second.bytes_read["embedding"] > 0
            assert sum(second.reads.values()) > 0
            assert (second.expert_hits, second.expert_misses) == (
                counted[2].expert_hits - counted[1].expert_hits,
                counted[2].expert_misses - counted[1].expert_misses,
            )
            assert first.compute_s_by_part["experts"] > 0
            assert set(first.compute_s_by_part) == set(counted[1].compute_s_by_part)
            nothing = spent_between(counted[2], counted[2])
            assert (nothing.useful_bytes, nothing.compute_s, nothing.loop_s, nothing.io_wait_s) == (0, 0.0, 0.0, 0.0)

    asyncio.run(main())


def test_what_does_not_fit_the_context_is_refused_before_anything_is_opened() -> None:
    check_context(Shape(60, 4, 0), Settings(context=64))
    with pytest.raises(ContextLengthError, match="context=65"):
        check_context(Shape(60, 5, 0), Settings(context=64))
    variants = [Variant(None, Settings(context=4))]
    work = measure(Path("nowhere"), [], variants, SHAPE, runs=1, is_cold=False, timeline=None, progress=print)
    with pytest.raises(ContextLengthError):
        asyncio.run(work)


def test_a_disk_that_cannot_be_measured_is_told_and_no_reason_to_stop() -> None:
    work = measure(
        MODEL,
        [Path("nowhere")],
        [Variant(None, Settings(**SMALL))],
        SHAPE,
        runs=1,
        is_cold=False,
        timeline=None,
        progress=lambda *told: None,
    )
    found = asyncio.run(work)
    assert found.disk_problem is not None
    assert "nowhere" in found.disk_problem
    assert (found.results[0].disk_rates, len(found.results[0].samples)) == ([], 1)


class TestFeed:
    """`Engine.feed`: tokens that the caller chose."""

    def test_its_logits_are_those_of_any_other_walk(self) -> None:
        async def main() -> None:
            async with open_model("tiny-k3", **{"prefill.chunk": 2}) as engine:
                expected = await logits_in_chunks(engine, IDS[:7], 7)
                async with engine.session() as session:
                    assert_same_bits((await engine.feed(session, IDS[:5]))[None], expected[4:5])
                    assert_same_bits((await engine.feed(session, IDS[5:6]))[None], expected[5:6])
                    assert session.ids == tuple(IDS[:6])

        asyncio.run(main())

    def test_what_generate_chose_last_goes_first(self) -> None:
        async def main() -> None:
            async with open_model("tiny-k3") as engine, engine.session() as session:
                chosen = [token.id async for token in engine.generate(IDS, session=session, max_tokens=2)]
                assert chosen == load_golden("tiny-k3").greedy[:2]
                await engine.feed(session, [3])
                assert session.ids == (*IDS, *chosen, 3)
                assert session.pending == []

        asyncio.run(main())

    def test_what_it_refuses_leaves_the_session_as_it_was(self) -> None:
        async def main() -> None:
            async with open_model("tiny-k3", context=8) as engine, engine.session() as session:
                await engine.feed(session, IDS[:3])
                for ids, error in (([], InputError), ([1 << 20], InputError), ([1] * 6, ContextLengthError)):
                    with pytest.raises(error):
                        await engine.feed(session, ids)
                    assert session.length == 3
                async with engine.session() as other:
                    pass
                with pytest.raises(ClosedError):
                    await engine.feed(other, [1])
                stream = engine.generate([1], session=session, max_tokens=2)
                with pytest.raises(InputError, match="generating already"):
                    await engine.feed(session, [1])
                await stream.aclose()
                await engine.feed(session, [1])

        asyncio.run(main())

    def test_stop_ends_it(self) -> None:
        async def main() -> None:
            async with open_model("tiny-k3") as engine, engine.session() as session:
                task = asyncio.create_task(engine.feed(session, IDS[:4]))
                await asyncio.sleep(0)
                engine.stop(session)
                with pytest.raises(ClosedError, match="stopped"):
                    await task
                assert session.length == 0
                await engine.feed(session, IDS[:4])

        asyncio.run(main())

"""Rule 1: whatever the placement, the threads, the chunks and the company, a session's logits have the same bits."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import platform
import random
import subprocess
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import waste.step_loop
from tests.engine.harness import (
    MODELS,
    STREAMING,
    all_logits,
    assert_idle,
    assert_same_bits,
    feed,
    insides,
    load_golden,
    logits_in_chunks,
    open_model,
)
from tests.kernels.processes import output_of, start_python
from waste.engine import Engine
from waste.model.scratch import FloatArray

pytestmark = pytest.mark.usefixtures("leaves_nothing")

EXPECTED: dict[str, FloatArray] = {}


async def expected(name: str) -> FloatArray:
    """The whole golden prompt at once, one thread, everything in memory."""
    if name not in EXPECTED:
        async with open_model(name, **{"compute.threads": 1}) as engine:
            EXPECTED[name] = await all_logits(engine, load_golden(name).ids)
    return EXPECTED[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2, 3])
async def test_chunks_and_threads(name: str, threads: int) -> None:
    ids = load_golden(name).ids
    async with open_model(name, **{"compute.threads": threads}) as engine:
        for chunk, count in ((64, 40), (7, 40), (1, 40 if threads == 2 else 12)):
            found = await logits_in_chunks(engine, ids[:count], chunk)
            assert_same_bits(found, (await expected(name))[:count])


def placements() -> list[dict[str, object]]:
    """Every choice of one alone, and a fixed sample of the product of all."""
    choices: dict[str, Sequence[object]] = {
        "trunk": [0, "40KiB", "300KiB", "auto"],
        "trunk.tile": ["16KiB", "64KiB", "300KiB"],
        "experts": [1, "50KiB", "100KiB", "auto"],
        "io.queue_depth": [1, 2, 8],
        "io.direct": ["auto", "off"],
        "compute.threads": [1, 2],
    }
    product = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return random.Random(3).sample(product, 10)


@pytest.mark.parametrize("name", MODELS)
async def test_placement(name: str) -> None:
    golden, sample = load_golden(name), placements()
    streamed = waves = 0
    for number, settings in enumerate(sample if name == "tiny-k3" else sample[:6]):
        async with open_model(name, **settings) as engine:
            memory = insides(engine).memory
            streamed += len(memory.layout.placements) - memory.ring.statistics().pinned_tiles >= 8
            chunk = (64, 1, 7)[number % 3]
            found = await logits_in_chunks(engine, golden.ids[:20], chunk)
            waves += memory.experts.slots < 8 and chunk > 1
            await assert_idle(engine)
        assert_same_bits(found, (await expected(name))[:20])
    assert streamed
    assert waves


@pytest.mark.parametrize("slots", [2, 3, 5, 9])
async def test_waves(slots: int) -> None:
    """A chunk that needs more experts than there are slots works in waves."""
    async with open_model("tiny-k3") as engine:
        record = engine.plan.record_bytes
    async with open_model("tiny-k3", **STREAMING | {"experts": slots * record}) as engine:
        cache = insides(engine).memory.experts
        assert cache.slots == slots
        assert_same_bits(await all_logits(engine, load_golden("tiny-k3").ids), await expected("tiny-k3"))
        counted = cache.statistics()
        # Twelve experts a layer: a layer's worth of them passed through the few slots.
        assert counted.misses > 6 * slots
        assert counted.peak_pinned <= slots


async def walk_beside(engine: Engine, texts: Sequence[list[int]], chunks: Sequence[int]) -> list[FloatArray]:
    async def one(ids: list[int], chunk: int) -> FloatArray:
        async with engine.session() as session:
            return await feed(engine, session, ids, chunk)

    return list(await asyncio.gather(*(one(ids, chunk) for ids, chunk in zip(texts, chunks, strict=True))))


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        *(("tiny-k3", chunks) for chunks in [(1, 1), (1, 1, 1, 1), (7, 1, 1), (64, 1, 3, 1), (5, 64, 2, 1)]),
        *((name, chunks) for name in MODELS[1:] for chunks in [(7, 1, 1), (5, 64, 2, 1)]),
    ],
    ids=str,
)
async def test_company(name: str, chunks: tuple[int, ...]) -> None:
    """Sessions of other lengths and at other places share the steps; each gets its own bits."""
    ids = load_golden(name).ids
    # Different texts, so that a row taken from a neighbour shows.
    texts = [ids[: 18 - 4 * number][:: -1 if number % 2 else 1] for number in range(len(chunks))]
    async with open_model(name, **STREAMING if len(chunks) % 2 else {}) as engine:
        alone = [await logits_in_chunks(engine, text, 64) for text in texts]
        before = engine.stats()
        together = await walk_beside(engine, texts, chunks)
        after = engine.stats()
        for found, wanted in zip(together, alone, strict=True):
            assert_same_bits(found, wanted)
        tasks = sum(-(-len(text) // chunk) for text, chunk in zip(texts, chunks, strict=True))
        assert after.tokens - before.tokens == sum(map(len, texts))
        # Sessions that come back at once go on together: hardly more steps than the longest has.
        assert after.steps - before.steps <= tasks * 0.75
        await assert_idle(engine)


async def test_generating_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole generations, sampler and all, share their steps; each yields what it would alone."""
    # However busy the machine is: nobody misses a step for being late.
    monkeypatch.setattr(waste.step_loop, "LINGER", 100.0)
    ids = load_golden("tiny-k3").ids
    prompts = [ids[:3], ids[5:30], ids[30:], [7]]
    async with open_model("tiny-k3") as engine:

        async def one(prompt: list[int]) -> list[tuple[int, float]]:
            return [(token.id, token.logprob) async for token in engine.generate(prompt, max_tokens=12)]

        alone = [await one(prompt) for prompt in prompts]
        before = engine.stats().steps
        together = await asyncio.gather(*map(one, prompts))
        steps = engine.stats().steps - before
    assert together == alone
    # One step brings at most one prompt of several tokens; from the third on all four walk together.
    assert steps <= 12 + 3


async def test_nobody_waits_long_for_a_slow_consumer() -> None:
    """A session that does not come back at once costs the others a moment, not its own time."""
    async with open_model("tiny-k3") as engine:
        slow = engine.generate([5])
        await anext(slow)
        async with asyncio.timeout(20):
            assert len([token async for token in engine.generate([7], max_tokens=5)]) == 5
        await slow.aclose()


async def test_a_session_goes_on_between_others() -> None:
    """The state survives other sessions' steps in the same memory."""
    ids = load_golden("tiny-k3").ids[:24]
    async with open_model("tiny-k3", **STREAMING) as engine, engine.session() as first, engine.session() as second:
        parts, others = [], []
        for at in range(0, 24, 8):
            parts.append(await feed(engine, first, ids[at : at + 8], 8 if at % 16 else 1))
            others.append(await feed(engine, second, ids[at : at + 8], 1 if at % 16 else 8))
    assert_same_bits(np.concatenate(parts), (await expected("tiny-k3"))[:24])
    assert_same_bits(np.concatenate(others), (await expected("tiny-k3"))[:24])


HASH = """
import asyncio, hashlib
from tests.engine.harness import all_logits, load_golden, open_model

async def main():
    async with open_model("tiny-k3") as engine:
        print(hashlib.sha256((await all_logits(engine, load_golden("tiny-k3").ids)).tobytes()).hexdigest())

asyncio.run(main())
"""
CPUS = {
    "generic": {"NUMBA_CPU_NAME": "generic"},
    "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
}


@pytest.fixture(scope="module", autouse=True)
def hashing() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Both started with the first test of the file: each may have to compile every kernel."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    started = {cpu: start_python("-c", HASH, **CPUS[cpu]) for cpu in CPUS if is_x86 or cpu != "haswell"}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("cpu", CPUS)
async def test_instruction_sets(cpu: str, hashing: dict[str, subprocess.Popen[str]]) -> None:
    if cpu not in hashing:
        pytest.skip(f"{cpu} code does not run on {platform.machine()}")
    found = output_of(hashing[cpu]).strip()
    assert found == hashlib.sha256((await expected("tiny-k3")).tobytes()).hexdigest()

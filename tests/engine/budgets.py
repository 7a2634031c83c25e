"""Models under a dozen budgets from the floor to everything resident, each with other settings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import waste
from tests.engine.harness import assert_idle, assert_same_bits, insides, logits_in_chunks
from waste.engine import Engine

BUDGETS = 12
CHOICES: dict[str, Sequence[object]] = {
    "trunk.tile": ["4KiB", "16KiB", "64KiB", "256KiB"],
    "cache.policy": ["lru", "lfru"],
    "io.backend": ["threads", "aiofiles", "mmap", "simulated"],
    "io.queue_depth": [1, 2, 8],
    "compute.threads": [1, 2],
    "prefill.chunk": [1, 7, 64],
}
REORDERING = "latency=200us,depth=3,reorder,seed=5"


def open_model(path: Path, *, ram: int = 1 << 30, **settings: object) -> Engine:
    """A model with a small context and two threads."""
    return waste.open(path, ram=ram, **{"context": 128, "compute.threads": 2, **settings})


async def limits(path: Path, **settings: object) -> tuple[int, int]:
    """The floor, and what holds everything."""
    async with open_model(path, **settings) as engine:
        return engine.plan.floor_bytes, engine.plan.total_bytes


def budgets(floor: int, top: int) -> list[int]:
    return [floor + (top - floor) * step // (BUDGETS - 1) for step in range(BUDGETS)]


def allocated_bytes(engine: Engine) -> int:
    """What the split of the budget really took."""
    memory = insides(engine).memory
    return memory.ring.allocated_bytes + memory.experts.allocated_bytes


async def assert_same_bits_at_every_budget(path: Path, ids: Sequence[int], *, seed: str) -> None:
    """Each budget with another sample of tile size, policy, backend, queue depth, threads and chunk."""
    sample = random.Random(seed)
    async with open_model(path, **{"compute.threads": 1}) as engine:
        expected = await logits_in_chunks(engine, ids, 64)
    splits = set()
    for step in range(BUDGETS):
        settings = {key: sample.choice(values) for key, values in CHOICES.items()}
        if settings["io.backend"] == "simulated":
            settings["io.faults"] = REORDERING
        floor, top = await limits(path, **settings)
        budget = budgets(floor, top)[step]
        async with open_model(path, **settings, ram=budget, sessions=1) as engine:
            plan = engine.plan
            assert plan.total_bytes <= budget
            assert allocated_bytes(engine) == plan.parts["pinned"] + plan.parts["ring"] + plan.parts["experts"]
            found = await logits_in_chunks(engine, ids, int(str(settings["prefill.chunk"])))
            assert insides(engine).memory.scratch.peak <= plan.parts["scratch"]
            await assert_idle(engine)
            splits.add(plan.split)
        assert_same_bits(found, expected)
    assert len(splits) >= BUDGETS // 2

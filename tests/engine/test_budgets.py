"""RAM as a dial: twelve budgets from the floor to everything resident, the same bits at each, and not a byte more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import waste.opening
from tests.engine.budgets import assert_same_bits_at_every_budget, budgets, limits, open_model
from tests.engine.harness import GOLDEN, insides, logits_in_chunks
from waste.engine import paging_complaint
from waste.errors import BudgetError
from waste.io.files import FileSet
from waste.machine import MemoryLimit
from waste.model.bundle import model_path

pytestmark = pytest.mark.usefixtures("leaves_nothing", "nothing_but_the_model")

MODELS: dict[str, Path] = {
    "tiny-k3": GOLDEN / "tiny-k3",
    "tiny-kimi-linear": GOLDEN / "tiny-kimi-linear",
    "demo": model_path("demo"),
}


def model_ids(name: str) -> list[int]:
    return np.random.default_rng(2).integers(0, 290, 20).tolist()


@pytest.mark.parametrize("name", MODELS)
async def test_twelve_budgets_give_the_same_bits(name: str) -> None:
    await assert_same_bits_at_every_budget(MODELS[name], model_ids(name), seed=name)


@pytest.mark.parametrize("name", MODELS)
async def test_one_byte_below_the_floor_is_refused(name: str) -> None:
    floor, _ = await limits(MODELS[name])
    async with open_model(MODELS[name], ram=floor):
        pass
    with pytest.raises(BudgetError, match="1 below the floor"):
        async with open_model(MODELS[name], ram=floor - 1):
            raise AssertionError("it opened")


@pytest.mark.parametrize("name", MODELS)
async def test_more_ram_never_reads_more(name: str) -> None:
    """With lru and nothing read ahead of what is certain."""
    settings: dict[str, object] = {"trunk.tile": "16KiB", "cache.policy": "lru", "prefetch.policy": "none"}
    floor, top = await limits(MODELS[name], **settings)
    read: list[int] = []
    for budget in budgets(floor, top):
        async with open_model(MODELS[name], **settings, ram=budget) as engine:
            tokens = [token.id async for token in engine.generate(model_ids(name)[:6], max_tokens=6)]
            assert len(tokens) == 6
            read.append(sum(engine.stats().bytes_read.values()))
    assert read == sorted(read, reverse=True)
    assert read[0] > 3 * read[-1]


async def test_scratch_is_what_the_plan_counted() -> None:
    """Not only enough: the largest step uses all of it."""
    for name, path in MODELS.items():
        async with open_model(path, sessions=1, **{"prefill.chunk": 64}) as engine:
            await logits_in_chunks(engine, (model_ids(name) * 4)[:64], 64)
            peak, planned = insides(engine).memory.scratch.peak, engine.plan.parts["scratch"]
            assert planned - FileSet.alignment <= peak <= planned


async def test_sessions_get_what_was_counted() -> None:
    async with open_model(MODELS["tiny-k3"], sessions=3) as engine:
        sessions = [engine.session() for _ in range(3)]
        states = [session.state for session in sessions]
        counted = engine.plan.parts["state"] + engine.plan.parts["latents"]
        arrays = ("recurrent", "latents", "past", "next_past", "owed", "next_owed")
        taken = sum(getattr(state, name).nbytes for state in states for name in arrays)
        assert taken == counted
        for session in sessions:
            session.close()


def test_paging_is_worth_a_word_with_a_budget_to_try() -> None:
    complaint = paging_complaint(12_345, 8 << 30, backend="threads")
    assert complaint is not None
    assert "12,345 major page faults" in complaint
    assert "8.0 GiB" in complaint
    assert "--ram 6144MiB" in complaint
    assert paging_complaint(10, 8 << 30, backend="threads") is None
    assert paging_complaint(12_345, 8 << 30, backend="mmap") is None


async def test_a_plan_beyond_the_machine_is_worth_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """But a ceiling that the model never comes near is not."""
    async with open_model(MODELS["tiny-k3"], ram=1 << 50):
        assert caplog.text == ""
    monkeypatch.setattr(waste.engine, "resident_limit", lambda: MemoryLimit(1 << 20, "this machine's RAM"))
    async with open_model(MODELS["tiny-k3"]) as engine:
        assert f"the plan takes {engine.plan.total_bytes / 2**30:.1f} GiB" in caplog.text
        assert "this machine's RAM is 0.0 GiB" in caplog.text


async def test_a_wish_that_was_cut_is_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, object] = {"trunk.tile": "16KiB"}
    floor, _ = await limits(MODELS["tiny-k3"], **settings)
    async with open_model(MODELS["tiny-k3"], ram=floor + 100_000, trunk="2GiB", **settings) as engine:
        got = engine.plan.parts["pinned"] + engine.plan.parts["ring"]
    assert f"--trunk is 2,147,483,648 bytes and gets {got:,}: the budget" in caplog.text


async def test_an_engine_that_was_paged_out_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_model(MODELS["tiny-k3"]):
        monkeypatch.setattr(waste.opening, "major_faults", lambda: 1 << 40)
    assert "major page faults" in caplog.text

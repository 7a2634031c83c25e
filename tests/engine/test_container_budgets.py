"""What holds for checkpoints holds for containers: the same bits under every budget, in company, once converted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.convert.conversions import convert
from tests.engine.budgets import assert_same_bits_at_every_budget, budgets, limits, open_model
from tests.engine.harness import GOLDEN, STREAMING, assert_same_bits, logits_in_chunks
from tests.engine.test_identity import walk_beside
from waste.errors import BudgetError

pytestmark = pytest.mark.usefixtures("leaves_nothing", "nothing_but_the_model")

STORED = ("nano-k3.waste", "nano-kl.waste")
CONVERTED = {"lossless": ("MXFP4", "BF16"), "small": ("VQ3R", "Q4G")}
CONTAINERS = (*STORED, *CONVERTED)
IDS: list[int] = np.random.default_rng(2).integers(0, 290, 6).tolist()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The containers by name; those that are no golden ones made of tiny-k3."""
    folder = tmp_path_factory.mktemp("converted")
    for name, (experts, trunk) in CONVERTED.items():
        convert(GOLDEN / "tiny-k3", folder / name, experts=experts, trunk=trunk, layers=None)
    return {name: GOLDEN / name for name in STORED} | {name: folder / name for name in CONVERTED}


async def test_a_lossless_conversion_keeps_every_bit(paths: dict[str, Path]) -> None:
    async with open_model(GOLDEN / "tiny-k3") as engine:
        expected = await logits_in_chunks(engine, IDS, 64)
    async with open_model(paths["lossless"], verify=True) as engine:
        assert_same_bits(await logits_in_chunks(engine, IDS, 64), expected)
    async with open_model(paths["small"], verify=True) as engine:
        small = await logits_in_chunks(engine, IDS, 64)
    # It is another model, but not any other: this one's weights are noise, and lose the more.
    assert 0 < np.linalg.norm(small - expected) < np.linalg.norm(expected)


@pytest.mark.parametrize("name", CONTAINERS)
async def test_twelve_budgets_give_the_same_bits(name: str, paths: dict[str, Path]) -> None:
    await assert_same_bits_at_every_budget(paths[name], IDS, seed=name)


@pytest.mark.parametrize("name", CONTAINERS)
async def test_one_byte_below_the_floor_is_refused(name: str, paths: dict[str, Path]) -> None:
    floor, _ = await limits(paths[name])
    async with open_model(paths[name], ram=floor) as engine:
        await logits_in_chunks(engine, IDS[:3], 2)
    with pytest.raises(BudgetError, match="1 below the floor"):
        async with open_model(paths[name], ram=floor - 1):
            raise AssertionError("it opened")


async def test_more_ram_never_reads_more(paths: dict[str, Path]) -> None:
    settings: dict[str, object] = {"trunk.tile": "16KiB", "cache.policy": "lru", "prefetch.policy": "none"}
    floor, top = await limits(paths["small"], **settings)
    read: list[int] = []
    for budget in budgets(floor, top)[::3]:
        async with open_model(paths["small"], **settings, ram=budget) as engine:
            await logits_in_chunks(engine, IDS[:3], 1)
            read.append(sum(engine.stats().bytes_read.values()))
    assert read == sorted(read, reverse=True)
    assert read[0] > 2 * read[-1]


@pytest.mark.parametrize("name", CONTAINERS)
async def test_company(name: str, paths: dict[str, Path]) -> None:
    """Sessions of other lengths share the steps; each gets the bits it would get alone."""
    texts = [IDS, IDS[::-1], IDS[2:6], IDS[5:3:-1]]
    async with open_model(paths[name], sessions=4, **STREAMING) as engine:
        alone = [await logits_in_chunks(engine, text, 64) for text in texts]
        for found, wanted in zip(await walk_beside(engine, texts, (5, 64, 2, 1)), alone, strict=True):
            assert_same_bits(found, wanted)

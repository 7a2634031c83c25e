"""A slice of the damages of `mutate_containers`: refused by name or answered right, none a crash or out of budget."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.convert.conversions import convert
from tests.engine.harness import GOLDEN, all_logits, open_model
from tests.engine.mutate_containers import KINDS, run_cases
from tests.io.containers import overwrite
from waste.errors import DamagedError

pytestmark = pytest.mark.usefixtures("leaves_nothing")

CASES = 60


async def test_damage_is_refused_or_makes_no_difference(tmp_path: Path) -> None:
    told: list[str] = []
    tally = await run_cases(tmp_path, range(CASES), 5, told.append)
    ends: Counter[str] = Counter()
    for (_, end), count in tally.items():
        ends[end] += count
    assert len(told) == ends.total() == CASES
    assert ends["refused"] > CASES // 2
    assert {kind for kind, end in tally if end == "refused"} == set(KINDS)
    assert tally["payload", "another model"] == tally["header", "another model"] == 0


async def test_codebooks_are_verified_on_request(tmp_path: Path) -> None:
    """Where the container has their checksums; another number is no damage that could be seen without."""
    folder = tmp_path / "small.waste"
    convert(GOLDEN / "tiny-k3", folder, experts="VQ3R", trunk="Q4G", layers=None)
    overwrite(folder / "codebooks.bin", 2 * 4112 + 16, b"\0\0")
    async with open_model(folder) as engine:
        assert np.isfinite(await all_logits(engine, [3, 4])).all()
    with pytest.raises(DamagedError, match=r"layer 1: codebooks\.bin at .*codebook 2 has the checksum"):
        async with open_model(folder, verify=True):
            pass

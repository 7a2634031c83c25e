"""Moving a placement instead of making it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from waste.io.extents import place
from waste.io.record_places import RecordPlaces
from waste.io.source import open_source

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/config.json")) + sorted(GOLDEN.glob("**/manifest.json")), ids=str
)
@pytest.mark.parametrize("align", [16, 512, 4096])
def test_every_record_is_placed_as_if_alone(path: Path, align: int) -> None:
    source = open_source(path.parent)
    places = RecordPlaces(source, align=align, max_gap=1024)
    for number, bank in source.banks.items():
        for index in range(bank.records):
            assert places(number, index) == place(source.record(number, index), align=align, max_gap=1024)
        with pytest.raises(IndexError):
            places(number, bank.records)

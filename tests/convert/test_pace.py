"""Rates and times in words."""

from __future__ import annotations

import pytest

from waste.convert.pace import Pace, duration

MIB = 1 << 20


def test_the_rate_counts_only_what_was_done_now() -> None:
    now, told = [0.0], []
    pace = Pace(lambda *what: told.append(what), 100 * MIB, clock=lambda: now[0])
    pace.skip(40 * MIB)
    pace.what = "trunk of layer 3"
    pace.advance(0)
    now[0] = 10.0
    pace.advance(20 * MIB)
    assert told == [
        ("trunk of layer 3, MiB", 40, 100),
        ("trunk of layer 3, 2 MiB/s, 20 s left, MiB", 60, 100),
    ]


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (89, "89 s"), (600, "10 min"), (5400, "1 h 30 min")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_another_kind_of_work_has_a_rate_of_its_own() -> None:
    now, told = [0.0], list[tuple[str, int, int]]()
    pace = Pace(lambda *what: told.append(what), 100 * MIB, clock=lambda: now[0])
    pace.begin("trunk of layer 1", "trunk")
    now[0] = 2.0
    pace.advance(40 * MIB)
    pace.begin("experts of layer 1", "experts")
    assert told[-1] == ("experts of layer 1, MiB", 40, 100)
    now[0] = 4.0
    pace.advance(20 * MIB)
    assert told[-1] == ("experts of layer 1, 10 MiB/s, 4 s left, MiB", 60, 100)
    pace.begin("experts of layer 2", "experts")
    assert told[-1][0] == "experts of layer 2, 10 MiB/s, 4 s left, MiB"

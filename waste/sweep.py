"""Every way to split a budget between trunk and expert cache, and what a token reads under each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from waste.blueprint import Blueprint, draw
from waste.forecast import Forecast, forecast
from waste.sched.ring import ring_bytes
from waste.settings import Settings

STEPS = 17


@dataclass(frozen=True, slots=True)
class Split:
    """What trunk (pinned tiles and ring) and experts get, in bytes, and what a token then costs."""

    trunk_bytes: int
    expert_bytes: int
    forecast: Forecast


def sweep(drawn: Blueprint, settings: Settings, *, steps: int = STEPS) -> list[Split]:
    """From as little trunk as can be to all of it, with the chunk and sessions of `drawn` and what they leave.

    Equal splits come once: towards the ends one of the two has all it can use.
    """
    parts, budget = drawn.plan.parts, drawn.plan.budget_bytes - drawn.idle_bytes
    room = parts["pinned"] + parts["ring"] + parts["experts"] + budget - drawn.plan.total_bytes
    least = ring_bytes(drawn.demand.tiles, pinned=0, slots=2)
    base = replace(settings, ram=budget, prefill_chunk=drawn.sizes.chunk, sessions=drawn.sizes.sessions)
    found: dict[tuple[int, int], Split] = {}
    for step in range(steps):
        trunk = least + max(0, room - least) * step // (steps - 1)
        wishes = replace(base, trunk=trunk, experts=max(0, room - trunk))
        split = draw(drawn.bundle, wishes, record_bytes=drawn.demand.record_bytes, is_elsewhere=True)
        got = split.plan.parts
        sizes = got["pinned"] + got["ring"], got["experts"]
        found.setdefault(sizes, Split(*sizes, forecast(split)))
    return list(found.values())

"""The split of a budget: parts add up, the floor is the floor, more RAM never gives less."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waste.errors import BudgetError
from waste.io.extents import Extent, Placement, place
from waste.sched.plan import Demand, Plan, floor_bytes, make_plan
from waste.sched.ring import pinned_bytes, ring_bytes

PAGE = 4096


def tile(pages: int, number: int = 0) -> Placement:
    return place([Extent(0, number << 30, pages * PAGE)], align=PAGE, max_gap=0)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    layers = draw(st.integers(0, 4))
    experts = draw(st.integers(2, 8))
    top_k = draw(st.integers(1, experts))
    return Demand(
        fixed={"interpreter": draw(st.integers(0, 99_999)), "state": draw(st.integers(0, 99_999))},
        tiles=[tile(pages, number) for number, pages in enumerate(sizes)],
        record_bytes=draw(st.integers(1, 5)) * PAGE if layers else 0,
        records=layers * experts,
        layer_records=top_k if layers else 0,
        token_records=layers * top_k,
    )


wishes = st.none() | st.integers(0, 80 * PAGE)


def planned(demand: Demand, extra: int, **wish: int | None) -> Plan:
    floor = floor_bytes(demand)
    return make_plan(demand, budget=floor + extra, floor=floor, **wish)


@given(demands(), st.integers(0, 120 * PAGE), wishes, wishes)
def test_parts_are_what_is_allocated_and_fit(
    demand: Demand, extra: int, trunk: int | None, experts: int | None
) -> None:
    plan = planned(demand, extra, trunk=trunk, experts=experts)
    assert plan.total_bytes <= plan.budget_bytes
    assert plan.parts["pinned"] == pinned_bytes(demand.tiles, pinned=plan.pinned_tiles)
    assert plan.parts["ring"] == ring_bytes(demand.tiles, pinned=plan.pinned_tiles, slots=plan.ring_slots)
    assert plan.parts["experts"] == plan.expert_slots * demand.record_bytes
    assert plan.expert_slots <= demand.records
    assert plan.expert_slots >= min(2, demand.records)
    unpinned = len(demand.tiles) - plan.pinned_tiles
    assert plan.ring_slots >= min(2, unpinned)


@given(demands())
def test_one_byte_below_the_floor_is_refused_with_the_shortfall(demand: Demand) -> None:
    floor = floor_bytes(demand)
    make_plan(demand, budget=floor, floor=floor)
    with pytest.raises(BudgetError, match=f"1 short of {floor:,}"):
        make_plan(demand, budget=floor - 1, floor=floor)


@settings(max_examples=50)
@given(demands(), st.lists(st.integers(0, 200 * PAGE), min_size=2, max_size=8))
def test_more_ram_never_pins_less_trunk(demand: Demand, extras: list[int]) -> None:
    pinned = [planned(demand, extra).pinned_tiles for extra in sorted(extras)]
    assert pinned == sorted(pinned)


@settings(max_examples=50)
@given(demands(), st.lists(st.integers(0, 200 * PAGE), min_size=2, max_size=8))
def test_more_ram_never_takes_from_either(demand: Demand, extras: list[int]) -> None:
    """Neither the next pinned tile from the experts nor more experts from the trunk: so nothing is read more often."""
    plans = [planned(demand, extra) for extra in sorted(extras)]
    assert [plan.expert_slots for plan in plans] == sorted(plan.expert_slots for plan in plans)


@given(demands())
def test_enough_ram_holds_everything_and_takes_no_more(demand: Demand) -> None:
    plan = planned(demand, 10_000 * PAGE)
    assert (plan.pinned_tiles, plan.ring_slots) == (len(demand.tiles), 0)
    assert plan.expert_slots == demand.records
    assert plan.total_bytes < plan.budget_bytes


def test_trunk_comes_before_more_experts_and_experts_in_whole_tokens() -> None:
    tiles = [tile(10, number) for number in range(4)]
    demand = Demand({}, tiles, record_bytes=PAGE, records=100, layer_records=4, token_records=12)
    room = lambda pages: make_plan(demand, budget=pages * PAGE, floor=0)  # noqa: E731
    assert room(34).expert_slots == 4  # a layer's, beside a ring of three
    assert room(44).pinned_tiles == 4  # as soon as the whole trunk fits it has it
    assert room(44).expert_slots == 4
    assert room(40 + 30).expert_slots == 24  # two tokens of the thirty that would fit
    assert room(40 + 11).expert_slots == 11  # less than one token's: as many as fit


def test_wishes_are_met_within_the_budget() -> None:
    tiles = [tile(10, number) for number in range(4)]
    demand = Demand({}, tiles, record_bytes=PAGE, records=100, layer_records=4, token_records=12)
    wish = make_plan(demand, budget=100 * PAGE, floor=0, trunk=25 * PAGE, experts=7 * PAGE)
    assert wish.expert_slots == 7
    assert wish.parts["pinned"] + wish.parts["ring"] <= 40 * PAGE
    greedy = make_plan(demand, budget=30 * PAGE, floor=0, experts=1000 * PAGE)
    assert greedy.expert_slots == 10
    assert greedy.total_bytes <= 30 * PAGE

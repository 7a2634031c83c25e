"""The eviction policies: the contract, what sets each apart, and hit rates on recorded routing."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import pytest

from waste.sched import policies
from waste.sched.policies.base import EvictionPolicy
from waste.sched.policies.contract import EvictionPolicyContract
from waste.sched.policies.lfru import GHOSTS_PER_SLOT, LfruPolicy

TRACES = os.environ.get("WASTE_TRACES")


class TestLru(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return policies.create("lru")


class TestLfru(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return policies.create("lfru")


def hits(policy: EvictionPolicy, requests: Iterable[Hashable], slots: int) -> list[bool]:
    """Replay requests one at a time through `slots` slots; whether each found its key there."""
    held: set[Hashable] = set()
    found = []
    for key in requests:
        policy.touch(key)
        found.append(key in held)
        if key in held:
            continue
        if len(held) == slots:
            victim = policy.victim(held.__contains__)
            held.remove(victim)
            policy.remove(victim)
        held.add(key)
        policy.insert(key)
    return found


def walks(*tokens: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Requests of tokens, each a list of ids for every layer."""
    return [(layer, index) for token in tokens for layer, ids in enumerate(token) for index in ids]


def test_a_walk_one_larger_than_the_slots_hits_nothing_with_lru_and_most_with_lfru() -> None:
    requests = walks(*[[[0, 1], [0, 1], [0, 1]]] * 20)
    assert not any(hits(policies.create("lru"), requests, 5))
    assert sum(hits(policies.create("lfru"), requests, 5)) >= 4 * 19


def test_a_key_that_missed_its_turn_goes_before_one_whose_turn_is_to_come() -> None:
    policy = policies.create("lfru")
    first, second = (0, "first"), (1, "second")
    for key in (first, second, (0, "other"), (1, "next")):
        policy.touch(key)
        policy.insert(key)
        if key == (0, "other"):
            assert policy.victim(lambda key: key in {first, second}) == second
    # Layer 0 has been asked again without `first`: it has aged, `second` ages only when layer 1 is done.
    assert policy.victim(lambda key: True) == first


def test_what_is_often_asked_for_survives_a_scan() -> None:
    often = [(0, 0), (1, 0)] * 10
    scan = [(index % 2, 100 + index) for index in range(40)]
    assert hits(policies.create("lfru"), [*often, *scan[:4], *often[:2]], 4)[-2:] == [True, True]
    assert hits(policies.create("lru"), [*often, *scan[:4], *often[:2]], 4)[-2:] == [False, False]
    assert not any(hits(policies.create("lfru"), [*often, *scan, *often[:2]], 4)[-2:]), "and is forgotten in the end"


def test_a_score_outlives_eviction() -> None:
    policy = policies.create("lfru")
    hits(policy, [(0, 0), (1, 0)] * 10, 4)
    policy.remove((0, 0))
    for key in ((0, 0), (0, 1), (1, 1), (1, 2)):
        policy.touch(key)
        policy.insert(key)
    assert policy.victim(lambda key: key in {(0, 0), (0, 1)}) == (0, 1)


def test_what_is_remembered_is_bounded_by_the_slots() -> None:
    policy = LfruPolicy()
    slots = 8
    hits(policy, ((step % 3, step) for step in range(5000)), slots)
    most = (slots + 1) * (GHOSTS_PER_SLOT + 1)
    assert len(policy._keys) <= most
    assert sum(len(group.heap) for group in policy._groups.values()) <= 5 * (slots + 3)
    hits(policy, ((step % 3, step % 2) for step in range(5000)), slots)
    assert len(policy._worst) <= 5 * (3 + 1), "hits without a victim leave entries to sweep"


def test_an_idle_hit_costs_no_growth_of_a_heap() -> None:
    policy = LfruPolicy()
    hits(policy, [(step % 2, step % 6) for step in range(6000)], 8)
    assert sum(len(group.heap) for group in policy._groups.values()) <= 5 * (8 + 2)


# Hit rate in percent by slots: recency, and a count that halves every 8 tokens (both known from elsewhere).
KNOWN = {
    "kimi-linear-300.jsonl": {201: (0.0, 31.2), 402: (41.4, 43.6), 805: (57.1, 58.2), 1610: (72.1, 72.7)},
    "olmoe-299.jsonl": {64: (0.0, 25.1), 128: (31.9, 38.4), 256: (56.5, 56.9), 512: (78.4, 81.1)},
    "kimi-k3-12.jsonl": {1472: (20.8, 19.6), 1823: (31.5, 25.0), 3647: (39.0, 38.6), 7294: (42.6, 42.5)},
}


@pytest.mark.skipif(TRACES is None, reason="WASTE_TRACES is not set to a folder of recorded routing")
@pytest.mark.parametrize("name", KNOWN)
def test_hit_rates_on_recorded_routing(name: str) -> None:
    lines = (Path(TRACES or "") / name).read_text().splitlines()
    requests = walks(*([sorted(ids) for ids in json.loads(line)["layers"]] for line in lines))
    for slots, (lru, decayed_frequency) in KNOWN[name].items():
        rates = {}
        for policy in ("lru", "lfru"):
            found = hits(policies.create(policy), requests, slots)
            rates[policy] = 100 * sum(found) / len(found)
        print(name, slots, rates)
        assert rates["lru"] == pytest.approx(lru, abs=0.06), "the replay differs from the one known"
        assert rates["lfru"] >= max(lru - 0.5, decayed_frequency - 2)

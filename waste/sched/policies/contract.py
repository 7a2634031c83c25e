"""What every eviction policy must hold to, as tests: subclass `EvictionPolicyContract` and give `make`.

Needs pytest; nothing else in the package imports this module.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from functools import partial
from operator import eq

from waste.sched.policies.base import EvictionPolicy

Log = list[Hashable]


class EvictionPolicyContract:
    """Subclass as `class TestMine(EvictionPolicyContract)` and override `make`."""

    def make(self) -> EvictionPolicy:
        """A new policy."""
        raise NotImplementedError

    def test_the_only_evictable_key_is_found(self) -> None:
        policy = self.make()
        keys = [(group, index) for group in range(3) for index in range(4)]
        _fetch(policy, keys)
        for key in keys:
            assert policy.victim(partial(eq, key)) == key

    def test_nothing_evictable_is_none(self) -> None:
        policy = self.make()
        assert policy.victim(lambda key: True) is None
        _fetch(policy, ["a", "b"])
        assert policy.victim(lambda key: False) is None

    def test_asking_for_a_victim_changes_nothing(self) -> None:
        policy = self.make()
        _fetch(policy, [(0, 0), (0, 1), (1, 0)])
        first = policy.victim(lambda key: True)
        assert policy.victim(lambda key: key != first) is not None
        assert policy.victim(lambda key: False) is None
        assert policy.victim(lambda key: True) == first

    def test_a_removed_key_is_no_victim_and_may_come_back(self) -> None:
        policy = self.make()
        _fetch(policy, ["a", "b"])
        policy.remove("a")
        assert policy.victim(lambda key: True) == "b"
        policy.insert("a")
        policy.remove("b")
        assert policy.victim(lambda key: True) == "a"

    def test_a_key_waited_for_may_go_without_a_slot(self) -> None:
        policy = self.make()
        policy.touch("a")
        _fetch(policy, ["b"])
        policy.remove("a")
        assert policy.victim(lambda key: True) == "b"

    def test_a_key_gets_its_slot_long_after_it_was_asked_for(self) -> None:
        policy = self.make()
        policy.touch((0, "late"))
        _fetch(policy, [(1, "a")])
        policy.insert((0, "late"))
        assert policy.victim(lambda key: key == (0, "late")) == (0, "late")

    def test_lookahead_outlives_what_was_not_asked_for_since(self) -> None:
        """What is fetched ahead is about to be used: it must not go before older keys do."""
        policy = self.make()
        for index in range(4):
            _fetch(policy, [(0, index), (1, index)])
        policy.insert((1, "ahead"))
        for _ in range(7):  # the eighth was asked for just now
            victim = policy.victim(lambda key: True)
            assert victim not in {(1, "ahead"), None}
            policy.remove(victim)

    def test_the_order_of_insertion_is_of_no_account(self) -> None:
        assert _replay(self.make(), seed=1, shuffle=None) == _replay(self.make(), seed=1, shuffle=2)

    def test_the_same_walk_evicts_the_same_keys(self) -> None:
        for seed in range(5):
            log = _replay(self.make(), seed=seed, shuffle=None)
            assert log == _replay(self.make(), seed=seed, shuffle=None)
            assert len(log) > 100


def _fetch(policy: EvictionPolicy, keys: Sequence[Hashable]) -> None:
    for key in keys:
        policy.touch(key)
    for key in keys:
        policy.insert(key)


def _replay(policy: EvictionPolicy, *, seed: int, shuffle: int | None) -> Log:
    """Random walks over 4 groups through a full cache; the keys evicted. shuffle: seed of the order of arrival."""
    choice, arrival = random.Random(seed), random.Random(shuffle)
    held: set[Hashable] = set()
    log: Log = []
    for step in range(200):
        lease = [(step % 4, int(choice.paretovariate(0.7)) % 16) for _ in range(3)]
        lease = list(dict.fromkeys(lease))
        for key in lease:
            policy.touch(key)
        missing = [key for key in lease if key not in held]
        while len(held) + len(missing) > 20:
            victim = policy.victim(held.difference(lease).__contains__)
            assert victim in held
            assert victim not in lease
            policy.remove(victim)
            held.remove(victim)
            log.append(victim)
        if shuffle is not None:
            arrival.shuffle(missing)
        for key in missing:
            policy.insert(key)
            held.add(key)
    return log

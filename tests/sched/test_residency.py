"""The cache's decisions without a disk: any order of leases, returns, failures, releases and lookahead."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from tests.sched.fakes import piece
from waste.errors import BudgetError, ReadError
from waste.io.extents import Placement
from waste.sched.claim import Claim, Record
from waste.sched.policies.lru import LruPolicy
from waste.sched.priority import Priority
from waste.sched.residency import Actions, Residency


def where(key: Hashable) -> Placement:
    """Keys lie on disk in descending order, so that the order of reading differs from that of asking."""
    assert isinstance(key, int)
    return piece((100 - key) * 16, 16)


class WatchedLru(LruPolicy):
    """Holds the cache to its side of the protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[Hashable] = set()

    def touch(self, key: Hashable) -> None:
        self.known.add(key)
        super().touch(key)

    def insert(self, key: Hashable) -> None:
        self.known.add(key)
        super().insert(key)

    def remove(self, key: Hashable) -> None:
        self.known.remove(key)
        super().remove(key)


class Bench:
    """Carries out actions on paper: `queued` and `reading` are records, oldest first."""

    def __init__(self, slots: int) -> None:
        self.policy = WatchedLru()
        self.residency = Residency(slots, self.policy, where)
        self.queued: list[Record] = []
        self.reading: list[Record] = []
        self.order: list[Hashable] = []  # keys in the order reads were submitted

    def do(self, actions: Actions | None) -> Actions:
        actions = actions or Actions()
        for record in actions.drops:
            self.queued.remove(record)
        for record in actions.reads:
            assert record not in self.queued
            assert record not in self.reading
            self.queued.append(record)
            self.order.append(record.key)
        self.residency.check_integrity()
        assert self.policy.known == self.residency._records.keys() | self.residency._wanted.keys()
        return actions

    def claim(self, *keys: int, priority: Priority = Priority.DEMAND) -> Claim:
        claim, actions = self.residency.claim(keys, priority)
        self.do(actions)
        return claim

    def issue(self) -> None:
        for record in self.queued:
            self.residency.issued(record)
        self.reading += self.queued
        self.queued.clear()

    def finish(self, record: Record, *, fail: bool = False) -> Actions:
        self.reading.remove(record)
        return self.do(self.residency.finished(record, ReadError("no") if fail else None))

    def settle(self) -> None:
        while self.queued or self.reading:
            self.issue()
            self.finish(self.reading[0])

    def hand_out(self, claim: Claim) -> list[Hashable]:
        return [record.key for record in self.residency.hand_out(claim)]

    def visit(self, *keys: int) -> None:
        """One lease from begin to end."""
        claim = self.claim(*keys)
        while claim.is_pending:
            self.settle()
            for key in self.hand_out(claim):
                self.do(self.residency.release(claim, key))
        self.do(self.residency.abandon(claim))

    def resident(self) -> set[Hashable]:
        """Found by asking without consequences: what a lookahead would have to read is not there."""
        return {key for key in range(100) if self.residency._is_evictable(key)}


def test_misses_start_together_sorted_by_place_and_hits_come_first() -> None:
    bench = Bench(8)
    bench.visit(4, 2)
    bench.order.clear()
    claim = bench.claim(1, 2, 3, 4, 5)
    assert bench.order == [5, 3, 1]
    assert bench.hand_out(claim) == [2, 4]
    bench.issue()
    bench.finish(bench.reading[1])
    assert bench.hand_out(claim) == [3]
    bench.settle()
    assert bench.hand_out(claim) == [5, 1]
    assert not claim.is_pending
    statistics = bench.residency.statistics()
    assert (statistics.hits, statistics.joined, statistics.misses) == (2, 0, 5)


def test_waves_when_a_lease_needs_more_than_the_slots() -> None:
    bench = Bench(2)
    claim = bench.claim(1, 2, 3, 4, 5)
    seen: list[Hashable] = []
    while claim.is_pending:
        bench.residency.block(claim)
        bench.settle()
        bench.residency.unblock(claim)
        for key in bench.hand_out(claim):
            seen.append(key)
            bench.do(bench.residency.release(claim, key))
    assert seen == [5, 4, 3, 2, 1]


def test_waiting_with_every_slot_in_ones_own_hands_is_an_error() -> None:
    bench = Bench(2)
    claim = bench.claim(1, 2, 3)
    bench.settle()
    held = bench.hand_out(claim)
    with pytest.raises(BudgetError, match="all 2 slots"):
        bench.residency.block(claim)
    assert not claim.is_waiting
    bench.do(bench.residency.release(claim, held[0]))
    bench.residency.block(claim)  # a read is queued: it will come


def test_two_leases_may_wait_only_while_one_of_them_can_go_on() -> None:
    bench = Bench(2)
    first, second = bench.claim(1, 3), bench.claim(2, 4)
    bench.settle()
    one, _ = bench.hand_out(first)
    bench.do(bench.residency.release(first, one))
    bench.settle()
    assert bench.hand_out(second) == [4]
    third = bench.claim(5)
    bench.residency.block(second)  # `first` holds 1 and may release it
    bench.residency.block(third)  # holds nothing
    more = bench.claim(1, 6)
    assert bench.hand_out(more) == [1]
    with pytest.raises(BudgetError):
        bench.residency.block(more)  # `first` will let go of 1, but `more` would not
    assert not more.is_blocked
    bench.do(bench.residency.abandon(more))
    bench.do(bench.residency.release(first, 1))
    bench.settle()
    assert bench.hand_out(second) == [2]


def test_a_record_wanted_by_several_leases_is_read_once() -> None:
    bench = Bench(1)
    first, second, third = bench.claim(1), bench.claim(2, 3), bench.claim(3, 2)
    bench.settle()
    bench.do(bench.residency.release(first, bench.hand_out(first)[0]))
    for expected in (3, 2):
        bench.settle()
        for claim in (second, third):
            assert bench.hand_out(claim) == [expected]
            bench.do(bench.residency.release(claim, expected))
    assert bench.order == [1, 3, 2]


def test_urgent_leases_get_slots_first() -> None:
    bench = Bench(1)
    holder = bench.claim(1)
    bench.claim(2, priority=Priority.BACKGROUND)
    bench.claim(3, priority=Priority.DEMAND)
    bench.settle()
    bench.do(bench.residency.release(holder, bench.hand_out(holder)[0]))
    assert bench.order == [1, 3]


def test_a_failed_read_frees_its_slot_breaks_the_lease_and_can_be_retried() -> None:
    bench = Bench(2)
    claim = bench.claim(1, 2, 3)
    bench.issue()
    actions = bench.finish(bench.reading[0], fail=True)
    assert actions.wake == [claim]
    assert isinstance(claim.error, ReadError)
    assert bench.order == [3, 2]  # a broken lease starts no more reads
    bench.do(bench.residency.abandon(claim))
    bench.settle()
    assert bench.residency.statistics().free == 1
    retry = bench.claim(1, 2, 3)
    assert bench.hand_out(retry) == [2]
    assert retry.error is None


def test_abandoning_drops_the_queued_and_lets_the_reading_return() -> None:
    bench = Bench(3)
    claim = bench.claim(1, 2, 3, 4)
    bench.residency.issued(bench.queued[0])
    bench.reading.append(bench.queued.pop(0))
    actions = bench.do(bench.residency.abandon(claim))
    assert len(actions.drops) == 2
    assert bench.residency.statistics().reading == 1
    assert bench.do(bench.residency.abandon(claim)).drops == []
    bench.settle()
    assert bench.resident() == {4}


def test_a_lease_that_names_a_key_twice_or_badly_leaves_no_trace() -> None:
    bench = Bench(2)
    with pytest.raises(ValueError, match="twice"):
        bench.residency.claim([1, 2, 1], Priority.DEMAND)
    with pytest.raises(AssertionError):
        bench.residency.claim([1, "not a key of ours"], Priority.DEMAND)
    bench.do(Actions())
    assert bench.residency.statistics().misses == 0


def test_demand_promotes_queued_lookahead_and_joins_what_flies() -> None:
    bench = Bench(4)
    bench.do(bench.residency.prefetch([1, 2]))
    bench.residency.issued(bench.queued[0])
    bench.reading.append(bench.queued.pop(0))
    claim, actions = bench.residency.claim([1, 2], Priority.DEMAND)
    assert [record.key for record in bench.do(actions).promotions] == [2]
    assert actions.reads == []
    bench.settle()
    assert bench.hand_out(claim) == [1, 2]
    statistics = bench.residency.statistics()
    assert (statistics.lookahead_issued, statistics.lookahead_used, statistics.joined) == (1, 1, 2)


def test_lookahead_that_landed_counts_as_used_once_it_is_asked_for() -> None:
    bench = Bench(4)
    bench.do(bench.residency.prefetch([1, 2, 1]))
    bench.settle()
    bench.visit(1)
    bench.visit(1)
    statistics = bench.residency.statistics()
    assert (statistics.lookahead_issued, statistics.lookahead_used, statistics.hits) == (2, 1, 2)


def test_lookahead_takes_no_slot_from_who_needs_it() -> None:
    bench = Bench(2)
    bench.do(bench.residency.prefetch([1, 2, 3]))
    assert bench.order == [1, 2]
    claim = bench.claim(7)  # the newest guess gives way
    assert sorted(record.key for record in bench.queued) == [1, 7]
    bench.claim(8, 9)
    bench.do(bench.residency.prefetch([4]))
    assert 4 not in bench.order
    bench.do(bench.residency.abandon(claim))


def test_stale_lookahead_is_dropped_before_it_is_issued() -> None:
    bench = Bench(4)
    bench.do(bench.residency.prefetch([1, 2, 3]))
    bench.residency.issued(bench.queued[0])
    bench.reading.append(bench.queued.pop(0))
    bench.claim(2)
    bench.do(bench.residency.drop_lookahead())
    assert [record.key for record in bench.queued] == [2]
    bench.settle()
    assert bench.residency.statistics().free == 2


@given(
    leases=st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6), max_size=12),
    orders=st.lists(st.randoms(use_true_random=False), min_size=2, max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_what_lru_evicts_does_not_depend_on_the_order_of_arrival(
    leases: list[list[int]], orders: list[random.Random]
) -> None:
    def misses(shuffle: random.Random) -> list[set[Hashable]]:
        bench = Bench(6)
        found = []
        for keys in leases:
            bench.order.clear()
            claim = bench.claim(*keys)
            found.append(set(bench.order))
            bench.issue()
            while bench.reading:
                bench.finish(shuffle.choice(bench.reading))
            handed = bench.hand_out(claim)
            shuffle.shuffle(handed)
            for key in handed:
                bench.do(bench.residency.release(claim, key))
            bench.do(bench.residency.abandon(claim))
        return found

    assert misses(orders[0]) == misses(orders[1])


@given(leases=st.lists(st.lists(st.integers(0, 15), unique=True, min_size=1, max_size=4), max_size=25))
@settings(max_examples=60, deadline=None)
def test_more_slots_never_mean_more_reads(leases: list[list[int]]) -> None:
    reads = []
    for slots in range(4, 17):
        bench = Bench(slots)
        for keys in leases:
            bench.visit(*keys)
        reads.append(len(bench.order))
    assert reads == sorted(reads, reverse=True)


class CacheMachine(RuleBasedStateMachine):
    """Several leases of overlapping keys over few slots. Nothing is lost, whatever happens."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(3)
        self.given_out: dict[Claim, list[Hashable]] = {}
        self.held: dict[Claim, list[Hashable]] = {}
        self.closed: set[Claim] = set()

    @rule(
        target=claims,
        keys=st.lists(st.integers(0, 8), unique=True, max_size=6),
        priority=st.sampled_from([Priority.DEMAND, Priority.BACKGROUND]),
    )
    def claim(self, keys: Sequence[int], priority: Priority) -> Claim:
        claim = self.bench.claim(*keys, priority=priority)
        self.given_out[claim], self.held[claim] = [], []
        return claim

    @rule(keys=st.lists(st.integers(0, 8), max_size=4))
    def prefetch(self, keys: Sequence[int]) -> None:
        self.bench.do(self.bench.residency.prefetch(keys))

    @rule()
    def drop_lookahead(self) -> None:
        self.bench.do(self.bench.residency.drop_lookahead())

    @precondition(lambda self: self.bench.queued)
    @rule(data=st.data())
    def issue(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.bench.queued))
        self.bench.queued.remove(record)
        self.bench.residency.issued(record)
        self.bench.reading.append(record)

    @precondition(lambda self: self.bench.reading)
    @rule(data=st.data(), fail=st.sampled_from([False, False, True]))
    def finish(self, data: st.DataObject, fail: bool) -> None:
        self.bench.finish(data.draw(st.sampled_from(self.bench.reading)), fail=fail)

    @rule(claim=claims)
    def hand_out(self, claim: Claim) -> None:
        for key in self.bench.hand_out(claim):
            assert claim not in self.closed
            assert key in claim.keys
            assert key not in self.given_out[claim]
            self.given_out[claim].append(key)
            self.held[claim].append(key)

    @rule(claim=claims, data=st.data())
    def release(self, claim: Claim, data: st.DataObject) -> None:
        if self.held[claim]:
            key = data.draw(st.sampled_from(self.held[claim]))
            self.held[claim].remove(key)
            self.bench.do(self.bench.residency.release(claim, key))
        with pytest.raises(KeyError):
            self.bench.residency.release(claim, "never asked for")

    @rule(claim=claims)
    def abandon(self, claim: Claim) -> None:
        self.bench.do(self.bench.residency.abandon(claim))
        self.closed.add(claim)
        self.held[claim].clear()

    @invariant()
    def laws_hold(self) -> None:
        self.bench.residency.check_integrity()
        counted = self.bench.residency.statistics()
        assert (counted.queued, counted.reading) == (len(self.bench.queued), len(self.bench.reading))
        total = counted.free + counted.queued + counted.reading + counted.resident + counted.pinned
        assert total == counted.slots

    def teardown(self) -> None:
        open_claims = [claim for claim in self.given_out if claim not in self.closed]
        for _ in range(100):
            self.bench.settle()
            for claim in open_claims:
                self.hand_out(claim)
                for key in self.held[claim]:
                    self.bench.do(self.bench.residency.release(claim, key))
                self.held[claim].clear()
        for claim in open_claims:
            assert claim.error is not None or sorted(map(str, self.given_out[claim])) == sorted(map(str, claim.keys))
        self.bench.residency.check_integrity()
        counted = self.bench.residency.statistics()
        assert counted.free + counted.resident == counted.slots


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase

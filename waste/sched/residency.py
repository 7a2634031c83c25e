"""Which key gets which slot of the cache, and when: every decision of `ExpertCache`, pure and synchronous.

Each method changes the books at once and returns `Actions`, the reads that are left to do. Whoever carries them
out reports back with `issued` and `finished`. Nothing here knows buffers, clocks or event loops, so that a
simulator can drive it as well.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from waste.errors import BudgetError, WasteError
from waste.io.extents import Placement
from waste.sched.claim import Claim, Record
from waste.sched.policies.base import EvictionPolicy
from waste.sched.priority import Priority
from waste.sched.slots import FREE, PINNED, QUEUED, READING, RESIDENT, SlotTable


class Actions:
    """What to do now, in this order.

    drops: take the queued reads of these slots back; it cannot fail, none is issued. A slot may come again
    under `reads`, for another key. promotions: make these as urgent as `record.priority`. reads: submit
    `record.placement` for `record.key`. wake: these claims have something new, or failed.
    """

    __slots__ = ("drops", "promotions", "reads", "wake")

    def __init__(self) -> None:
        self.drops: list[Record] = []
        self.promotions: list[Record] = []
        self.reads: list[Record] = []
        self.wake: list[Claim] = []


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Slots by state, and counts of keys since the start.

    Each key of a lease is a hit (its bytes were there), joined (a read for it was under way) or a miss.
    lookahead_issued: reads that went to the device ahead of any lease; lookahead_used: how many of those a lease
    asked for before they were evicted. lookahead_bytes, lookahead_used_bytes: of the same, as they lie in memory.
    """

    slots: int
    free: int
    queued: int
    reading: int
    resident: int
    pinned: int
    peak_reading: int
    peak_pinned: int
    hits: int
    joined: int
    misses: int
    evictions: int
    lookahead_issued: int
    lookahead_used: int
    lookahead_bytes: int
    lookahead_used_bytes: int


class Residency:
    """The books of a cache of `slots` slots. `place` says where a key's bytes lie and may raise for a bad key.

    A slot for a demanded key is a free one, else the policy's victim among the RESIDENT, else a lookahead read
    that nobody asked for and that is still queued. Claims short of slots get them by priority, then first come
    first served.
    """

    def __init__(self, slots: int, policy: EvictionPolicy, place: Callable[[Hashable], Placement]) -> None:
        if slots < 1:
            raise ValueError(f"a cache needs at least one slot, got {slots}")
        self._table = SlotTable([Record(index) for index in range(slots)])
        self._policy = policy
        self._place = place
        self._free = [self._table[index] for index in reversed(range(slots))]
        self._records: dict[Hashable, Record] = {}
        self._wanted: dict[Hashable, list[Claim]] = {}
        self._short: list[Claim] = []  # by priority, then in order of arrival
        self._claims: dict[Claim, None] = {}
        self._unasked: OrderedDict[Record, None] = OrderedDict()
        self._hits = self._joined = self._misses = self._evictions = 0
        self._lookahead_issued = self._lookahead_used = 0
        self._lookahead_bytes = self._lookahead_used_bytes = 0

    def claim(self, keys: Sequence[Hashable], priority: Priority) -> tuple[Claim, Actions]:
        """Pin what is there, join what comes, and start as many of the rest as slots allow, sorted on disk.

        Raises ValueError for a key named twice, and whatever `place` raises; then nothing has changed.
        """
        if len(set(keys)) != len(keys):
            raise ValueError("a lease names a key twice")
        records = [self._records.get(key) for key in keys]
        missing = [(self._place(key), key) for key, record in zip(keys, records, strict=True) if record is None]
        claim, actions = Claim(tuple(keys), priority), Actions()
        self._claims[claim] = None
        for key, record in zip(keys, records, strict=True):
            self._policy.touch(key)
            if record is not None:
                self._join(claim, record, actions)
        if missing:
            self._miss(claim, missing, actions)
        return claim, actions

    def hand_out(self, claim: Claim) -> list[Record]:
        """The records that became ready since the last time: hits in the lease's order, then as they came."""
        ready, claim.ready = claim.ready, []
        claim.out.update((record.key, record) for record in ready)
        return ready

    def block(self, claim: Claim) -> None:
        """The owner of `claim` is about to wait for a record.

        Raises BudgetError if that could last for ever: every slot is pinned by a record handed out to a claim
        whose owner waits too (or to this one). Anything else frees a slot sooner or later: a read in flight
        returns, and an owner that does not wait releases what it holds or waits, and is judged then.
        """
        claim.is_waiting = True
        if self._table.count(PINNED) < len(self._table):
            return
        held = {record.index for c in self._claims if c.is_blocked for record in c.out.values()}
        if len(held) == len(self._table):
            claim.is_waiting = False
            raise BudgetError(
                f"all {len(held)} slots of the expert cache hold records in use while more are waited for; "
                "release records before waiting for the next, or give the cache more slots"
            )

    def unblock(self, claim: Claim) -> None:
        """The owner waits no more."""
        claim.is_waiting = False

    def release(self, claim: Claim, key: Hashable) -> Actions | None:
        """The owner is done with a record; None if nobody was short of its slot, which is the rule.

        Raises KeyError if it does not hold the key.
        """
        record = claim.out.pop(key)
        claim.released += 1
        if not self._table.unpin(record) or not self._short:
            return None
        actions = Actions()
        self._fill(actions)
        return actions

    def abandon(self, claim: Claim) -> Actions:
        """End a claim, whole or not: unpin all it holds, forget what was not issued. Safe to call twice."""
        actions = Actions()
        if claim not in self._claims:
            return actions
        del self._claims[claim]
        for record in (*claim.ready, *claim.out.values()):
            self._table.unpin(record)
        claim.ready.clear()
        claim.out.clear()
        for record in claim.coming.values():
            record.claims.remove(claim)
            if not record.claims and record.state is QUEUED:
                self._vacate(record)
                actions.drops.append(record)
        claim.coming.clear()
        self._forget_misses(claim)
        self._fill(actions)
        return actions

    def missing(self, keys: Iterable[Hashable]) -> list[Hashable]:
        """Those of the keys that have no slot, in the given order."""
        return [key for key in keys if key not in self._records]

    def prefetch(self, keys: Iterable[Hashable]) -> Actions:
        """Start lookahead reads for those keys that have no slot, in the given order, as slots allow.

        Slots come free or by eviction, never from other lookahead; while a claim is short there are none.
        Raises whatever `place` raises; then nothing has changed.
        """
        actions = Actions()
        placed = [(key, self._place(key)) for key in keys]
        for key, placement in placed:
            if key in self._records:
                continue
            record = self._room(actions, for_lookahead=True)
            if record is None:
                break
            record.is_lookahead = True
            self._unasked[record] = None
            self._assign(record, key, placement, Priority.LOOKAHEAD, actions)
        return actions

    @property
    def has_unasked(self) -> bool:
        """Whether there is lookahead that `drop_lookahead` would take back."""
        return bool(self._unasked)

    def drop_lookahead(self) -> Actions:
        """Take back every lookahead read that is not issued and that no claim asked for."""
        actions = Actions()
        for record in list(self._unasked):
            self._vacate(record)
            actions.drops.append(record)
        return actions

    def issued(self, record: Record) -> None:
        """The device was asked for the slot's read."""
        self._table.move(record, READING)
        self._unasked.pop(record, None)
        if record.is_lookahead:
            assert record.placement is not None
            self._lookahead_issued += 1
            self._lookahead_bytes += record.placement.buffer_bytes

    def finished(self, record: Record, error: WasteError | None) -> Actions:
        """The slot's read has returned, or failed: then its claims fail with `error` and the slot is free."""
        claims, record.claims = record.claims, []
        actions = Actions()
        actions.wake = claims
        key = record.key
        if error is None:
            self._table.move(record, RESIDENT)
        else:
            self._vacate(record)
        for claim in claims:
            del claim.coming[key]
            if error is None:
                self._table.pin(record)
                claim.ready.append(record)
            else:
                claim.error = claim.error or error
                self._forget_misses(claim)
        if self._short:
            self._fill(actions)
        return actions

    def statistics(self) -> CacheStatistics:
        """See `CacheStatistics`."""
        count, peak = self._table.count, self._table.peak
        return CacheStatistics(
            slots=len(self._table),
            free=count(FREE),
            queued=count(QUEUED),
            reading=count(READING),
            resident=count(RESIDENT),
            pinned=count(PINNED),
            peak_reading=peak(READING),
            peak_pinned=peak(PINNED),
            hits=self._hits,
            joined=self._joined,
            misses=self._misses,
            evictions=self._evictions,
            lookahead_issued=self._lookahead_issued,
            lookahead_used=self._lookahead_used,
            lookahead_bytes=self._lookahead_bytes,
            lookahead_used_bytes=self._lookahead_used_bytes,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError unless slots, keys and claims agree, and nobody waits while there is room."""
        self._table.check_integrity()
        records = [self._table[index] for index in range(len(self._table))]
        pins = [0] * len(records)
        for claim in self._claims:
            for record in (*claim.ready, *claim.out.values()):
                pins[record.index] += 1
        count = self._table.count
        laws = {
            "pins are what claims hold": pins == [record.pins for record in records],
            "free slots are listed": {r for r in records if r.state is FREE} == set(self._free)
            and len(self._free) == count(FREE),
            "keys map to their slots": all(r.key == k for k, r in self._records.items())
            and len(self._records) + len(self._free) == len(records),
            "keys of a claim are all accounted for": all(self._is_complete(claim) for claim in self._claims),
            "who waits for a read is known to it": all(
                claim in r.claims and r.key == key and not r.is_whole
                for claim in self._claims
                for key, r in claim.coming.items()
            )
            and sum(len(r.claims) for r in records) == sum(len(claim.coming) for claim in self._claims),
            "misses are wanted": all(
                [c for c in self._claims if key in c.misses] == sorted(claims, key=list(self._claims).index)
                for key, claims in self._wanted.items()
            )
            and {key for claim in self._claims for key in claim.misses} == self._wanted.keys(),
            "claims with misses are in line": [c for c in sorted(self._claims, key=_priority) if c.misses]
            == self._short,
            "unasked lookahead is queued": all(
                r.state is QUEUED and r.is_lookahead and not r.claims for r in self._unasked
            ),
            "nobody is short while there is room": not self._short
            or not (self._free or count(RESIDENT) or self._unasked),
        }
        broken = [law for law, holds in laws.items() if not holds]
        if broken:
            raise RuntimeError(f"the cache broke: {'; '.join(broken)}")

    def _join(self, claim: Claim, record: Record, actions: Actions) -> None:
        if record.is_whole:
            self._hits += 1
            self._table.pin(record)
            claim.ready.append(record)
        else:
            self._joined += 1
            record.claims.append(claim)
            claim.coming[record.key] = record
            if record.state is QUEUED and claim.priority < record.priority:
                record.priority = claim.priority
                actions.promotions.append(record)
        if record.is_lookahead:
            record.is_lookahead = False
            self._unasked.pop(record, None)
            if record.state is not QUEUED:
                assert record.placement is not None
                self._lookahead_used += 1
                self._lookahead_used_bytes += record.placement.buffer_bytes

    def _miss(self, claim: Claim, missing: list[tuple[Placement, Hashable]], actions: Actions) -> None:
        self._misses += len(missing)
        missing.sort(key=lambda miss: (miss[0].reads[0].file, miss[0].reads[0].offset))
        for placement, key in missing:
            claim.misses[key] = placement
            self._wanted.setdefault(key, []).append(claim)
        insort(self._short, claim, key=_priority)
        self._fill(actions)

    def _fill(self, actions: Actions) -> None:
        """Give slots to claims that are short of them, as long as there are any."""
        while self._short:
            record = self._room(actions, for_lookahead=False)
            if record is None:
                return
            key, placement = next(iter(self._short[0].misses.items()))
            claims = self._wanted.pop(key)
            for other in claims:
                del other.misses[key]
                other.coming[key] = record
                if not other.misses:
                    self._short.remove(other)
            record.claims = claims
            self._assign(record, key, placement, min(map(_priority, claims)), actions)

    def _room(self, actions: Actions, *, for_lookahead: bool) -> Record | None:
        """Take a slot that is FREE or can be made so; None if there is none to be had now."""
        if not self._free and self._table.count(RESIDENT):
            key = self._policy.victim(self._is_evictable)
            if key is None or not self._is_evictable(key):
                raise RuntimeError(f"the eviction policy chose {key!r} although other keys can be evicted")
            self._vacate(self._records[key])
            self._evictions += 1
        elif not self._free and self._unasked and not for_lookahead:
            record = next(reversed(self._unasked))
            self._vacate(record)
            actions.drops.append(record)
        return self._free.pop() if self._free else None

    def _assign(
        self, record: Record, key: Hashable, placement: Placement, priority: Priority, actions: Actions
    ) -> None:
        self._table.move(record, QUEUED)
        self._records[key] = record
        record.key, record.placement, record.priority = key, placement, priority
        self._policy.insert(key)
        actions.reads.append(record)

    def _vacate(self, record: Record) -> None:
        """Make a slot FREE and forget its key."""
        self._table.move(record, FREE)
        self._unasked.pop(record, None)
        del self._records[record.key]
        self._policy.remove(record.key)
        self._free.append(record)
        record.key, record.placement, record.is_lookahead = None, None, False

    def _forget_misses(self, claim: Claim) -> None:
        for key in claim.misses:
            claims = self._wanted[key]
            claims.remove(claim)
            if not claims:
                del self._wanted[key]
                self._policy.remove(key)
        if claim.misses:
            claim.misses.clear()
            self._short.remove(claim)

    def _is_evictable(self, key: Hashable) -> bool:
        record = self._records.get(key)
        return record is not None and record.state is RESIDENT

    @staticmethod
    def _is_complete(claim: Claim) -> bool:
        groups = [set(claim.misses), set(claim.coming), {r.key for r in claim.ready}, set(claim.out)]
        known = set().union(*groups)
        total = sum(map(len, groups))
        whole = total + claim.released == len(claim.keys) or claim.error is not None
        return len(known) == total and known <= set(claim.keys) and whole


def _priority(claim: Claim) -> Priority:
    return claim.priority

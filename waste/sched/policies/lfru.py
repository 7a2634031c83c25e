"""`lfru`: recency guarded by frequency, on a clock that ticks only when it is a key's turn.

Pure recency scans itself to zero where the slots hold less than one walk through all groups. A count that decays and
outlives eviction does not: it is the score of LRFU (Lee et al., IEEE Transactions on Computers 50(12), 2001), in which
every request adds 1 and time shrinks the sum. What is ours is the clock. Groups (`group_of`) take turns, so a key can
be asked for only once a round of its group, and only the end of such a round ages it. In the middle of a walk this
tells the keys whose turn is still to come from those that have just missed theirs; one clock for all keys cannot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush, heapreplace
from math import log2

from waste.sched.policies import register
from waste.sched.policies.base import group_of

# How far a round takes log2 of a score down. On recorded routing 1 (the last round outweighs all before it) is best
# where the slots just hold a walk, and 1/4 where they hold less or much more; this loses a point or two to either.
AGE_PER_ROUND = 0.75
# Evicted keys whose score is remembered, for each key that has a slot.
GHOSTS_PER_SLOT = 4
# Dead heap entries may outnumber the live ones this many times before they are swept out.
_SLACK = 4

_Entry = tuple[float, int, "_Key"]


class _Key:
    """What is known of one key. score: None until it is asked for. entry: its own in the group's heap, or None."""

    __slots__ = ("asked_at", "entry", "group", "is_ghost", "is_in_round", "is_in_slot", "name", "score")

    def __init__(self, name: Hashable, group: _Group) -> None:
        self.name = name
        self.group = group
        self.score: float | None = None
        self.asked_at = 0
        self.entry: _Entry | None = None
        self.is_in_slot = self.is_in_round = self.is_ghost = False


class _Group:
    """Keys that age together: adding to `age` lowers all their scores at once.

    The heap has the keys with a slot, worst first: lowest score, then most recently asked for, because the turn of
    that one is furthest away. An entry that is not its key's own any more is dead; `live` counts the others.
    """

    __slots__ = ("age", "heap", "live")

    def __init__(self) -> None:
        self.age = 0.0
        self.heap: list[_Entry] = []
        self.live = 0

    def push(self, entry: _Entry) -> None:
        key = entry[2]
        self.live += key.entry is None
        key.entry = entry
        heappush(self.heap, entry)
        if len(self.heap) > _SLACK * (self.live + 1):
            self.heap = [entry for entry in self.heap if entry[2].entry is entry]
            heapify(self.heap)

    def drop(self, key: _Key) -> None:
        """The key's entry, if there is one, is dead."""
        if key.entry is not None:
            key.entry = None
            self.live -= 1

    def worst(self) -> _Entry | None:
        heap = self.heap
        while heap and heap[0][2].entry is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None

    def score_if_asked(self, score: float | None) -> float:
        """A key's score with one more request, which is worth 1 when the present round ends."""
        now = self.age + AGE_PER_ROUND
        return now if score is None else max(score, now) + log2(1 + 2 ** -abs(score - now))


class LfruPolicy:
    """A request, an insertion, an eviction cost O(log keys), amortised. Nothing is random or depends on a clock.

    A score is log2 of the decayed number of requests, plus the age of the key's group.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._keys: dict[Hashable, _Key] = {}
        self._in_slots = 0
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._requests = 0
        # Keys of the round under way, first asked first. They are in use, or were a moment ago and have the longest
        # wait before them: kept out of the heaps, and victims only when nothing else is.
        self._round: list[_Key] = []
        self._round_group: _Group | None = None
        # For every group with entries at least one (rank, order, group) no better than its worst key's.
        self._worst: list[tuple[float, int, _Group]] = []

    def touch(self, key: Hashable) -> None:
        """See `EvictionPolicy.touch`."""
        known = self._keys.get(key) or self._meet(key)
        group = known.group
        if group is not self._round_group or known.is_in_round:
            self._end_round()
            self._round_group = group
        if known.is_ghost:
            known.is_ghost = False
            del self._ghosts[key]
        known.score = group.score_if_asked(known.score)
        self._requests += 1
        known.asked_at = self._requests
        group.drop(known)
        known.is_in_round = True
        self._round.append(known)

    def insert(self, key: Hashable) -> None:
        """See `EvictionPolicy.insert`. Lookahead ranks as if it were asked for, but is not counted as a request."""
        known = self._keys.get(key) or self._meet(key)
        self._in_slots += not known.is_in_slot
        known.is_in_slot = True
        if known.is_in_round:
            return
        if known.score is not None and not known.is_ghost:
            # It was asked for, and has waited for its slot since.
            self._rank(known, known.score, known.asked_at)
        else:
            self._requests += 1
            self._rank(known, known.group.score_if_asked(known.score), self._requests)

    def remove(self, key: Hashable) -> None:
        """See `EvictionPolicy.remove`. The score stays for a while, should the key come back."""
        known = self._keys.get(key)
        if known is None:
            return
        self._in_slots -= known.is_in_slot
        known.is_in_slot = False
        known.group.drop(known)
        if known.score is None:
            self._forget(known)
        else:
            known.is_ghost = True
            self._ghosts[key] = None
            self._ghosts.move_to_end(key)
        while len(self._ghosts) > GHOSTS_PER_SLOT * (self._in_slots + 1):
            forgotten, _ = self._ghosts.popitem(last=False)
            self._forget(self._keys[forgotten])

    def victim(self, is_evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """See `EvictionPolicy.victim`."""
        passed_over: list[tuple[_Group, _Entry]] = []
        found: Hashable | None = None
        while found is None and self._worst:
            rank, order, group = self._worst[0]
            entry = group.worst()
            if entry is None:
                heappop(self._worst)
            elif (entry[0] - group.age, entry[1]) != (rank, order):
                heapreplace(self._worst, (entry[0] - group.age, entry[1], group))
            elif is_evictable(entry[2].name):
                found = entry[2].name
            else:
                passed_over.append((group, heappop(group.heap)))
        for group, entry in passed_over:
            heappush(group.heap, entry)
            self._offer(group, entry)
        if found is None:
            found = next((key.name for key in self._round if key.is_in_slot and is_evictable(key.name)), None)
        return found

    def _meet(self, key: Hashable) -> _Key:
        name = group_of(key)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        known = self._keys[key] = _Key(key, group)
        return known

    def _forget(self, key: _Key) -> None:
        """Its score; and the key itself, if it has no slot and the round does not know it."""
        key.score, key.is_ghost = None, False
        if not key.is_in_slot and not key.is_in_round:
            del self._keys[key.name]

    def _end_round(self) -> None:
        """Age the group whose round is over, and rank the keys it asked for."""
        group = self._round_group
        if group is None or not self._round:
            return
        group.age += AGE_PER_ROUND
        for key in self._round:
            key.is_in_round = False
            if key.score is None:
                self._forget(key)
            elif key.is_in_slot:
                group.push((key.score, -key.asked_at, key))
        self._round.clear()
        worst = group.worst()
        if worst is not None:
            self._offer(group, worst)

    def _rank(self, key: _Key, score: float, asked_at: int) -> None:
        entry = (score, -asked_at, key)
        key.group.push(entry)
        self._offer(key.group, entry)

    def _offer(self, group: _Group, entry: _Entry) -> None:
        """Let an entry of `group`, if it might be the worst, compete with the other groups'."""
        heappush(self._worst, (entry[0] - group.age, entry[1], group))
        if len(self._worst) > _SLACK * (len(self._groups) + 1):
            worst = [(other, other.worst()) for other in self._groups.values()]
            self._worst = [(last[0] - other.age, last[1], other) for other, last in worst if last is not None]
            heapify(self._worst)


register("lfru", LfruPolicy)

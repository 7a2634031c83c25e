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

_Entry = tuple[float, int, Hashable]


class _Group:
    """Keys that age together: adding to `age` lowers all their scores at once.

    The heap has the keys with a slot, worst first: lowest score, then most recently asked for, because the turn of
    that one is furthest away. An entry that is not the key's in `live` is dead.
    """

    __slots__ = ("age", "heap", "live")

    def __init__(self) -> None:
        self.age = 0.0
        self.heap: list[_Entry] = []
        self.live: dict[Hashable, _Entry] = {}

    def push(self, entry: _Entry) -> None:
        self.live[entry[2]] = entry
        heappush(self.heap, entry)
        if len(self.heap) > _SLACK * (len(self.live) + 1):
            self.heap = list(self.live.values())
            heapify(self.heap)

    def worst(self) -> _Entry | None:
        heap, live = self.heap, self.live
        while heap and live.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None


class LfruPolicy:
    """A request, an insertion, an eviction cost O(log keys), amortised. Nothing is random or depends on a clock.

    A score is log2 of the decayed number of requests, plus the age of the key's group.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._scores: dict[Hashable, float] = {}
        self._asked_at: dict[Hashable, int] = {}
        self._in_slot: set[Hashable] = set()
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._requests = 0
        # Keys of the round under way, first asked first. They are in use, or were a moment ago and have the longest
        # wait before them: kept out of the heaps, and victims only when nothing else is.
        self._round: dict[Hashable, None] = {}
        self._round_group: Hashable = None
        # For every group with entries at least one (rank, order, group) no better than its worst key's.
        self._worst: list[_Entry] = []

    def touch(self, key: Hashable) -> None:
        """See `EvictionPolicy.touch`."""
        name = group_of(key)
        if name != self._round_group or key in self._round:
            self._end_round()
            self._round_group = name
        self._ghosts.pop(key, None)
        group = self._group(name)
        self._scores[key] = self._score_if_asked(key, group)
        self._asked_at[key] = self._tick()
        group.live.pop(key, None)
        self._round[key] = None

    def insert(self, key: Hashable) -> None:
        """See `EvictionPolicy.insert`. Lookahead ranks as if it were asked for, but is not counted as a request."""
        self._in_slot.add(key)
        if key in self._round:
            return
        is_waited_for = key in self._scores and key not in self._ghosts
        if is_waited_for:
            self._rank(key, self._scores[key], self._asked_at[key])
        else:
            self._rank(key, self._score_if_asked(key, self._group(group_of(key))), self._tick())

    def remove(self, key: Hashable) -> None:
        """See `EvictionPolicy.remove`. The score stays for a while, should the key come back."""
        self._in_slot.discard(key)
        self._groups[group_of(key)].live.pop(key, None)
        if key in self._scores:
            self._ghosts[key] = None
            self._ghosts.move_to_end(key)
        while len(self._ghosts) > GHOSTS_PER_SLOT * (len(self._in_slot) + 1):
            forgotten, _ = self._ghosts.popitem(last=False)
            del self._scores[forgotten], self._asked_at[forgotten]

    def victim(self, is_evictable: Callable[[Hashable], bool]) -> Hashable | None:
        """See `EvictionPolicy.victim`."""
        passed_over: list[tuple[_Group, _Entry]] = []
        found: Hashable | None = None
        while found is None and self._worst:
            rank, order, name = self._worst[0]
            group = self._groups[name]
            entry = group.worst()
            if entry is None:
                heappop(self._worst)
            elif (entry[0] - group.age, entry[1]) != (rank, order):
                heapreplace(self._worst, (entry[0] - group.age, entry[1], name))
            elif is_evictable(entry[2]):
                found = entry[2]
            else:
                passed_over.append((group, heappop(group.heap)))
        for group, entry in passed_over:
            heappush(group.heap, entry)
            self._offer(group, entry)
        if found is None:
            found = next((key for key in self._round if key in self._in_slot and is_evictable(key)), None)
        return found

    def _end_round(self) -> None:
        """Age the group whose round is over, and rank the keys it asked for."""
        if not self._round:
            return
        group = self._groups[self._round_group]
        group.age += AGE_PER_ROUND
        for key in self._round:
            if key in self._in_slot:
                group.push((self._scores[key], -self._asked_at[key], key))
        self._round.clear()
        worst = group.worst()
        if worst is not None:
            self._offer(group, worst)

    def _group(self, name: Hashable) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group

    def _score_if_asked(self, key: Hashable, group: _Group) -> float:
        """The key's score with one more request, which is worth 1 when the group's present round ends."""
        now = group.age + AGE_PER_ROUND
        score = self._scores.get(key)
        return now if score is None else max(score, now) + log2(1 + 2 ** -abs(score - now))

    def _rank(self, key: Hashable, score: float, asked_at: int) -> None:
        group = self._groups[group_of(key)]
        entry = (score, -asked_at, key)
        group.push(entry)
        self._offer(group, entry)

    def _offer(self, group: _Group, entry: _Entry) -> None:
        """Let an entry of `group`, if it might be the worst, compete with the other groups'."""
        heappush(self._worst, (entry[0] - group.age, entry[1], group_of(entry[2])))
        if len(self._worst) > _SLACK * (len(self._groups) + 1):
            worst = [(name, other, other.worst()) for name, other in self._groups.items()]
            self._worst = [(last[0] - other.age, last[1], name) for name, other, last in worst if last is not None]
            heapify(self._worst)

    def _tick(self) -> int:
        self._requests += 1
        return self._requests


register("lfru", LfruPolicy)

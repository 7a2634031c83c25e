"""The expert cache: records of one size class in slots, leased for computing, read when missing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from waste.errors import ClosedError, ReadError
from waste.io.arena import Arena
from waste.io.extents import Placement
from waste.sched.claim import Claim, Record
from waste.sched.handle import ReadHandle
from waste.sched.lease import Lease
from waste.sched.policies.base import EvictionPolicy
from waste.sched.priority import Kind, Priority
from waste.sched.residency import Actions, CacheStatistics, Residency
from waste.sched.scheduler import ReadScheduler


class ExpertCache:
    """`slots` buffers of `slot_bytes` bytes. Carries out what `Residency` decides; for the loop's thread only.

    place: where a key's bytes lie; its buffer must fit a slot. The memory is allocated here, once
    (`Arena.allocated_bytes` of it), and given back after `close` when the device has returned.
    """

    def __init__(
        self,
        scheduler: ReadScheduler,
        *,
        slots: int,
        slot_bytes: int,
        policy: EvictionPolicy,
        place: Callable[[Hashable], Placement],
        kind: Kind = "experts",
    ) -> None:
        self._scheduler = scheduler
        self._slot_bytes = slot_bytes
        self._kind: Kind = kind
        self.slots = slots
        self._place = place
        self._residency = Residency(slots, policy, self._place_checked)
        self._arena = Arena(slots, slot_bytes)
        self._arrays = [self._arena.slot(index) for index in range(slots)]
        self._buffers = [array.data for array in self._arrays]
        self._records = list(self._arrays)  # as much of each slot as the record in it takes
        self._reads: dict[int, ReadHandle] = {}
        self._leases: dict[Claim, Lease] = {}
        self._space = object()  # sets the keys of this cache apart from others on the same scheduler
        self._is_closed = False

    @property
    def allocated_bytes(self) -> int:
        """What the slots take."""
        return self._arena.allocated_bytes

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def lease(self, keys: Sequence[Hashable], *, priority: Priority = Priority.DEMAND) -> Lease:
        """Ask for all `keys` at once: hits are pinned, misses start together in the order they lie on disk.

        Where there are more keys than slots, the rest start as records are released. Leases that are short of
        slots are served by priority, then in the order they were made. For LRU, keys count as asked for in the
        order given.

        Raises ValueError for a key named twice or a record larger than a slot, ClosedError after `close`.
        """
        self._check_open()
        with self._scheduler.batch():
            claim, actions = self._residency.claim(keys, priority)
            lease = Lease(self, claim)
            self._leases[claim] = lease
            self._carry_out(actions)
        return lease

    def prefetch(self, keys: Iterable[Hashable]) -> None:
        """Read ahead, in the order given, what has no slot yet, as far as slots can be had without waiting.

        A later lease promotes such a read or joins it. Raises ClosedError after `close`.
        """
        self._check_open()
        missing = self._residency.missing(keys)
        if missing:
            with self._scheduler.batch():
                self._carry_out(self._residency.prefetch(missing))

    def drop_lookahead(self) -> None:
        """Forget the lookahead that is not issued and that no lease asked for: it is stale."""
        if self._residency.has_unasked:
            with self._scheduler.batch():
                self._carry_out(self._residency.drop_lookahead())

    def close(self) -> None:
        """End every lease (who waits gets ClosedError) and take back what is queued. Safe to call twice.

        Reads in flight return to their slots first, so the memory goes when `ReadScheduler.close` has waited
        for them; arrays that somebody still holds keep it, too.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with self._scheduler.batch():
            for lease in list(self._leases.values()):
                lease.close()
            self.drop_lookahead()
        self._free_memory()

    def statistics(self) -> CacheStatistics:
        """See `CacheStatistics`."""
        return self._residency.statistics()

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the books agree with themselves and with the reads under way."""
        self._residency.check_integrity()
        counted = self.statistics()
        if len(self._reads) != counted.queued + counted.reading:
            raise RuntimeError(
                f"the cache broke: {len(self._reads)} reads for {counted.queued} queued and "
                f"{counted.reading} reading slots"
            )

    # What leases call.

    def hand_out(self, claim: Claim) -> list[tuple[Hashable, npt.NDArray[np.uint8], Placement]]:
        """See `Lease.wait`."""
        found = []
        for record in self._residency.hand_out(claim):
            assert record.placement is not None
            found.append((record.key, self._records[record.index], record.placement))
        return found

    def block(self, claim: Claim) -> None:
        """See `Residency.block`."""
        self._residency.block(claim)

    def unblock(self, claim: Claim) -> None:
        """See `Residency.unblock`."""
        self._residency.unblock(claim)

    def release(self, claim: Claim, key: Hashable) -> None:
        """See `Lease.release`."""
        actions = self._residency.release(claim, key)
        if actions is not None:
            with self._scheduler.batch():
                self._carry_out(actions)

    def afterwards(self, call: Callable[[], None]) -> None:
        """See `ReadScheduler.afterwards`."""
        self._scheduler.afterwards(call)

    def abandon(self, claim: Claim) -> None:
        """See `Lease.close`."""
        self._leases.pop(claim, None)
        with self._scheduler.batch():
            self._carry_out(self._residency.abandon(claim))

    # Carrying out.

    def _carry_out(self, actions: Actions) -> None:
        for record in actions.drops:
            self._reads.pop(record.index).cancel()
        for record in actions.promotions:
            self._reads[record.index].promote(record.priority)
        for record in actions.reads:
            if self._scheduler.is_closed:
                error = ClosedError("the read scheduler was closed")
                self._carry_out(self._residency.finished(record, error))
            else:
                self._submit(record)
        for claim in actions.wake:
            self._leases[claim].wake()

    def _submit(self, record: Record) -> None:
        assert record.placement is not None
        self._records[record.index] = self._arrays[record.index][: record.placement.buffer_bytes]
        self._reads[record.index] = self._scheduler.submit(
            (self._space, record.key),
            kind=self._kind,
            placement=record.placement,
            buffer=self._buffers[record.index],
            priority=record.priority,
            on_issued=partial(self._issued, record),
            on_done=partial(self._finished, record),
        )

    def _issued(self, record: Record, handle: ReadHandle) -> None:
        self._residency.issued(record)

    def _finished(self, record: Record, handle: ReadHandle) -> None:
        if handle.is_dropped:
            return
        del self._reads[record.index]
        error = handle.error
        if isinstance(error, ReadError):
            error = ReadError(str(error), key=record.key)
        self._carry_out(self._residency.finished(record, error))
        if self._is_closed:
            self._free_memory()

    def _free_memory(self) -> None:
        if not self._reads:
            self._buffers.clear()
            self._records.clear()
            self._arrays.clear()
            self._arena.close()

    def _place_checked(self, key: Hashable) -> Placement:
        placement = self._place(key)
        if not placement.reads or placement.buffer_bytes > self._slot_bytes:
            raise ValueError(f"record {key!r} takes {placement.buffer_bytes} bytes, a slot has {self._slot_bytes}")
        return placement

    def _check_open(self) -> None:
        if self._is_closed or self._scheduler.is_closed:
            raise ClosedError("the expert cache was closed")

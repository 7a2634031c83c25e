"""A lease: the records one computation asked for, handed out as they become whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from waste.errors import ClosedError, ReadError
from waste.io.extents import Placement
from waste.sched.claim import Claim

if TYPE_CHECKING:
    from waste.sched.cache import ExpertCache


class Lease:
    """Made by `ExpertCache.lease`; use it as a context manager, so that what it holds is let go of on any exit.

        with cache.lease(keys) as lease:
            while lease.pending:
                for key, buffer, placement in await lease.wait():
                    ...                      # compute
                    lease.release(key)

    After a failed read the lease is broken: every `wait` raises, and a new lease may try again.
    """

    def __init__(self, cache: ExpertCache, claim: Claim) -> None:
        self._cache = cache
        self._claim = claim
        self._waiter: asyncio.Future[None] | None = None
        self._on_news: Callable[[], None] | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or the cache's."""
        return self._is_closed

    @property
    def pending(self) -> bool:
        """Whether a record was not handed out yet."""
        return self._claim.is_pending

    async def wait(self) -> list[tuple[Hashable, npt.NDArray[np.uint8], Placement]]:
        """At least one record that was not handed out before, hits first, else as they come; [] if none is left.

        Each is (key, buffer, placement): the buffer is uint8 [placement.buffer_bytes], the key's extent i begins
        at `placement.starts[i]`, and both stay valid until `release(key)` or `close`. May be cancelled; nothing
        is lost.

        Raises ReadError with `key` if a record could not be read; ClosedError if the lease or the cache is
        closed; RuntimeError if somebody waits here already; BudgetError if no slot can ever become free: every
        slot is held by records handed out to leases that are themselves waiting, this one included. So release
        what was handed out before waiting for more, or ask for no more keys than there are slots.
        """
        claim = self._claim
        if claim.is_pending and not claim.ready and claim.error is None and not self._is_closed:
            await self._wait_until_woken()
        return self.take()

    def take(self) -> list[tuple[Hashable, npt.NDArray[np.uint8], Placement]]:
        """What `wait` would hand out without waiting, [] if there is nothing new. Raises what it does, if it came."""
        claim = self._claim
        if self._is_closed or isinstance(claim.error, ClosedError):
            raise ClosedError("the lease was closed")
        if claim.error is not None:
            key = claim.error.key if isinstance(claim.error, ReadError) else None
            raise ReadError(str(claim.error), key=key) from claim.error
        return self._cache.hand_out(claim)

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the loop whenever there is something new to take, or an error, and when it closes.

        Instead of `wait`.
        """
        self._on_news = callback

    def release(self, key: Hashable) -> None:
        """Done computing with a record.

        Raises KeyError if it was not handed out, or released already; ClosedError if the lease is closed.
        """
        if self._is_closed:
            raise ClosedError("the lease was closed")
        self._cache.release(self._claim, key)

    def close(self) -> None:
        """Release everything and forget what was not issued; reads in flight still land in the cache.

        Never waits; safe to call twice.
        """
        if not self._is_closed:
            self._is_closed = True
            self._cache.abandon(self._claim)
            self.wake()
            self._on_news = None

    def wake(self) -> None:
        """For the cache: there is something new to look at."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._on_news is not None:
            self._cache.afterwards(self._on_news)

    async def _wait_until_woken(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("a lease can be waited for by one task at a time")
        self._cache.block(self._claim)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._cache.unblock(self._claim)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

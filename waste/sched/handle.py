"""One submitter's view of a read: waiting for it, being told, giving it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from waste.errors import ClosedError, ReadError, WasteError
from waste.sched.priority import Priority

if TYPE_CHECKING:
    from waste.sched.queue import Request
    from waste.sched.scheduler import ReadScheduler

Callback = Callable[["ReadHandle"], None]


class ReadHandle:
    """A read under way. Submitters of the same key have a handle each and share the read.

    buffer: where the bytes arrive; for one that joined, the buffer of whoever came first.
    is_done: the device is through with the buffer, or never began. error: why there are no bytes, once done.
    is_cancelled: this submitter gave it up. is_dropped: done because all did before anything was issued.
    """

    __slots__ = (
        "_on_done",
        "_on_issued",
        "_request",
        "_scheduler",
        "_waiters",
        "error",
        "is_cancelled",
        "is_done",
        "is_dropped",
    )

    def __init__(
        self, scheduler: ReadScheduler, request: Request, on_issued: Callback | None, on_done: Callback | None
    ) -> None:
        self._scheduler = scheduler
        self._request = request
        # Tuples, as most handles have at most one of each: an empty one costs nothing.
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._on_issued = on_issued
        self._on_done: tuple[Callback, ...] = () if on_done is None else (on_done,)
        self.is_cancelled = False
        self.is_done = False
        self.is_dropped = False
        self.error: WasteError | None = None

    @property
    def key(self) -> Hashable:
        """The key it was submitted under."""
        return self._request.key

    @property
    def buffer(self) -> memoryview:
        """See the class."""
        return self._request.buffer

    @property
    def is_issued(self) -> bool:
        """Whether the device was asked for any of it."""
        return self._request.is_issued

    async def wait(self) -> None:
        """Return when the bytes are in the buffer. May be cancelled, which disturbs neither the read nor others.

        Raises ReadError with the key if the read failed or was dropped, ClosedError if the scheduler closes
        first: then the buffer still belongs to the device until `is_done`.
        """
        if not self.is_done and not self._scheduler.is_closed:
            future = asyncio.get_running_loop().create_future()
            self._waiters = (*self._waiters, future)
            try:
                await future
            finally:
                self._waiters = tuple(other for other in self._waiters if other is not future)
        if not self.is_done or isinstance(self.error, ClosedError):
            raise ClosedError("the read scheduler was closed before the read returned")
        if self.is_dropped:
            raise ReadError(f"the read of {self.key!r} was cancelled before it began", key=self.key)
        if self.error is not None:
            # A fresh one each time: one object raised by several waiters would collect their tracebacks.
            raise ReadError(str(self.error), key=self.key) from self.error

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback(handle)` on the loop, synchronously, when the read is done; at once if it is."""
        if self.is_done:
            callback(self)
        else:
            self._on_done = (*self._on_done, callback)

    def promote(self, priority: Priority) -> None:
        """Make it as urgent as `priority`, if it is less and still queued."""
        self._scheduler.promote(self, priority)

    def cancel(self) -> bool:
        """Give the read up. True: it is done, the device was never asked (`is_dropped`).

        False: it was issued or somebody else wants it. Then it goes on, and the buffer stays taken until
        `is_done`.
        """
        self.is_cancelled = True
        return self._scheduler.drop_if_unwanted(self)

    def mark_issued(self, guard: Callable[[BaseException], None]) -> None:
        """For the scheduler: the device was asked. Errors of callbacks go to `guard`."""
        if self._on_issued is not None:
            callback, self._on_issued = self._on_issued, None
            self._call((callback,), guard)

    def mark_done(
        self, error: WasteError | None, guard: Callable[[BaseException], None], *, is_dropped: bool = False
    ) -> None:
        """For the scheduler: the read is over. Errors of callbacks go to `guard`."""
        self.is_done = True
        self.is_dropped = is_dropped
        self.error = error
        if self._waiters:
            self.wake()
        callbacks, self._on_done = self._on_done, ()
        self._call(callbacks, guard)

    def wake(self) -> None:
        """For the scheduler: let everybody who waits look again."""
        waiters, self._waiters = self._waiters, ()
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _call(self, callbacks: tuple[Callback, ...], guard: Callable[[BaseException], None]) -> None:
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:
                guard(error)

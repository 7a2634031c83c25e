"""The `simulated` backend: real bytes from a disk whose speed, order and faults are made up.

It wraps another backend, `threads` by default. A read is delivered when the real one has returned and the simulated
device would have, too; a read that is to fail never reaches the real one. Time is the event loop's, so that under
a virtual clock seconds of latency cost nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waste.errors import ClosedError, ReadError
from waste.io.backends import register
from waste.io.backends.base import Backend, BackendStatistics, Completion, Deliver, ReadOp
from waste.io.backends.faults import Faults, parse_faults
from waste.io.backends.ledger import Ledger
from waste.io.backends.threads import ThreadsBackend
from waste.io.files import FileSet

# What a failed read leaves at the start of its buffer: whoever computes with it anyway gets it wrong.
_RUBBISH = b"\xa5" * 4096


@dataclass(slots=True)
class _Service:
    """A read the device works on. It is over when neither the real read nor the simulated time is awaited."""

    op: ReadOp
    timer: asyncio.TimerHandle | None = None
    is_reading: bool = False
    error: ReadError | None = None


class SimulatedBackend:
    """See the module, and `waste.io.backends.faults` for what can be simulated."""

    def __init__(
        self,
        queue_depth: int,
        *,
        faults: Faults | None = None,
        make_inner: Callable[[int], Backend] = ThreadsBackend,
    ) -> None:
        self._inner = make_inner(queue_depth)
        self._ledger = Ledger()
        self._use(faults or Faults())
        self._files: FileSet | None = None
        self._waiting: deque[tuple[ReadOp, ReadError | None]] = deque()
        self._serving: dict[int, _Service] = {}
        self._numbered = 0
        self._pipe_free_at = 0.0
        self._wake_pending = False
        self._closing = False

    def set_faults(self, text: str) -> None:
        """See `TakesFaults.set_faults`."""
        self._use(parse_faults(text))

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        """See `Backend.start`."""
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        await self._inner.start(files, self._inner_returned)
        self._files = files

    def submit(self, ops: Sequence[ReadOp]) -> None:
        """See `Backend.submit`."""
        if self._files is None or self._closing:
            raise ClosedError("the read backend is not running")
        self._ledger.submit(ops, self._files)
        self._waiting.extend((op, self._fate(op, self._files)) for op in ops)
        self._begin_reads()

    async def close(self) -> None:
        """See `Backend.close`. Simulated time is not waited for: the real reads are what holds buffers."""
        self._closing = True
        while self._waiting:
            op, _ = self._waiting.popleft()
            self._return(op, ReadError("the read backend was closed before this read began"))
        try:
            await self._inner.close()
        finally:
            for service in list(self._serving.values()):
                if service.timer is not None:
                    service.timer.cancel()
                    self._time_is_up(service)
        if self._files is not None:
            self._wake()

    def statistics(self) -> BackendStatistics:
        """See `BackendStatistics`."""
        return self._ledger.statistics(direct_obtained=self._inner.statistics().direct_obtained)

    def _use(self, faults: Faults) -> None:
        self._faults = faults
        # Two streams, so that how many reads wait has no say in which of them fail.
        self._luck = random.Random(faults.seed)
        self._order = random.Random(faults.seed + 1)

    def _fate(self, op: ReadOp, files: FileSet) -> ReadError | None:
        """How the next read in the order of submission is to fail, if it is."""
        self._numbered += 1
        where = f"{files.paths[op.file]}: simulated: "
        is_unlucky = self._luck.random() < self._faults.fail
        if self._numbered in self._faults.short_at:
            return ReadError(f"{where}only {op.need // 2:,} of {op.need:,} bytes at {op.offset:,}")
        code = self._faults.fail_at.get(self._numbered, errno.EIO if is_unlucky else 0)
        if code:
            return ReadError(f"{where}reading {op.need:,} bytes at {op.offset:,} failed: {os.strerror(code)}")
        return None

    def _begin_reads(self) -> None:
        """Let the device begin as many reads as its depth allows."""
        real: list[ReadOp] = []
        while self._waiting and len(self._serving) < (self._faults.depth or len(self._serving) + 1):
            if self._faults.reorder:
                self._waiting.rotate(-self._order.randrange(len(self._waiting)))
            op, error = self._waiting.popleft()
            service = self._serving[op.token] = _Service(op, error=error)
            delay_s = self._service_s(op)
            if delay_s > 0 or error is not None:
                service.timer = self._loop.call_later(delay_s, self._time_is_up, service)
            if error is None:
                service.is_reading = True
                real.append(op)
        if real:
            self._inner.submit(real)

    def _service_s(self, op: ReadOp) -> float:
        """Seconds from now until the device would have returned: latencies overlap, transfers queue up."""
        latency_s = self._faults.latency_s
        if self._faults.reorder:
            latency_s *= 2 * self._order.random()
        if self._faults.bandwidth is None:
            return latency_s
        now = self._loop.time()
        self._pipe_free_at = max(self._pipe_free_at, now + latency_s) + op.length / self._faults.bandwidth
        return self._pipe_free_at - now

    def _inner_returned(self, completions: list[Completion]) -> None:
        for completion in completions:
            service = self._serving[completion.token]
            service.is_reading, service.error = False, completion.error
            self._end_if_over(service)

    def _time_is_up(self, service: _Service) -> None:
        service.timer = None
        self._end_if_over(service)

    def _end_if_over(self, service: _Service) -> None:
        if service.is_reading or service.timer is not None:
            return
        del self._serving[service.op.token]
        self._return(service.op, service.error)
        if not self._closing:
            self._begin_reads()

    def _return(self, op: ReadOp, error: ReadError | None) -> None:
        if error is not None:
            spoilt = min(op.length, len(_RUBBISH))
            op.buffer[:spoilt] = _RUBBISH[:spoilt]
        self._ledger.add(Completion(op.token, error), 0 if error is not None else op.length)
        if not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_pending = False
        self._ledger.deliver(self._deliver)


register("simulated", SimulatedBackend)

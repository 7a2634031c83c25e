"""A disk that returns reads when a test says so, in any order, with faults; and data whose bytes are known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from waste.errors import ReadError
from waste.io.backends.base import BackendStatistics, Completion, Deliver, ReadOp
from waste.io.extents import Extent, Placement, place
from waste.io.files import FileSet
from waste.sched.queue import ReadQueue
from waste.sched.scheduler import ReadScheduler

ALIGN = 16


def content(file: int, offset: int, length: int) -> npt.NDArray[np.uint8]:
    """What our files hold: every 16-byte block differs from its neighbours and from other files'."""
    position = np.arange(offset, offset + length, dtype=np.uint64)
    return ((position * 7 + position // 16 * 31 + file * 97) % 251).astype(np.uint8)


def piece(offset: int, length: int, *, file: int = 0) -> Placement:
    return place([Extent(file, offset, length)], align=ALIGN, max_gap=0)


def pieces(*ranges: tuple[int, int], file: int = 0) -> Placement:
    """A placement of several reads, if the ranges lie apart."""
    return place([Extent(file, offset, length) for offset, length in ranges], align=ALIGN, max_gap=0)


def is_right(buffer: npt.NDArray[np.uint8], placement: Placement) -> bool:
    return len(buffer) == placement.buffer_bytes and all(
        bool((buffer[read.at : read.at + read.need] == content(read.file, read.offset, read.need)).all())
        for read in placement.reads
    )


class FakeDisk:
    """A `Backend` on command. `in_flight` maps tokens to reads in the order they came."""

    def __init__(self) -> None:
        self.in_flight: dict[int, ReadOp] = {}
        self.submissions: list[list[ReadOp]] = []
        self._deliver: Deliver | None = None
        self._idle: asyncio.Future[None] | None = None

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        self._deliver = deliver

    def submit(self, ops: Sequence[ReadOp]) -> None:
        assert ops
        self.submissions.append(list(ops))
        self.in_flight.update((op.token, op) for op in ops)

    def finish(self, *positions: int, fail: Iterable[int] = ()) -> None:
        """Return the reads at these positions of `in_flight` in one wake-up, in this order; `fail` with errors."""
        tokens = list(self.in_flight)
        failing = set(fail)
        done = []
        for position in positions:
            op = self.in_flight.pop(tokens[position])
            if position in failing:
                done.append(Completion(op.token, ReadError(f"no bytes at {op.offset}")))
            else:
                op.buffer[: op.need] = content(op.file, op.offset, op.need).data
                done.append(Completion(op.token, None))
        assert self._deliver is not None
        self._deliver(done)
        if self._idle is not None and not self.in_flight and not self._idle.done():
            self._idle.set_result(None)

    def finish_all(self) -> None:
        while self.in_flight:
            self.finish(*range(len(self.in_flight)))

    async def close(self) -> None:
        if self.in_flight:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def statistics(self) -> BackendStatistics:
        raise NotImplementedError


async def started(*, queue_depth: int = 4, max_bytes_in_flight: int = 1 << 20) -> tuple[FakeDisk, ReadScheduler]:
    disk = FakeDisk()
    queue = ReadQueue(queue_depth=queue_depth, max_bytes_in_flight=max_bytes_in_flight)
    scheduler = ReadScheduler(disk, queue)
    await scheduler.start(FileSet([]))
    return disk, scheduler


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(6):
        await asyncio.sleep(0)


def run(main: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a scenario in debug mode; an error that only reaches the loop's handler fails it, and so do leaks."""

    async def guarded() -> None:
        unhandled: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(30):
            await main()
            await settle()
        assert not unhandled, unhandled
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    try:
        loop.run_until_complete(guarded())
    finally:
        loop.close()

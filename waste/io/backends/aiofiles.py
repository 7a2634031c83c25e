"""The `aiofiles` backend: reads as awaitables of the aiofiles package, one coroutine for each read in flight.

It has nothing over `threads` but that it is plain asyncio: every read costs the event loop a task switch and a
wake-up of its own. The executor is the backend's, because the loop's default one would outlive `close`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from aiofiles.os import wrap

from waste.errors import BudgetError, ClosedError, ReadError
from waste.io.backends import register
from waste.io.backends.base import BackendStatistics, Completion, Deliver, ReadOp
from waste.io.backends.ledger import Ledger
from waste.io.backends.threads import carry_out, read_fully
from waste.io.files import FileSet

_carry_out = wrap(carry_out)


class AiofilesBackend:
    """`queue_depth` lanes, each a task that awaits one read at a time on an executor with a thread for each."""

    def __init__(self, queue_depth: int) -> None:
        self._queue_depth = queue_depth
        self._ledger = Ledger()
        self._queue: asyncio.Queue[ReadOp | None] = asyncio.Queue()
        self._files: FileSet | None = None
        self._closing = False
        self._wake_pending = False
        self._runner: asyncio.Task[None] | None = None

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        """See `Backend.start`. The files are opened on the executor."""
        if self._files is not None or self._closing:
            raise ClosedError("a read backend starts once")
        self._files = files
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(self._queue_depth, thread_name_prefix="waste-aiofiles")
        try:
            _start_threads(self._executor, self._queue_depth)
        except BaseException:
            self._begin_closing()
            self._executor.shutdown(wait=False)
            raise
        opened: asyncio.Future[None] = self._loop.create_future()
        # Owned by this object and awaited by `close`: it must outlive a cancelled `start` until the files are closed.
        self._runner = self._loop.create_task(self._run(files, opened), name="waste-aiofiles")
        try:
            await opened
        except BaseException:
            self._begin_closing()
            raise

    def submit(self, ops: Sequence[ReadOp]) -> None:
        """See `Backend.submit`."""
        if self._files is None or self._closing:
            raise ClosedError("the read backend is not running")
        self._ledger.submit(ops, self._files)
        for op in ops:
            self._queue.put_nowait(op)

    async def close(self) -> None:
        """See `Backend.close`."""
        self._begin_closing()
        if self._runner is not None:
            await asyncio.wait([self._runner])
            self._wake()

    def statistics(self) -> BackendStatistics:
        """See `BackendStatistics`."""
        return self._ledger.statistics(direct_obtained=self._files is not None and self._files.direct_obtained)

    def _begin_closing(self) -> None:
        """Take back the reads no lane has begun, and tell every lane to stop."""
        if self._closing:
            return
        self._closing = True
        while not self._queue.empty():
            op = self._queue.get_nowait()
            if op is not None:
                self._return(op.token, ReadError("the read backend was closed before this read began"), 0)
        for _ in range(self._queue_depth):
            self._queue.put_nowait(None)

    async def _run(self, files: FileSet, opened: asyncio.Future[None]) -> None:
        """Open the files, serve until told to stop, leave no thread and no open file."""
        try:
            await _open(files, opened, self._executor)
            async with asyncio.TaskGroup() as lanes:
                for _ in range(self._queue_depth):
                    lanes.create_task(self._serve(files))
        finally:
            # Off the loop: it waits for threads. Here even a task that was cancelled gets to start it.
            closer = threading.Thread(target=self._shut_down, args=(files,), name="waste-aiofiles-close", daemon=True)
            closer.start()
            while closer.is_alive():  # noqa: ASYNC110
                await asyncio.sleep(0.0005)

    def _shut_down(self, files: FileSet) -> None:
        self._executor.shutdown(wait=True)
        files.close()

    async def _serve(self, files: FileSet) -> None:
        while (op := await self._queue.get()) is not None:
            token = op.token
            error, bytes_read = await _carry_out(read_fully, files, op, executor=self._executor)
            del op  # an idle lane keeps no buffer alive
            self._return(token, error, bytes_read)

    def _return(self, token: int, error: ReadError | None, bytes_read: int) -> None:
        self._ledger.add(Completion(token, error), bytes_read)
        if not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_pending = False
        self._ledger.deliver(self._deliver)


def _start_threads(executor: ThreadPoolExecutor, count: int) -> None:
    """Start every thread now: an executor that is refused one later fails the read and still carries it out."""
    barrier = threading.Barrier(count)
    try:
        for _ in range(count):
            executor.submit(barrier.wait)
    except RuntimeError as error:
        barrier.abort()
        raise BudgetError(f"the system refused {count} reader threads ({error}); lower io.queue_depth") from error


async def _open(files: FileSet, opened: asyncio.Future[None], executor: ThreadPoolExecutor) -> None:
    """Open the files; the outcome goes to `opened`, unless `start` was cancelled and nobody waits for it."""
    try:
        await wrap(files.open)(executor=executor)
    except Exception as error:
        if not opened.done():
            opened.set_exception(error)
    else:
        if not opened.done():
            opened.set_result(None)


register("aiofiles", AiofilesBackend)

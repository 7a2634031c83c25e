"""The compute threads: kernels run here, serial and without the GIL, never on the event loop's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter

from ..errors import ClosedError

Job = Callable[[int], None]
Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Counted since the threads were started."""

    threads: int
    jobs: int
    """Jobs that have run, failed ones included."""
    busy_s: float
    """Seconds spent in jobs, added up over the threads."""


class _Batch:
    """The jobs of one submission that have not begun, how many have not ended, and the first error."""

    __slots__ = ("_done", "_error", "_lock", "_running", "jobs")

    def __init__(self, jobs: Sequence[Job], done: Done) -> None:
        self.jobs = deque(jobs)
        self._done = done
        self._running = len(jobs)
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def finish_one(self, error: BaseException | None) -> None:
        with self._lock:
            self._running -= 1
            if self._error is None:
                self._error = error
            is_last = self._running == 0
        if is_last:
            self._done(self._error)


class Workers:
    """A fixed number of daemon threads that take jobs first in, first out.

    A job is called with its thread's index, 0 to `threads` − 1, so that it can use scratch of its own: two jobs
    with the same index never run at once. Several submissions may be under way together.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"compute threads: found {threads}, expected at least 1")
        # A batch stands in the queue once a job; None ends the thread that takes it.
        self._queue: SimpleQueue[_Batch | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._jobs = [0] * threads
        self._busy_s = [0.0] * threads
        self._threads = [
            threading.Thread(target=self._work, args=(index,), name=f"waste-compute-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def threads(self) -> int:
        return len(self._threads)

    def submit(self, jobs: Sequence[Job], done: Done) -> None:
        """Run all jobs in any order, then call `done` once with the first error or None; returns at once.

        `done` runs on the thread that finished last, when no thread holds one of the jobs any more; without jobs it
        runs here. It should only hand over (`call_soon_threadsafe`): meanwhile its thread computes nothing.
        Raises ClosedError after `close`.
        """
        batch = _Batch(jobs, done)
        with self._lock:
            if self._is_closed:
                raise ClosedError("the compute threads were closed: open the engine again to run more")
            for _ in range(len(batch.jobs)):
                self._queue.put(batch)
        if not jobs:
            done(None)

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(threads=self.threads, jobs=sum(self._jobs), busy_s=sum(self._busy_s))

    def close(self) -> None:
        """Let everything submitted finish, `done` included, and join the threads; not to be called on one of them."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, index: int) -> None:
        while (batch := self._queue.get()) is not None:
            error = self._run(batch, index)
            try:
                batch.finish_one(error)
            except BaseException as failure:
                # An error of `done` itself: shown as any thread's would be, and the thread goes on.
                threading.excepthook(threading.ExceptHookArgs((type(failure), failure, failure.__traceback__, None)))
            # A waiting thread keeps nothing alive: jobs and errors refer to buffers that somebody may want to free.
            del batch, error

    def _run(self, batch: _Batch, index: int) -> BaseException | None:
        began = perf_counter()
        try:
            batch.jobs.popleft()(index)
        except BaseException as error:
            return error
        finally:
            self._jobs[index] += 1
            self._busy_s[index] += perf_counter() - began
        return None

"""The compute threads: kernels run here, serial and without the GIL, never on the event loop's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter

from ..errors import ClosedError

Job = Callable[[int], None]
Done = Callable[[BaseException | None], None]
Watch = Callable[[int, str, float, float], None]
"""Told (thread, family, began, ended) of every job, in seconds of `perf_counter`, on that thread."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Jobs that may run side by side.

    family: what their time is counted under. then: called once when all of them have ended, failed or not, and
    before anybody else hears of it.
    """

    family: str
    jobs: Sequence[Job]
    then: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Counted since the threads were started."""

    threads: int
    jobs: int
    """Jobs that have run, failed ones included."""
    busy_s_by_family: Mapping[str, float]
    """Seconds spent in jobs, added up over the threads."""

    @property
    def busy_s(self) -> float:
        return sum(self.busy_s_by_family.values())


class Batch:
    """Stages on their way, one after the other: the jobs under way, what has not begun, and the first error."""

    __slots__ = ("_done", "_error", "_is_cancelled", "_jobs", "_lock", "_running", "_stages", "stage")

    def __init__(self, stages: Sequence[Stage], done: Done) -> None:
        self._stages = deque(stages)
        self._done = done
        self._jobs: deque[Job] = deque()
        self._running = 0
        self._error: BaseException | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        self.stage: Stage | None = None

    def cancel(self) -> None:
        """Leave out the stages that have not begun. From any thread."""
        self._is_cancelled = True

    def begin(self) -> int:
        """Go on to the next stage with jobs; returns how many, and 0 when the batch is over: then it is reported."""
        while self._stages and self._error is None and not self._is_cancelled:
            stage = self._stages.popleft()
            if stage.jobs:
                self.stage = stage
                self._jobs.extend(stage.jobs)
                self._running = len(stage.jobs)
                return self._running
        # Jobs refer to buffers that somebody may want to free as soon as they hear of the end.
        self._stages.clear()
        self.stage = None
        self._done(self._error)
        return 0

    def take(self) -> Job:
        """A job of the stage under way; there is one for each time `begin` counted."""
        return self._jobs.popleft()

    def end_job(self, error: BaseException | None) -> int:
        """A job has ended; returns how many there are to run now, those of the next stage if it was the last."""
        with self._lock:
            self._running -= 1
            if self._error is None:
                self._error = error
            is_last = self._running == 0
        if not is_last:
            return 0
        assert self.stage is not None
        if self.stage.then is not None:
            self.stage.then()
        return self.begin()


class Workers:
    """A fixed number of daemon threads that take jobs first in, first out; a batch that has begun goes first.

    A job is called with its thread's index, 0 to `threads` − 1, so that it can use scratch of its own: two jobs
    with the same index never run at once. Several batches may be under way together.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"compute threads: found {threads}, expected at least 1")
        # A batch stands in line once a job, and each entry has a permit; None ends the thread that takes it.
        self._line: deque[Batch | None] = deque()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._jobs = [0] * threads
        self._busy_s: list[dict[str, float]] = [{} for _ in range(threads)]
        self.watch: Watch | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(index,), name=f"waste-compute-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def threads(self) -> int:
        return len(self._threads)

    def submit(self, stages: Sequence[Stage], done: Done) -> Batch:
        """Run the stages one after the other, the jobs of each in any order; returns at once.

        `done` is called once, with the first error or None, on the thread that finished last, when no thread holds
        one of the jobs any more; without jobs it is called here. It should only hand over (`call_soon_threadsafe`):
        meanwhile its thread computes nothing. After an error no further stage begins.

        Raises ClosedError after `close`.
        """
        batch = Batch(stages, done)
        with self._lock:
            if self._is_closed:
                raise ClosedError("the compute threads were closed: open the engine again to run more")
            # Everybody in line before `close` puts its None there.
            first = next((len(stage.jobs) for stage in stages if stage.jobs), 0)
            if first:
                batch.begin()
                self._line.extend([batch] * first)
        for _ in range(first):
            self._permits.put(None)
        if not first:
            batch.begin()
        return batch

    def statistics(self) -> WorkerStatistics:
        busy_s: dict[str, float] = {}
        for of_thread in self._busy_s:
            for family, seconds in of_thread.copy().items():
                busy_s[family] = busy_s.get(family, 0.0) + seconds
        return WorkerStatistics(threads=self.threads, jobs=sum(self._jobs), busy_s_by_family=busy_s)

    def close(self) -> None:
        """Let everything submitted finish, `done` included, and join the threads; not to be called on one of them."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._line.extend([None] * self.threads)
                for _ in self._threads:
                    self._permits.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, index: int) -> None:
        while True:
            self._permits.get()
            batch = self._line.popleft()
            if batch is None:
                return
            while batch is not None:
                batch = self._run_one(batch, index)

    def _run_one(self, batch: Batch, index: int) -> Batch | None:
        """Run a job of the batch; returns the batch if this thread should go on with it at once."""
        assert batch.stage is not None
        family = batch.stage.family
        began = perf_counter()
        error: BaseException | None = None
        try:
            batch.take()(index)
        except BaseException as failure:
            error = failure
        ended = perf_counter()
        busy_s = self._busy_s[index]
        busy_s[family] = busy_s.get(family, 0.0) + ended - began
        self._jobs[index] += 1
        if self.watch is not None:
            self.watch(index, family, began, ended)
        try:
            more = batch.end_job(error)
        except BaseException as failure:
            # An error of `done` itself: shown as any thread's would be, and the thread goes on.
            threading.excepthook(threading.ExceptHookArgs((type(failure), failure, failure.__traceback__, None)))
            return None
        for _ in range(more - 1):
            # In front of whoever only waits to begin, and of the None of `close`.
            self._line.appendleft(batch)
            self._permits.put(None)
        return batch if more else None

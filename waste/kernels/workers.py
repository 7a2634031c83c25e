"""The compute threads: kernels run here, serial and without the GIL, never on the event loop's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    family: what their time is counted under. then: called once when all of them have ended well, before anybody else
    hears of it; an error of it is one of the batch.
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
    """Stages on their way, one after the other: the jobs under way, what has not begun, and the first error.

    For `Workers` alone but for `cancel`, which anybody may call. error: the first one so far. waits: for how many
    batches it has still to wait; followers: those that wait for it. Both change under the lock of the threads only.
    """

    __slots__ = (
        "_is_cancelled", "_jobs", "_lock", "_running", "_stages", "done", "error", "followers", "is_over", "stage",
        "waits",
    )  # fmt: skip

    def __init__(self, stages: Sequence[Stage], done: Done) -> None:
        self._stages = deque(stages)
        self._jobs: deque[Job] = deque()
        self._running = 0
        self.error: BaseException | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        self.done = done
        self.stage: Stage | None = None
        self.waits = 0
        self.followers: list[Batch] = []
        self.is_over = False

    @property
    def is_broken(self) -> bool:
        """Whether stages were, or will be, left out."""
        return self._is_cancelled or self.error is not None

    def cancel(self) -> None:
        """Leave out the stages that have not begun. From any thread."""
        self._is_cancelled = True

    def begin(self) -> int:
        """Go on to the next stage with jobs; returns how many, and 0 when there is none: then the batch is over."""
        while self._stages and not self.is_broken:
            stage = self._stages.popleft()
            if stage.jobs:
                self.stage = stage
                self._jobs.extend(stage.jobs)
                self._running = len(stage.jobs)
                return self._running
        # Jobs refer to buffers that somebody may want to free as soon as they hear of the end.
        self._stages.clear()
        self.stage = None
        return 0

    def take(self) -> Job:
        """A job of the stage under way; there is one for each time `begin` counted."""
        return self._jobs.popleft()

    def end_job(self, error: BaseException | None) -> int | None:
        """A job has ended; returns how many of the next stage there are to run now, if it was the last, else None."""
        with self._lock:
            self._running -= 1
            if self.error is None:
                self.error = error
            is_last = self._running == 0
        if not is_last:
            return None
        assert self.stage is not None
        if self.stage.then is not None and self.error is None:
            try:
                self.stage.then()
            except BaseException as failure:
                self.error = failure
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

    def submit(self, stages: Sequence[Stage], done: Done, *, after: Iterable[Batch] = ()) -> Batch:
        """Run the stages one after the other, the jobs of each in any order; returns at once.

        after: batches that have to be over before the first stage begins; if stages of one of them were left out, all
        stages of this one are. `done` is called once, with the first error or None, on the thread that finished last,
        when no thread holds one of the jobs any more; without jobs it may be called here. It should only hand over
        (`call_soon_threadsafe`): meanwhile its thread computes nothing. After an error no further stage begins.

        Raises ClosedError after `close`.
        """
        batch = Batch(stages, done)
        with self._lock:
            if self._is_closed:
                raise ClosedError("the compute threads were closed: open the engine again to run more")
            for other in after:
                if not other.is_over:
                    other.followers.append(batch)
                    batch.waits += 1
                elif other.is_broken:
                    batch.cancel()
            first = None if batch.waits else batch.begin()
            # Everybody in line before `close` puts its None there.
            self._line.extend([batch] * (first or 0))
        for _ in range(first or 0):
            self._permits.put(None)
        if first == 0:
            self._end(batch)
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
        more = batch.end_job(error)
        if more == 0:
            self._end(batch)
        self._put_in_front(batch, (more or 0) - 1)
        return batch if more else None

    def _end(self, batch: Batch) -> None:
        """The batch is over: tell, and let those begin that waited for nobody else."""
        with self._lock:
            batch.is_over = True
            followers, batch.followers = batch.followers, []
            for follower in followers:
                follower.waits -= 1
                if batch.is_broken:
                    follower.cancel()
            ready = [follower for follower in followers if follower.waits == 0]
        try:
            batch.done(batch.error)
        except BaseException as failure:
            # Shown as any thread's would be, and the thread goes on.
            threading.excepthook(threading.ExceptHookArgs((type(failure), failure, failure.__traceback__, None)))
        for follower in ready:
            if first := follower.begin():
                self._put_in_front(follower, first)
            else:
                self._end(follower)

    def _put_in_front(self, batch: Batch, jobs: int) -> None:
        """Before whoever only waits to begin, and before the None of `close`."""
        for _ in range(jobs):
            self._line.appendleft(batch)
            self._permits.put(None)

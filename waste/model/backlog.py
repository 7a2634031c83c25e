"""What a walk has for the compute threads: gathered, handed over in one piece, and run in the order it was added."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from waste.kernels.workers import Job, Stage
from waste.model.compute import OTHER, Compute, Mark, Started


class Beside(Protocol):
    """Work that a walk has started by itself, and that what is added to the backlog afterwards builds upon."""

    @property
    def started(self) -> Sequence[Started]:
        """What is under way or has ended."""
        ...

    async def all_started(self) -> None:
        """Return when nothing more will be; raises what keeps it from being started."""
        ...

    def close(self) -> None:
        """Let go of what it holds: all that was started has ended, and no more may be."""
        ...

    def stop(self) -> None:
        """Start nothing more."""
        ...


class Backlog:
    """Stages that wait to be handed over together: a hand-off costs as much as a small kernel.

    The walk goes on while they run, and adds what is to run after them. It stops only where it has to know something
    (`until`) or wants a piece of memory back (`run`). A backlog that was used has to be settled.

    routine: stages that were added before and come again, see `recall`; None where no two walks are alike.
    """

    def __init__(self, compute: Compute, routine: MutableMapping[Hashable, Sequence[Stage]] | None = None) -> None:
        self._compute = compute
        self._routine = routine
        self._stages: list[Stage] = []
        self._joins: list[tuple[int, Job]] = []  # and with which stage, by its place
        self._begin = 0  # of what is being added for the routine; no job joins one before it
        self._key: Hashable = None
        self._family = OTHER
        self._under_way: list[Started] = []
        self._beside: list[Beside] = []  # what is added now comes after it
        self._behind: list[Beside] = []  # what has been handed over comes after it

    @contextmanager
    def part(self, family: str) -> Iterator[None]:
        """What is added inside belongs to this part of the model."""
        outer, self._family = self._family, family
        try:
            yield
        finally:
            self._family = outer

    def add(self, jobs: Sequence[Job], *, then: Callable[[], object] | None = None) -> None:
        """Run `jobs` side by side when everything added before has ended; see `Stage` for `then`."""
        if len(jobs) == 1 and len(self._stages) > self._begin:
            last = self._stages[-1]
            # What belongs to no part is a trifle, and its time may count for the part before.
            if len(last.jobs) == 1 and last.then is None and self._family in (last.family, OTHER):
                self._stages[-1] = Stage(last.family, [_Chain(last.jobs[0], jobs[0])], then)
                return
        self._stages.append(Stage(self._family, jobs, then))

    def add_beside_next(self, job: Job) -> None:
        """Run `job` when everything added before has ended, side by side with the jobs that are added next, if any."""
        self._joins.append((len(self._stages), job))
        self._begin = len(self._stages)

    def recall(self, key: Hashable) -> bool:
        """Add what an earlier walk has kept under this key. False, if there is nothing: add it, and then `keep` it.

        A decoded token is the same work as the one before, and putting it together takes longer than many a kernel.
        """
        if self._routine is None:
            return False
        self._begin = len(self._stages)
        known = self._routine.get(key)
        if known is None:
            self._key = key
            return False
        self._stages.extend(known)
        return True

    def keep(self) -> None:
        """What was added since the last `recall`, which did not find it, is for other walks, too.

        Nothing may have been handed over in between.
        """
        if self._routine is not None:
            assert self._key is not None
            self._routine[self._key] = self._stages[self._begin :]
            self._begin, self._key = len(self._stages), None

    def beside(self, work: Beside) -> None:
        """What is added from now on comes after this work; what was added before has been handed over."""
        self._beside.append(work)

    async def hand_over(self) -> None:
        """Let what has been added run when all before it has; returns at once if nothing beside is still to start.

        Raises what work beside raises when it cannot be started.
        """
        if not self._stages and not self._joins:
            return
        for work in self._beside:
            await work.all_started()
        after = _started(self._beside)
        self._behind += self._beside
        self._beside = []
        stages, self._stages, self._begin, self._key = self._joined(), [], 0, None
        self._under_way.append(self._compute.start(stages, after=[*self._under_way[-1:], *after]))

    def _joined(self) -> list[Stage]:
        """The stages, and with them what is to run beside some."""
        stages = self._stages
        for place, job in self._joins:
            if place == len(stages):
                stages.append(Stage(self._family, [job]))
            else:
                # Second, so that one thread has begun with what takes longer.
                beside = stages[place]
                stages[place] = Stage(beside.family, [*beside.jobs[:1], job, *beside.jobs[1:]], beside.then)
        self._joins = []
        return stages

    async def until(self, mark: Mark) -> None:
        """Hand over, and return when the work has come to a mark that was added.

        Raises the first error of the work before it, and what was raised at the mark.
        """
        await self.hand_over()
        await mark.reached(self._under_way[-1])
        if not mark.is_reached:
            await self._finish()
            raise RuntimeError("the work ended without coming to its mark")
        if mark.error is not None:
            raise mark.error
        self._forget_ended()

    async def run(self) -> None:
        """Hand over, and wait until all that was handed over is done; raises its first error.

        Work beside that nothing was added after is not waited for.
        """
        await self.hand_over()
        await self._finish()

    async def settle(self) -> None:
        """The walk is over, however: leave out what has not begun, wait for what has, let go of everything."""
        self._stages.clear()
        self._joins.clear()
        for work in self._beside:
            work.stop()
        everything = [*self._under_way, *_started(self._behind), *_started(self._beside)]
        for started in everything:
            started.cancel()
        try:
            await self._compute.end(*everything)
        finally:
            for work in (*self._behind, *self._beside):
                work.close()
            self._under_way, self._behind, self._beside = [], [], []

    async def _finish(self) -> None:
        await self._compute.finish(*_started(self._behind), *self._under_way)
        self._forget_ended()

    def _forget_ended(self) -> None:
        # The last one stays: what is handed over next comes after it.
        self._under_way = [started for started in self._under_way[:-1] if not started.is_done] + self._under_way[-1:]
        behind, self._behind = self._behind, []
        for work in behind:
            if all(started.is_done for started in work.started):
                work.close()
            else:
                self._behind.append(work)


def _started(works: Iterable[Beside]) -> list[Started]:
    return [started for work in works for started in work.started]


class _Chain:
    """Jobs of one thread after each other."""

    __slots__ = ("_jobs",)

    def __init__(self, first: Job, second: Job) -> None:
        self._jobs: tuple[Job, ...] = (*first._jobs, second) if isinstance(first, _Chain) else (first, second)

    def __call__(self, worker: int) -> None:
        for job in self._jobs:
            job(worker)

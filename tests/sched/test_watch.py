"""What a watcher is told of reads and of the loop's time."""

from __future__ import annotations

from tests.sched.fakes import piece, pieces, run, started
from waste.sched.priority import Kind, Priority
from waste.sched.scheduler import ReadScheduler


class Notes:
    """A `Watcher` that remembers."""

    def __init__(self) -> None:
        self.reads: list[tuple[Kind, Priority, int]] = []
        self.times: list[tuple[float, float]] = []
        self.batches: list[str] = []
        self.spans: list[tuple[float, float]] = []
        self.waits: list[float] = []

    def read(self, kind: Kind, priority: Priority, size: int, began: float, ended: float) -> None:
        self.reads.append((kind, priority, size))
        self.times.append((began, ended))

    def loop(self, what: str, began: float, ended: float) -> None:
        self.batches.append(what)
        self.spans.append((began, ended))

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)


def submit(scheduler: ReadScheduler, key: str, kind: Kind, priority: Priority, *ranges: tuple[int, int]) -> None:
    placement = pieces(*ranges)
    buffer = memoryview(bytearray(placement.buffer_bytes))
    scheduler.submit(key, kind=kind, placement=placement, buffer=buffer, priority=priority)


def test_every_read_is_told_at_the_priority_it_was_issued_at() -> None:
    async def main() -> None:
        disk, scheduler = await started(queue_depth=2)
        notes = scheduler.watch = Notes()
        submit(scheduler, "a", "experts", Priority.LOOKAHEAD, (0, 16), (160, 32))
        submit(scheduler, "b", "trunk", Priority.RING, (320, 16))
        submit(scheduler, "a", "experts", Priority.DEMAND, (0, 16), (160, 32))  # joins what is in flight
        assert notes.reads == []
        disk.finish(1, fail=[1])
        disk.finish_all()
        assert notes.reads == [
            ("experts", Priority.LOOKAHEAD, 32),
            ("experts", Priority.LOOKAHEAD, 16),
            ("trunk", Priority.RING, 16),
        ]
        assert len(notes.reads) == sum(scheduler.statistics().reads.values())
        assert all(began <= ended for began, ended in notes.times)
        await scheduler.close()

    run(main)


def test_a_read_promoted_before_it_was_issued_counts_as_what_it_became() -> None:
    async def main() -> None:
        disk, scheduler = await started(queue_depth=1)
        notes = scheduler.watch = Notes()
        submit(scheduler, "a", "trunk", Priority.DEMAND, (0, 16))
        submit(scheduler, "b", "experts", Priority.BACKGROUND, (160, 16))
        submit(scheduler, "b", "experts", Priority.DEMAND, (160, 16))
        disk.finish_all()
        assert notes.reads == [("trunk", Priority.DEMAND, 16), ("experts", Priority.DEMAND, 16)]
        await scheduler.close()

    run(main)


def test_what_was_asked_for_before_anybody_watched_is_not_told() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        submit(scheduler, "a", "trunk", Priority.RING, (0, 16))
        notes = scheduler.watch = Notes()
        submit(scheduler, "b", "trunk", Priority.RING, (160, 16))
        submit(scheduler, "c", "trunk", Priority.RING, (320, 16))
        disk.finish(0, 1)
        assert len(notes.reads) == 1
        scheduler.watch = None
        disk.finish_all()
        assert len(notes.reads) == 1
        assert not scheduler._watched
        await scheduler.close()

    run(main)


def test_batches_are_told_once_and_one_after_the_other() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        notes = scheduler.watch = Notes()
        with scheduler.batch(), scheduler.batch():
            submit(scheduler, "a", "trunk", Priority.RING, (0, 16))
        disk.finish_all()
        with scheduler.batch():
            pass
        assert notes.batches == ["reads asked for", "reads returned", "reads asked for"]
        times = [at for span in notes.spans for at in span]
        assert times == sorted(times)
        total = sum(ended - began for began, ended in notes.spans)
        assert abs(total - scheduler.statistics().loop_s) < 1e-9
        scheduler.add_wait(0.25)
        assert notes.waits == [0.25]
        await scheduler.close()

    run(main)


def test_reads_that_return_when_the_scheduler_closes_are_told() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        notes = scheduler.watch = Notes()
        handle = scheduler.submit(
            "a", kind="other", placement=piece(0, 16), buffer=memoryview(bytearray(16)), priority=Priority.DEMAND
        )
        assert handle.is_issued
        disk.finish_all()
        await scheduler.close()
        assert notes.reads == [("other", Priority.DEMAND, 16)]

    run(main)

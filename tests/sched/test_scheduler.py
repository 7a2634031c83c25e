from __future__ import annotations

import asyncio
import gc
from collections.abc import Hashable

import numpy as np
import pytest

from tests.sched.fakes import FakeDisk, is_right, piece, pieces, run, settle, started
from waste.errors import ClosedError, ReadError
from waste.io.extents import Placement
from waste.sched.handle import ReadHandle
from waste.sched.priority import Priority
from waste.sched.queue import ReadQueue
from waste.sched.scheduler import ReadScheduler


def submit(
    scheduler: ReadScheduler,
    key: Hashable,
    placement: Placement | None = None,
    priority: Priority = Priority.DEMAND,
) -> ReadHandle:
    placement = placement or piece(0, 16)
    buffer = memoryview(bytearray(placement.buffer_bytes))
    return scheduler.submit(key, kind="other", placement=placement, buffer=buffer, priority=priority)


def test_a_batch_goes_to_the_device_together() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        with scheduler.batch():
            for key in range(3):
                submit(scheduler, key, priority=Priority(2 - key))
            assert not disk.submissions
        assert [len(ops) for ops in disk.submissions] == [3]
        submit(scheduler, 3)
        assert [len(ops) for ops in disk.submissions] == [3, 1]
        disk.finish_all()
        await scheduler.close()

    run(main)


def test_completions_of_one_wakeup_make_room_for_one_submission() -> None:
    async def main() -> None:
        disk, scheduler = await started(queue_depth=2)
        handles = [submit(scheduler, key) for key in range(5)]
        disk.submissions.clear()
        disk.finish(0, 1)
        assert [len(ops) for ops in disk.submissions] == [2]
        assert [handle.is_done for handle in handles] == [True, True, False, False, False]
        disk.finish_all()
        statistics = scheduler.statistics()
        assert (statistics.completed, statistics.failed) == (5, 0)
        assert statistics.bytes_read["other"] == 80
        assert statistics.reads[Priority.DEMAND] == 5
        assert statistics.queue.peak_reads_in_flight == 2
        assert statistics.loop_s > 0
        await scheduler.close()

    run(main)


def test_everybody_who_joined_gets_the_bytes() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        placement = pieces((5, 30), (100, 3), file=2)
        handles = [submit(scheduler, "a", placement) for _ in range(3)]
        waiters = [asyncio.create_task(handle.wait()) for handle in handles for _ in range(2)]
        await settle()
        assert not any(waiter.done() for waiter in waiters)
        disk.finish(1, 0)
        await asyncio.gather(*waiters)
        await handles[0].wait()  # and whoever comes late
        assert handles[0].buffer is handles[2].buffer
        assert is_right(np.frombuffer(handles[1].buffer, dtype=np.uint8), placement)
        scheduler.check_integrity()
        await scheduler.close()

    run(main)


def test_cancelling_a_waiter_disturbs_nobody() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        handle = submit(scheduler, "a")
        first, second = (asyncio.create_task(handle.wait()) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        assert first.cancelled()
        assert not second.done()
        disk.finish(0)
        second.cancel()  # in the moment between the bytes and the wake-up
        third = asyncio.create_task(handle.wait())
        await settle()
        assert second.cancelled()
        assert third.result() is None
        await scheduler.close()

    run(main)


def test_a_failing_read_fails_every_waiter_with_its_key() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        handle = submit(scheduler, ("layer", 3))
        waiters = [asyncio.create_task(handle.wait()) for _ in range(2)]
        await settle()
        disk.finish(0, fail=[0])
        errors = await asyncio.gather(*waiters, return_exceptions=True)
        assert [str(error) for error in errors] == ["no bytes at 0"] * 2
        assert all(isinstance(error, ReadError) and error.key == ("layer", 3) for error in errors)
        assert errors[0] is not errors[1]
        again = submit(scheduler, ("layer", 3))
        disk.finish(0)
        await again.wait()
        await scheduler.close()

    run(main)


def test_an_error_that_nobody_awaits_is_silent() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        handle = submit(scheduler, "a")
        disk.finish(0, fail=[0])
        assert isinstance(handle.error, ReadError)
        waiter = asyncio.create_task(submit(scheduler, "b").wait())
        await settle()
        waiter.cancel()
        disk.finish(0, fail=[0])
        await settle()
        del handle, waiter
        gc.collect()  # `run` fails on anything the loop's exception handler hears
        await scheduler.close()

    run(main)


def test_cancel_drops_only_what_nobody_wants_and_nothing_was_issued_of() -> None:
    async def main() -> None:
        disk, scheduler = await started(queue_depth=1)
        issued = submit(scheduler, "issued")
        queued, joined = submit(scheduler, "queued"), submit(scheduler, "queued")
        told: list[ReadHandle] = []
        for handle in (issued, queued, joined):
            handle.add_done_callback(told.append)
        assert not issued.cancel()
        assert not issued.is_done
        assert not queued.cancel()
        assert joined.cancel()
        assert told == [queued, joined]
        assert queued.is_dropped
        with pytest.raises(ReadError, match="cancelled before it began"):
            await joined.wait()
        disk.finish(0)
        assert told[2:] == [issued]
        assert not issued.is_dropped
        assert not issued.cancel()
        assert not disk.in_flight
        await scheduler.close()

    run(main)


def test_promote_reorders_what_is_queued() -> None:
    async def main() -> None:
        disk, scheduler = await started(queue_depth=1)
        order: list[Hashable] = []
        handles = [
            scheduler.submit(
                key,
                kind="other",
                placement=piece(0, 16),
                buffer=memoryview(bytearray(16)),
                priority=Priority.LOOKAHEAD,
                on_issued=lambda handle: order.append(handle.key),
            )
            for key in "abc"
        ]
        handles[2].promote(Priority.DEMAND)
        disk.finish_all()
        handles[2].promote(Priority.DEMAND)
        assert order == ["a", "c", "b"]
        await scheduler.close()

    run(main)


@pytest.mark.parametrize("how", ["cancel the head", "promote past it"])
def test_a_read_that_no_longer_waits_behind_a_large_one_goes_at_once(how: str) -> None:
    async def main() -> None:
        disk, scheduler = await started(max_bytes_in_flight=100)
        submit(scheduler, "flying", piece(0, 64), Priority.RING)
        head = submit(scheduler, "large", piece(0, 64), Priority.RING)
        small = submit(scheduler, "small", piece(0, 16), Priority.RING)
        assert not small.is_issued
        if how == "cancel the head":
            assert head.cancel()
        else:
            small.promote(Priority.DEMAND)
        assert small.is_issued
        disk.finish_all()
        await scheduler.close()

    run(main)


def test_callbacks_run_within_the_completion_and_may_submit() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        handle = submit(scheduler, "a")

        def submit_more(done: ReadHandle) -> None:
            for key in "bc":
                submit(scheduler, key)

        handle.add_done_callback(submit_more)
        disk.submissions.clear()
        disk.finish(0)
        assert [len(ops) for ops in disk.submissions] == [2]
        late: list[ReadHandle] = []
        handle.add_done_callback(late.append)
        assert late == [handle]
        disk.finish_all()
        await scheduler.close()

    run(main)


def test_a_failing_callback_is_reported_and_the_others_still_hear() -> None:
    async def main() -> None:
        disk, scheduler = await started()
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

        def fail(handle: ReadHandle) -> None:
            raise ZeroDivisionError

        told: list[ReadHandle] = []
        first, second = submit(scheduler, "a"), submit(scheduler, "b")
        first.add_done_callback(fail)
        first.add_done_callback(told.append)
        second.add_done_callback(told.append)
        disk.finish(0, 1)
        assert told == [first, second]
        assert [type(error) for error in reported] == [ZeroDivisionError]
        await scheduler.close()

    run(main)


def test_close_ends_the_queued_and_waits_for_the_device() -> None:
    async def main() -> None:
        disk, scheduler = await started(queue_depth=1)
        flying, queued = submit(scheduler, "flying"), submit(scheduler, "queued")
        waiters = [asyncio.create_task(handle.wait()) for handle in (flying, queued)]
        await settle()
        closing = [asyncio.create_task(scheduler.close()) for _ in range(2)]
        await settle()
        errors = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(error) for error in errors] == [ClosedError, ClosedError]
        assert queued.is_done
        assert not flying.is_done  # its buffer still belongs to the device
        assert not any(task.done() for task in closing)
        with pytest.raises(ClosedError):
            submit(scheduler, "late")
        with pytest.raises(ClosedError):
            await flying.wait()
        closing[0].cancel()
        await settle()
        disk.finish(0)
        await closing[1]
        await asyncio.gather(closing[0], return_exceptions=True)
        assert flying.is_done
        assert flying.error is None
        await scheduler.close()
        scheduler.check_integrity()

    run(main)


def test_nothing_is_taken_before_start() -> None:
    async def main() -> None:
        scheduler = ReadScheduler(FakeDisk(), ReadQueue(queue_depth=1, max_bytes_in_flight=1))
        with pytest.raises(ClosedError, match="not running"):
            submit(scheduler, "a")
        await scheduler.close()

    run(main)


def test_waiting_time_is_what_callers_report() -> None:
    async def main() -> None:
        _, scheduler = await started()
        scheduler.add_wait(0.25)
        scheduler.add_wait(0.5)
        assert scheduler.statistics().io_wait_s == 0.75
        await scheduler.close()

    run(main)

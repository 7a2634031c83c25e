"""The compute threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

import pytest

from waste.errors import ClosedError
from waste.kernels.workers import Done, Job, Stage, Workers

TIMEOUT_S = 20


@pytest.fixture(params=[1, 2, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(request.param)
    yield workers
    workers.close()
    assert not compute_threads()


def submit(workers: Workers, jobs: Sequence[Job], done: Done) -> None:
    """One stage of jobs."""
    workers.submit([Stage("test", jobs)], done)


def compute_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("waste-compute-")]


class Ending:
    """A `done` that can be waited for, and counts."""

    def __init__(self) -> None:
        self.calls: list[BaseException | None] = []
        self.thread = ""
        self._ended = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.calls.append(error)
        self.thread = threading.current_thread().name
        self._ended.set()

    def wait(self) -> BaseException | None:
        assert self._ended.wait(TIMEOUT_S)
        return self.calls[0]


def test_runs_every_job_once_and_then_done(workers: Workers) -> None:
    ran: list[tuple[int, int, str]] = []

    def job(number: int, index: int) -> None:
        ran.append((number, index, threading.current_thread().name))

    ending = Ending()
    submit(workers, [lambda index, n=n: job(n, index) for n in range(20)], ending)
    assert ending.wait() is None
    assert sorted(number for number, _, _ in ran) == list(range(20))
    assert all(0 <= index < workers.threads and name == f"waste-compute-{index}" for _, index, name in ran)
    assert ending.thread in compute_threads()
    workers.close()
    assert len(ending.calls) == 1


def test_done_waits_for_the_last_job() -> None:
    workers, gate, ending, quick = Workers(2), threading.Event(), Ending(), threading.Event()
    submit(workers, [lambda index: gate.wait(TIMEOUT_S), lambda index: quick.set()], ending)
    assert quick.wait(TIMEOUT_S)
    assert ending.calls == []
    gate.set()
    assert ending.wait() is None
    workers.close()


def test_jobs_run_side_by_side_each_with_its_own_index() -> None:
    workers, together, ending = Workers(3), threading.Barrier(3), Ending()
    indices: list[int] = []

    def job(index: int) -> None:
        together.wait(TIMEOUT_S)
        indices.append(index)

    submit(workers, [job] * 3, ending)
    assert ending.wait() is None
    assert sorted(indices) == [0, 1, 2]
    workers.close()


def test_without_jobs_done_is_called_at_once(workers: Workers) -> None:
    ending = Ending()
    submit(workers, [], ending)
    assert ending.calls == [None]
    assert ending.thread == threading.current_thread().name


def test_the_first_error_is_reported_after_all_jobs_have_run() -> None:
    workers, ending, after = Workers(1), Ending(), Ending()
    ran: list[int] = []

    def fail(index: int) -> None:
        raise ArithmeticError("first")

    def fail_later(index: int) -> None:
        raise ArithmeticError("second")

    submit(workers, [fail, fail_later, ran.append], ending)
    submit(workers, [ran.append], after)
    assert str(ending.wait()) == "first"
    assert after.wait() is None
    workers.close()
    assert ran == [0, 0]
    assert (len(ending.calls), len(after.calls)) == (1, 1)


def test_submissions_run_first_in_first_out() -> None:
    workers, order = Workers(1), SimpleQueue[int]()
    gate = threading.Event()
    submit(workers, [lambda index: gate.wait(TIMEOUT_S)], lambda error: order.put(-1))
    for number in range(10):
        submit(workers, [lambda index: None] * 3, lambda error, n=number: order.put(n))
    gate.set()
    assert [order.get(timeout=TIMEOUT_S) for _ in range(11)] == list(range(-1, 10))
    workers.close()


def test_done_may_submit_more(workers: Workers) -> None:
    ending = Ending()

    def step(left: int) -> None:
        if left == 0:
            ending(None)
        else:
            submit(workers, [lambda index: None] * 2, lambda error: step(left - 1))

    step(50)
    assert ending.wait() is None


@pytest.mark.parametrize("fails", [False, True])
def test_when_done_is_called_no_thread_holds_a_job(workers: Workers, fails: bool) -> None:
    class Buffer:
        pass

    buffer, ended = Buffer(), threading.Event()
    alive = weakref.ref(buffer)

    def job(index: int, buffer: Buffer = buffer) -> None:
        if fails:
            raise ArithmeticError

    def done(error: BaseException | None) -> None:
        assert (error is not None) == fails
        # The traceback of the error that is handed over is the receiver's to keep or drop.
        if error is not None:
            error.__traceback__ = None
        ended.set()

    jobs = [job] * (1 if fails else 5)
    submit(workers, jobs, done)
    del buffer, job, jobs
    assert ended.wait(TIMEOUT_S)
    gc.collect()
    assert alive() is None


def test_an_error_in_done_is_shown_and_the_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: shown.append(str(hook.exc_value)))
    workers, ending = Workers(1), Ending()

    def broken(error: BaseException | None) -> None:
        raise RuntimeError("the loop is closed")

    submit(workers, [lambda index: None], broken)
    submit(workers, [lambda index: None], ending)
    assert ending.wait() is None
    assert shown == ["the loop is closed"]
    workers.close()


def test_close_lets_submitted_jobs_finish_and_refuses_more() -> None:
    workers, gate, endings = Workers(2), threading.Event(), [Ending() for _ in range(5)]
    for ending in endings:
        submit(workers, [lambda index: gate.wait(TIMEOUT_S)] * 2, ending)
    closer = threading.Thread(target=workers.close)
    closer.start()
    gate.set()
    closer.join(TIMEOUT_S)
    assert [ending.calls for ending in endings] == [[None]] * 5
    assert not compute_threads()
    workers.close()
    for jobs in ([], [lambda index: None]):
        with pytest.raises(ClosedError, match="compute threads were closed"):
            submit(workers, jobs, endings[0])
    assert endings[0].calls == [None]


def test_many_submitters(workers: Workers) -> None:
    counted = [0] * workers.threads  # by thread index, so that no two jobs share one
    endings = [Ending() for _ in range(200)]

    def job(index: int) -> None:
        counted[index] += 1

    def submit_all(own: list[Ending]) -> None:
        for ending in own:
            submit(workers, [job] * 4, ending)

    submitters = [threading.Thread(target=submit_all, args=(endings[i::4],)) for i in range(4)]
    for thread in submitters:
        thread.start()
    for ending in endings:
        assert ending.wait() is None
    for thread in submitters:
        thread.join()
    statistics = workers.statistics()
    assert sum(counted) == statistics.jobs == 800
    assert all(len(ending.calls) == 1 for ending in endings)


def test_statistics_count_jobs_and_the_time_in_them() -> None:
    workers, ending = Workers(2), Ending()
    assert workers.statistics().jobs == 0
    pause = threading.Event()

    def fail(index: int) -> None:
        pause.wait(0.02)
        raise ArithmeticError

    submit(workers, [lambda index: pause.wait(0.02), fail], ending)
    ending.wait()
    statistics = workers.statistics()
    assert (statistics.threads, statistics.jobs) == (2, 2)
    assert 0.04 <= statistics.busy_s + 1e-3 < 2 * TIMEOUT_S
    workers.close()


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="found 0, expected at least 1"):
        Workers(0)


def test_a_stage_begins_when_the_one_before_has_ended(workers: Workers) -> None:
    ending, order = Ending(), SimpleQueue[str]()

    def job(name: str) -> Job:
        return lambda index: order.put(name)

    stages = [
        Stage("a", [job("a")] * 3, then=lambda: order.put("then")),
        Stage("none", []),
        Stage("b", [job("b")] * 4),
    ]
    workers.submit(stages, ending)
    assert ending.wait() is None
    assert [order.get_nowait() for _ in range(8)] == ["a"] * 3 + ["then"] + ["b"] * 4
    assert workers.statistics().busy_s_by_family.keys() == {"a", "b"}


def test_after_an_error_no_stage_begins_but_its_own_ends_whole(workers: Workers) -> None:
    ending, ran = Ending(), list[str]()

    def fail(index: int) -> None:
        raise ArithmeticError("broken")

    own = [fail, lambda index: ran.append("own"), lambda index: ran.append("own")]
    workers.submit(
        [Stage("a", own, then=lambda: ran.append("then")), Stage("b", [lambda index: ran.append("b")])], ending
    )
    assert str(ending.wait()) == "broken"
    workers.close()
    assert ran == ["own", "own"]


def test_a_cancelled_batch_ends_with_the_stage_under_way(workers: Workers) -> None:
    ending, gate, ran = Ending(), threading.Event(), list[str]()

    def wait(index: int) -> None:
        gate.wait(TIMEOUT_S)
        ran.append("a")

    batch = workers.submit([Stage("a", [wait, wait]), Stage("b", [lambda index: ran.append("b")])], ending)
    batch.cancel()
    gate.set()
    assert ending.wait() is None
    workers.close()
    assert ran == ["a", "a"]


def test_stages_that_begin_while_the_threads_close_are_finished(workers: Workers) -> None:
    ending, gate, ran = Ending(), threading.Event(), list[int]()
    workers.submit([Stage("a", [lambda index: gate.wait(TIMEOUT_S)])] + [Stage("b", [ran.append] * 5)] * 20, ending)
    closer = threading.Thread(target=workers.close)
    closer.start()
    gate.set()
    closer.join(TIMEOUT_S)
    assert ending.calls == [None]
    assert len(ran) == 100


def test_a_watch_sees_every_job() -> None:
    workers, ending, seen = Workers(2), Ending(), list[tuple[int, str, float, float]]()
    workers.watch = lambda *job: seen.append(job)
    workers.submit([Stage("a", [lambda index: None] * 3), Stage("b", [lambda index: None])], ending)
    ending.wait()
    workers.close()
    assert [family for _, family, _, _ in seen] == ["a", "a", "a", "b"]
    assert all(index in (0, 1) and began <= ended for index, _, began, ended in seen)


def test_a_batch_waits_for_those_it_comes_after(workers: Workers) -> None:
    order, gate = SimpleQueue[str](), threading.Event()
    first, second, third, fourth = (Ending() for _ in range(4))

    def held(index: int) -> None:
        gate.wait(TIMEOUT_S)
        order.put("first")

    one = workers.submit([Stage("a", [held])], first)
    two = workers.submit([Stage("a", []), Stage("a", [])], second)
    three = workers.submit([Stage("b", [lambda index: order.put("third")] * 3)], third, after=[one, two])
    workers.submit([Stage("c", [lambda index: order.put("fourth")])], fourth, after=[three, one])
    assert (third.calls, fourth.calls) == ([], [])
    gate.set()
    assert [ending.wait() for ending in (first, second, third, fourth)] == [None] * 4
    assert [order.get_nowait() for _ in range(5)] == ["first", "third", "third", "third", "fourth"]


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_what_comes_after_a_broken_batch_is_left_out(workers: Workers, is_over: bool, fails: bool) -> None:
    gate, ran = threading.Event(), list[int]()
    first, second, third = (Ending() for _ in range(3))

    def held(index: int) -> None:
        gate.wait(TIMEOUT_S)
        if fails:
            raise ArithmeticError("broken")

    one = workers.submit([Stage("a", [held]), Stage("a", [ran.append])], first)
    if not fails:
        one.cancel()
    if is_over:
        gate.set()
        first.wait()
    two = workers.submit([Stage("b", [ran.append])], second, after=[one])
    workers.submit([Stage("c", [ran.append])], third, after=[two])
    gate.set()
    assert str(first.wait()) == ("broken" if fails else "None")
    assert (second.wait(), third.wait(), ran) == (None, None, [])


def test_those_that_wait_are_finished_when_the_threads_close(workers: Workers) -> None:
    gate, ran, endings = threading.Event(), list[int](), [Ending() for _ in range(20)]
    last = workers.submit([Stage("a", [lambda index: gate.wait(TIMEOUT_S)])], Ending())
    for ending in endings:
        last = workers.submit([Stage("b", [ran.append] * 4)], ending, after=[last])
    closer = threading.Thread(target=workers.close)
    closer.start()
    gate.set()
    closer.join(TIMEOUT_S)
    assert not compute_threads()
    assert [ending.calls for ending in endings] == [[None]] * 20
    assert len(ran) == 80


def test_an_error_of_what_follows_a_stage_is_one_of_the_batch(workers: Workers) -> None:
    ending, after, ran = Ending(), Ending(), list[int]()

    def broken() -> None:
        raise ArithmeticError("broken")

    batch = workers.submit([Stage("a", [lambda index: None], then=broken), Stage("b", [ran.append])], ending)
    workers.submit([Stage("c", [ran.append])], after, after=[batch])
    assert (str(ending.wait()), after.wait(), ran) == ("broken", None, [])

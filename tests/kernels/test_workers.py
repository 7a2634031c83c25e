"""The compute threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from waste.errors import ClosedError
from waste.kernels.workers import Workers

TIMEOUT_S = 20


@pytest.fixture(params=[1, 2, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(request.param)
    yield workers
    workers.close()
    assert not compute_threads()


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
    workers.submit([lambda index, n=n: job(n, index) for n in range(20)], ending)
    assert ending.wait() is None
    assert sorted(number for number, _, _ in ran) == list(range(20))
    assert all(0 <= index < workers.threads and name == f"waste-compute-{index}" for _, index, name in ran)
    assert ending.thread in compute_threads()
    workers.close()
    assert len(ending.calls) == 1


def test_done_waits_for_the_last_job() -> None:
    workers, gate, ending, quick = Workers(2), threading.Event(), Ending(), threading.Event()
    workers.submit([lambda index: gate.wait(TIMEOUT_S), lambda index: quick.set()], ending)
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

    workers.submit([job] * 3, ending)
    assert ending.wait() is None
    assert sorted(indices) == [0, 1, 2]
    workers.close()


def test_without_jobs_done_is_called_at_once(workers: Workers) -> None:
    ending = Ending()
    workers.submit([], ending)
    assert ending.calls == [None]
    assert ending.thread == threading.current_thread().name


def test_the_first_error_is_reported_after_all_jobs_have_run() -> None:
    workers, ending, after = Workers(1), Ending(), Ending()
    ran: list[int] = []

    def fail(index: int) -> None:
        raise ArithmeticError("first")

    def fail_later(index: int) -> None:
        raise ArithmeticError("second")

    workers.submit([fail, fail_later, ran.append], ending)
    workers.submit([ran.append], after)
    assert str(ending.wait()) == "first"
    assert after.wait() is None
    workers.close()
    assert ran == [0, 0]
    assert (len(ending.calls), len(after.calls)) == (1, 1)


def test_submissions_run_first_in_first_out() -> None:
    workers, order = Workers(1), SimpleQueue[int]()
    gate = threading.Event()
    workers.submit([lambda index: gate.wait(TIMEOUT_S)], lambda error: order.put(-1))
    for number in range(10):
        workers.submit([lambda index: None] * 3, lambda error, n=number: order.put(n))
    gate.set()
    assert [order.get(timeout=TIMEOUT_S) for _ in range(11)] == list(range(-1, 10))
    workers.close()


def test_done_may_submit_more(workers: Workers) -> None:
    ending = Ending()

    def step(left: int) -> None:
        if left == 0:
            ending(None)
        else:
            workers.submit([lambda index: None] * 2, lambda error: step(left - 1))

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
    workers.submit(jobs, done)
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

    workers.submit([lambda index: None], broken)
    workers.submit([lambda index: None], ending)
    assert ending.wait() is None
    assert shown == ["the loop is closed"]
    workers.close()


def test_close_lets_submitted_jobs_finish_and_refuses_more() -> None:
    workers, gate, endings = Workers(2), threading.Event(), [Ending() for _ in range(5)]
    for ending in endings:
        workers.submit([lambda index: gate.wait(TIMEOUT_S)] * 2, ending)
    closer = threading.Thread(target=workers.close)
    closer.start()
    gate.set()
    closer.join(TIMEOUT_S)
    assert [ending.calls for ending in endings] == [[None]] * 5
    assert not compute_threads()
    workers.close()
    for jobs in ([], [lambda index: None]):
        with pytest.raises(ClosedError, match="compute threads were closed"):
            workers.submit(jobs, endings[0])
    assert endings[0].calls == [None]


def test_many_submitters(workers: Workers) -> None:
    counted = [0] * workers.threads  # by thread index, so that no two jobs share one
    endings = [Ending() for _ in range(200)]

    def job(index: int) -> None:
        counted[index] += 1

    def submit(own: list[Ending]) -> None:
        for ending in own:
            workers.submit([job] * 4, ending)

    submitters = [threading.Thread(target=submit, args=(endings[i::4],)) for i in range(4)]
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

    workers.submit([lambda index: pause.wait(0.02), fail], ending)
    ending.wait()
    statistics = workers.statistics()
    assert (statistics.threads, statistics.jobs) == (2, 2)
    assert 0.04 <= statistics.busy_s + 1e-3 < 2 * TIMEOUT_S
    workers.close()


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="found 0, expected at least 1"):
        Workers(0)

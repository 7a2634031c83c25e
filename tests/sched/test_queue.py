from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.sched.fakes import piece, pieces
from waste.errors import ClosedError, ReadError
from waste.io.extents import Placement
from waste.sched.priority import Kind, Priority
from waste.sched.queue import ReadQueue, Request


def add(
    queue: ReadQueue,
    key: Hashable,
    placement: Placement | None = None,
    priority: Priority = Priority.DEMAND,
    kind: Kind = "experts",
) -> Request:
    placement = placement or piece(0, 16)
    buffer = memoryview(bytearray(placement.buffer_bytes))
    return queue.submit(key, kind=kind, placement=placement, buffer=buffer, priority=priority)


def started(queue: ReadQueue) -> list[Hashable]:
    return [request.key for request in queue.take().started]


def test_order_is_priority_then_first_come() -> None:
    queue = ReadQueue(queue_depth=100, max_bytes_in_flight=1 << 20)
    for number, priority in enumerate((3, 1, 2, 0, 1, 0)):
        add(queue, number, priority=Priority(priority))
    assert started(queue) == [3, 5, 1, 4, 2, 0]
    queue.check_integrity()


def test_promotion_goes_to_the_end_of_the_more_urgent_line() -> None:
    queue = ReadQueue(queue_depth=100, max_bytes_in_flight=1 << 20)
    add(queue, "ahead", priority=Priority.LOOKAHEAD)
    add(queue, "first")
    queue.promote("ahead", Priority.DEMAND)
    add(queue, "second")
    queue.promote("second", Priority.BACKGROUND)  # never less urgent
    queue.promote("unknown", Priority.DEMAND)
    queue.check_integrity()
    assert started(queue) == ["first", "ahead", "second"]
    assert queue.statistics().promoted == 1
    assert queue.statistics().reads[Priority.DEMAND] == 3


def test_joining_promotes_and_reads_once() -> None:
    queue = ReadQueue(queue_depth=1, max_bytes_in_flight=1 << 20)
    request = add(queue, "a", priority=Priority.LOOKAHEAD)
    assert add(queue, "a", priority=Priority.DEMAND) is request
    assert request.priority is Priority.DEMAND
    (op,) = queue.take().ops
    assert add(queue, "a") is request  # in flight
    assert queue.complete(op.token, None) is request
    assert queue.statistics().joined == 2
    assert queue.statistics().bytes_read["experts"] == 16
    assert add(queue, "a") is not request  # over: read again


def test_depth_and_bytes_bound_what_is_in_flight() -> None:
    queue = ReadQueue(queue_depth=3, max_bytes_in_flight=100)
    for number in range(3):
        add(queue, number, piece(0, 48))
    assert started(queue) == [0, 1]
    add(queue, "small", piece(0, 16))
    assert started(queue) == []  # the head is not overtaken although the small one would fit
    queue.complete(0, None)
    assert started(queue) == [2]
    queue.complete(1, None)
    assert started(queue) == ["small"]
    assert queue.statistics().peak_bytes_in_flight == 96
    assert queue.statistics().peak_reads_in_flight == 2


def test_a_read_above_the_byte_limit_goes_alone() -> None:
    queue = ReadQueue(queue_depth=8, max_bytes_in_flight=100)
    add(queue, "small")
    add(queue, "large", piece(0, 160))
    add(queue, "next")
    assert started(queue) == ["small"]
    queue.complete(0, None)
    assert started(queue) == ["large"]
    queue.check_integrity()
    queue.complete(1, None)
    assert started(queue) == ["next"]


def test_a_request_of_several_reads_finishes_with_the_last() -> None:
    queue = ReadQueue(queue_depth=2, max_bytes_in_flight=1 << 20)
    request = add(queue, "a", pieces((0, 16), (64, 16), (128, 16)))
    first, second = queue.take().ops
    assert (first.offset, second.offset) == (0, 64)
    assert not queue.drop("a")
    assert queue.complete(first.token, None) is None
    assert queue.complete(second.token, None) is None
    (third,) = queue.take().ops
    assert third.offset == 128
    assert queue.complete(third.token, None) is request
    assert request.error is None


def test_an_error_waits_for_reads_in_flight_and_stops_the_rest() -> None:
    queue = ReadQueue(queue_depth=2, max_bytes_in_flight=1 << 20)
    request = add(queue, "a", pieces((0, 16), (64, 16), (128, 16)))
    first, second = queue.take().ops
    assert queue.complete(second.token, ReadError("first to fail")) is None
    assert queue.take().ops == []
    queue.check_integrity()
    assert queue.complete(first.token, ReadError("later")) is request
    assert str(request.error) == "first to fail"
    queue.check_integrity()


def test_drop_takes_back_only_what_was_not_issued() -> None:
    queue = ReadQueue(queue_depth=1, max_bytes_in_flight=1 << 20)
    add(queue, "a")
    add(queue, "b")
    queue.take()
    assert not queue.drop("a")
    assert queue.drop("b")
    assert not queue.drop("b")
    queue.complete(0, None)
    assert started(queue) == []


def test_stop_ends_the_queued_and_lets_the_issued_return() -> None:
    queue = ReadQueue(queue_depth=1, max_bytes_in_flight=1 << 20)
    partly = add(queue, "partly", pieces((0, 16), (64, 16)))
    never = add(queue, "never")
    (op,) = queue.take().ops
    assert queue.stop(ClosedError("closed")) == [never]
    assert queue.take().ops == []
    assert queue.complete(op.token, None) is partly
    assert isinstance(partly.error, ClosedError)
    queue.check_integrity()


def test_what_cannot_be_read_is_refused() -> None:
    queue = ReadQueue(queue_depth=1, max_bytes_in_flight=1)
    with pytest.raises(ValueError, match="do not fit a buffer of 8 bytes"):
        queue.submit("a", kind="other", placement=piece(0, 16), buffer=memoryview(bytearray(8)), priority=Priority(0))
    with pytest.raises(ValueError, match="0 reads"):
        add(queue, "a", pieces())
    with pytest.raises(KeyError):
        queue.complete(7, None)
    with pytest.raises(ValueError, match="depth 0"):
        ReadQueue(queue_depth=0, max_bytes_in_flight=1)


class QueueMachine(RuleBasedStateMachine):
    """Any order of calls, beside a plain list sorted by (priority, turn)."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ReadQueue(queue_depth=3, max_bytes_in_flight=120)
        self.turn = 0
        self.waiting: dict[int, tuple[Priority, int]] = {}  # key -> (priority, turn), not wholly issued
        self.sizes: dict[int, list[int]] = {}  # key -> lengths of its reads not issued yet
        self.flying: dict[int, tuple[int, int]] = {}  # token -> (key, length)
        self.issued: set[int] = set()
        self.failed: set[int] = set()
        self.finished: set[int] = set()
        self.submitted = 0

    @rule(sizes=st.lists(st.sampled_from([16, 48, 160]), min_size=1, max_size=3), priority=st.sampled_from(Priority))
    def submit(self, sizes: list[int], priority: Priority) -> None:
        key = self.submitted
        self.submitted += 1
        placement = pieces(*((index * 1024, size) for index, size in enumerate(sizes)))
        add(self.queue, key, placement, priority)
        self.sizes[key] = list(sizes)
        self.waiting[key] = (priority, self.turn)
        self.turn += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def promote(self, data: st.DataObject, priority: Priority) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.promote(key, priority)
        if priority < self.waiting[key][0]:
            self.waiting[key] = (priority, self.turn)
            self.turn += 1

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.integers(0, self.submitted - 1))
        could = key in self.waiting and key not in self.issued
        assert self.queue.drop(key) == could
        if could:
            del self.waiting[key]
            self.finished.add(key)

    @rule()
    def take(self) -> None:
        ops = self.queue.take().ops
        expected = []
        in_flight = [length for _, length in self.flying.values()]
        for key in sorted(self.waiting, key=self.waiting.__getitem__):
            while self.sizes[key]:
                size = self.sizes[key][0]
                if len(in_flight) == 3 or (in_flight and sum(in_flight) + size > 120):
                    break
                expected.append((key, self.sizes[key].pop(0)))
                in_flight.append(size)
            if self.sizes[key]:
                break
        assert [op.length for op in ops] == [size for _, size in expected]
        for op, (key, size) in zip(ops, expected, strict=True):
            self.flying[op.token] = (key, size)
            self.issued.add(key)
            if not self.sizes[key]:
                self.waiting.pop(key, None)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), fail=st.booleans())
    def complete(self, data: st.DataObject, fail: bool) -> None:
        token = data.draw(st.sampled_from(sorted(self.flying)))
        key, _ = self.flying.pop(token)
        request = self.queue.complete(token, ReadError("no") if fail else None)
        if fail:
            self.failed.add(key)
            self.waiting.pop(key, None)
            self.sizes[key] = []
        over = key not in self.waiting and all(other != key for other, _ in self.flying.values())
        assert (request is not None) == over
        if request is not None:
            assert request.key == key
            assert (request.error is not None) == (key in self.failed)
            self.finished.add(key)

    @invariant()
    def laws_hold(self) -> None:
        self.queue.check_integrity()

    def teardown(self) -> None:
        while self.waiting or self.flying:
            self.take()
            token = next(iter(self.flying))
            key, _ = self.flying.pop(token)
            if self.queue.complete(token, None) is not None:
                self.finished.add(key)
        assert self.finished == set(range(self.submitted))


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase

"""Which read goes to the device next: one queue by priority, bounded by reads and by bytes in flight.

Nothing here waits, measures time or touches a file. Requests go in, `take` says what to issue now, and
`complete` takes the device's answers back. `scheduler.py` carries it out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from waste.errors import ReadError, WasteError
from waste.io.backends.base import ReadOp
from waste.io.extents import Placement
from waste.sched.priority import KINDS, Kind, Priority


class Request:
    """The reads of one placement into one buffer. `error` is the first one, known for good once finished."""

    __slots__ = ("buffer", "error", "in_flight", "issued", "key", "kind", "placement", "priority")

    def __init__(self, key: Hashable, kind: Kind, placement: Placement, buffer: memoryview, priority: Priority) -> None:
        self.key = key
        self.kind = kind
        self.placement = placement
        self.buffer = buffer
        self.priority = priority
        self.issued = 0
        self.in_flight = 0
        self.error: WasteError | None = None

    @property
    def is_issued(self) -> bool:
        """Whether the device was asked for any of it, so that the buffer is no longer its owner's to reuse."""
        return self.issued > 0


class Issue(NamedTuple):
    """What to hand to the device, and the requests of which this is the first part."""

    ops: list[ReadOp]
    started: list[Request]


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Reads and bytes are what was asked from the device, alignment included; requests may have several reads.

    bytes_read: by kind. reads: by the priority they were issued at. queued: requests with something left to
    issue. peak_requests: most that were under way, queued or in flight. joined: submits that found their key
    under way. promoted: requests that moved ahead while queued. dropped: those taken back before they were issued.
    """

    bytes_read: Mapping[Kind, int]
    reads: Mapping[Priority, int]
    queued: int
    reads_in_flight: int
    bytes_in_flight: int
    peak_requests: int
    peak_reads_in_flight: int
    peak_bytes_in_flight: int
    joined: int
    promoted: int
    dropped: int


class ReadQueue:
    """Requests in the order DEMAND, RING, LOOKAHEAD, BACKGROUND, first come first served within one priority.

    queue_depth: most reads in flight. max_bytes_in_flight: most bytes in flight, except that a single read above
    it goes alone. The request at the head is never overtaken, so a large one is not starved by small ones.
    """

    def __init__(self, *, queue_depth: int, max_bytes_in_flight: int) -> None:
        if queue_depth < 1 or max_bytes_in_flight < 1:
            raise ValueError(f"a queue needs room for a read, got depth {queue_depth} and {max_bytes_in_flight} bytes")
        self.queue_depth = queue_depth
        self.max_bytes_in_flight = max_bytes_in_flight
        self._lines: tuple[OrderedDict[Hashable, Request], ...] = tuple(OrderedDict() for _ in Priority)
        self._requests: dict[Hashable, Request] = {}
        self._in_flight: dict[int, tuple[Request, int]] = {}
        self._bytes_in_flight = 0
        self._next_token = 0
        self._bytes_read = dict.fromkeys(KINDS, 0)
        self._reads = [0] * len(Priority)
        self._peak_requests = self._peak_reads = self._peak_bytes = 0
        self._joined = self._promoted = self._dropped = 0

    def submit(
        self, key: Hashable, *, kind: Kind, placement: Placement, buffer: memoryview, priority: Priority
    ) -> Request:
        """Queue the reads of `placement`, or join the request of this key that is under way.

        A request joined is promoted if `priority` is more urgent; its own buffer is the one that gets the bytes.

        Raises ValueError if there is nothing to read or the buffer is too small.
        """
        request = self._requests.get(key)
        if request is not None:
            self._joined += 1
            self.promote(key, priority)
            return request
        if not placement.reads or buffer.nbytes < placement.buffer_bytes:
            raise ValueError(
                f"{key!r}: {len(placement.reads)} reads of {placement.buffer_bytes} bytes in all "
                f"do not fit a buffer of {buffer.nbytes} bytes"
            )
        request = Request(key, kind, placement, buffer, priority)
        self._requests[key] = request
        self._lines[priority][key] = request
        if len(self._requests) > self._peak_requests:
            self._peak_requests = len(self._requests)
        return request

    def promote(self, key: Hashable, priority: Priority) -> None:
        """Move a request to the end of a more urgent line; nothing if it is as urgent, issued or unknown."""
        request = self._requests.get(key)
        if request is None or priority >= request.priority:
            return
        if self._lines[request.priority].pop(key, None) is not None:
            self._lines[priority][key] = request
            self._promoted += 1
        request.priority = priority

    def drop(self, key: Hashable) -> bool:
        """Take a request back. False, and nothing happens, if any of it was issued or the key is unknown."""
        request = self._requests.get(key)
        if request is None or request.is_issued:
            return False
        del self._requests[key]
        del self._lines[request.priority][key]
        self._dropped += 1
        return True

    def take(self) -> Issue:
        """Everything that may go to the device now, in order."""
        issue = Issue([], [])
        if len(self._in_flight) >= self.queue_depth:
            return issue
        for line in self._lines:
            while line:
                request = next(iter(line.values()))
                if not self._take_reads(request, issue):
                    return issue
                line.popitem(last=False)
        return issue

    def complete(self, token: int, error: ReadError | None) -> Request | None:
        """A read has returned. The request, once nothing of it is queued or in flight any more, else None.

        After an error the rest of the request is not issued. Raises KeyError for a token not in flight.
        """
        request, length = self._in_flight.pop(token)
        self._bytes_in_flight -= length
        request.in_flight -= 1
        if error is not None:
            request.error = request.error or error
            self._lines[request.priority].pop(request.key, None)
        if request.in_flight or request.key in self._lines[request.priority]:
            return None
        del self._requests[request.key]
        return request

    def request_of(self, token: int) -> Request:
        """Whose read this is. Raises KeyError for a token not in flight."""
        return self._in_flight[token][0]

    def stop(self, error: WasteError) -> list[Request]:
        """Issue nothing more. The requests that never were issued; the others finish with `error`."""
        dropped = []
        for line in self._lines:
            for request in line.values():
                request.error = request.error or error
                if not request.is_issued:
                    del self._requests[request.key]
                    dropped.append(request)
            line.clear()
        self._dropped += len(dropped)
        return dropped

    @property
    def queued(self) -> int:
        """Requests of which something is still to be issued."""
        return sum(map(len, self._lines))

    def statistics(self) -> QueueStatistics:
        """See `QueueStatistics`."""
        return QueueStatistics(
            bytes_read=dict(self._bytes_read),
            reads={priority: self._reads[priority] for priority in Priority},
            queued=self.queued,
            reads_in_flight=len(self._in_flight),
            bytes_in_flight=self._bytes_in_flight,
            peak_requests=self._peak_requests,
            peak_reads_in_flight=self._peak_reads,
            peak_bytes_in_flight=self._peak_bytes,
            joined=self._joined,
            promoted=self._promoted,
            dropped=self._dropped,
        )

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every request is queued or in flight and the bounds and sums hold."""
        lengths = [length for _, length in self._in_flight.values()]
        flying: dict[Request, int] = {}
        for request, _ in self._in_flight.values():
            flying[request] = flying.get(request, 0) + 1
        queued = {request: priority for priority in Priority for request in self._lines[priority].values()}
        laws = {
            "bytes in flight add up": sum(lengths) == self._bytes_in_flight,
            "no more reads in flight than the depth": len(lengths) <= self.queue_depth,
            "no more bytes in flight than the limit": sum(lengths) <= self.max_bytes_in_flight or len(lengths) == 1,
            "requests are the queued and the flying": set(self._requests.values()) == queued.keys() | flying,
            "keys are theirs": all(key == request.key for key, request in self._requests.items()),
            "each is in the line of its priority": all(r.priority == p for r, p in queued.items()),
            "queued requests have reads left": all(r.issued < len(r.placement.reads) for r in queued),
            "reads in flight are counted": all(r.in_flight == flying.get(r, 0) for r in self._requests.values()),
        }
        broken = [law for law, holds in laws.items() if not holds]
        if broken:
            raise RuntimeError(f"the read queue broke: {'; '.join(broken)}")

    def _take_reads(self, request: Request, issue: Issue) -> bool:
        """Issue what fits of one request; False if some of it did not."""
        reads = request.placement.reads
        while request.issued < len(reads):
            read = reads[request.issued]
            in_flight = len(self._in_flight)
            if in_flight >= self.queue_depth or (
                in_flight and self._bytes_in_flight + read.length > self.max_bytes_in_flight
            ):
                return False
            if not request.issued:
                issue.started.append(request)
            token = self._next_token
            part = request.buffer[read.at : read.at + read.length]
            issue.ops.append(ReadOp(token, read.file, read.offset, read.length, read.need, part))
            self._next_token = token + 1
            self._in_flight[token] = request, read.length
            self._bytes_in_flight += read.length
            request.issued += 1
            request.in_flight += 1
            self._bytes_read[request.kind] += read.length
            self._reads[request.priority] += 1
            if in_flight >= self._peak_reads:
                self._peak_reads = in_flight + 1
            if self._bytes_in_flight > self._peak_bytes:
                self._peak_bytes = self._bytes_in_flight
        return True

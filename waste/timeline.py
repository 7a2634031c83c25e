"""What an engine did and when, for Perfetto or chrome://tracing: reads, jobs of threads, layers, the loop's time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from struct import Struct
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from waste.sched.priority import Kind, Priority

MOST_EVENTS = 1_000_000
_EVENT = Struct("<HHQdd")
MOST_BYTES = MOST_EVENTS * _EVENT.size * 9 // 8
"""Memory that so many take: an eighth is allocated ahead."""
_FIELDS = np.dtype([("lane", "<u2"), ("name", "<u2"), ("value", "<u8"), ("began", "<f8"), ("ended", "<f8")])
_NOTES, _STEPS, _LAYERS, _WAITS, _LOOP, _READS, _THREADS = 0, 1, 2, 3, 4, 8, 16
_LANES = {_NOTES: "runs", _STEPS: "steps", _LAYERS: "layers", _WAITS: "waits for bytes", _LOOP: "event loop"}
_VALUES = {_STEPS: "tokens", **{_READS + priority: "bytes" for priority in Priority}}
_WRITTEN = 4096
"""Events that become text at once."""


class Timeline:
    """Give it to `Engine.watch`; several engines may follow each other. Recording is safe from any thread.

    Lanes: steps and the layers in them; the walk's waits for bytes; the event loop's time in the scheduler; a lane for
    each compute thread, its jobs named by the part of the model; reads by priority, from the asking of the device until
    the loop has heard of the bytes. Reads of one priority that overlap are in different lanes, so that in none of the
    lanes two events overlap.

    most_events: how many are kept, the first ones; each takes 28 bytes. dropped: counts the rest. has_steps: whether a
    step has ended, however; before that there is little to see.
    """

    def __init__(self, *, most_events: int = MOST_EVENTS) -> None:
        self._room = most_events * _EVENT.size
        self._events = bytearray()
        self._names: dict[str, int] = {}
        self._lock = Lock()
        self._step: tuple[int, float] | None = None
        self._place: tuple[str, float] | None = None
        self.has_steps = False
        self.dropped = 0

    @property
    def events(self) -> int:
        """How many are kept."""
        return len(self._events) // _EVENT.size

    def job(self, thread: int, family: str, began: float, ended: float) -> None:
        """See `kernels.workers.Watch`."""
        self._put(_THREADS + thread, family, began, ended)

    def read(self, kind: Kind, priority: Priority, size: int, began: float, ended: float) -> None:
        """See `sched.scheduler.Watcher`."""
        self._put(_READS + priority, kind, began, ended, size)

    def loop(self, what: str, began: float, ended: float) -> None:
        """See `sched.scheduler.Watcher`."""
        self._put(_LOOP, what, began, ended)

    def waited(self, seconds: float) -> None:
        """See `sched.scheduler.Watcher`."""
        now = perf_counter()
        self._put(_WAITS, "wait", now - seconds, now)

    def walk(self, what: str | None, number: int) -> None:
        """See `model.decoder.WalkWatch`."""
        now = perf_counter()
        if self._place is not None:
            self._put(_LAYERS, self._place[0], self._place[1], now)
            self._place = None
        if what is None:
            if self._step is not None:
                self._put(_STEPS, "step", self._step[1], now, self._step[0])
                self._step = None
                self.has_steps = True
            return
        if self._step is None:
            self._step = number, now
        self._place = (f"layer {number}" if what == "layer" else what), now

    def note(self, name: str, began: float, ended: float) -> None:
        """A stretch that has a name of the caller's own, in the lane of runs; these must not overlap either."""
        self._put(_NOTES, name, began, ended)

    def _put(self, lane: int, name: str, began: float, ended: float, value: int = 0) -> None:
        if len(self._events) >= self._room:
            with self._lock:
                self.dropped += 1
            return
        code = self._names.get(name)
        if code is None:
            with self._lock:
                code = self._names.setdefault(name, len(self._names))
        # One call, so that no lock is needed: two threads' events do not mix.
        self._events.extend(_EVENT.pack(lane, code, value, began, ended))

    def pieces(self) -> Iterator[bytes]:
        """The file: a JSON object in Chrome's trace format, in pieces. Times count from the first event.

        Events are written by the time they began, those that end first in front. Changes nothing: recording may go on.
        """
        events: npt.NDArray[Any] = np.frombuffer(bytes(self._events), _FIELDS)
        origin = float(events["began"].min()) if len(events) else 0.0
        # Whole nanoseconds here, and thousandths of the file's microseconds: what did not overlap does not in there.
        began, ended = (np.rint((events[name] - origin) * 1e9).astype(np.int64) for name in ("began", "ended"))
        order = np.lexsort((ended, began))
        lanes, began, ended = events["lane"][order], began[order], ended[order]
        numbers, described = _lanes(lanes, began, ended)
        names = np.array([json.dumps(name) for name in self._names], object)
        other = json.dumps({"dropped_events": self.dropped})
        yield f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n'.encode()
        yield ",\n".join(map(json.dumps, described)).encode()
        codes, values = events["name"][order], events["value"][order]
        for at in range(0, len(order), _WRITTEN):
            part = slice(at, at + _WRITTEN)
            titles, begins, takes = names[codes[part]], began[part] / 1000, (ended - began)[part] / 1000
            columns = (numbers[part], begins, takes, titles, lanes[part], values[part])
            # An interrupt leaves half a second for all of this, so it is done with as little as possible.
            yield "".join(
                [
                    f',\n{{"ph":"X","pid":1,"tid":{number},"ts":{begin},"dur":{took},"name":{title}'
                    + (f',"args":{{"{_VALUES[lane]}":{value}}}}}' if lane in _VALUES else "}")
                    for number, begin, took, title, lane, value in zip(*(c.tolist() for c in columns), strict=True)
                ]
            ).encode()
        yield b"\n]}\n"


def _lanes(
    lanes: npt.NDArray[Any], began: npt.NDArray[np.int64], ended: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], list[dict[str, Any]]]:
    """For each event, by its beginning, the number of its lane in the file; and the entries that name the lanes."""
    numbers = np.zeros(len(lanes), np.int64)
    described = [_describe("process_name", 0, name="waste")]
    last = 0
    for lane in np.unique(lanes).tolist():
        mine = np.flatnonzero(lanes == lane)
        if _READS <= lane < _THREADS:
            slots = spread(began[mine].tolist(), ended[mine].tolist())
            names = [f"reads: {Priority(lane - _READS).name.lower()} {slot}" for slot in range(max(slots) + 1)]
        else:
            slots, names = [0] * len(mine), [_LANES.get(lane) or f"compute {lane - _THREADS}"]
        numbers[mine] = np.array(slots) + last + 1
        for name in names:
            last += 1
            described.append(_describe("thread_name", last, name=name))
            described.append(_describe("thread_sort_index", last, sort_index=last))
    return numbers, described


def _describe(what: str, number: int, **values: object) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": number, "name": what, "args": values}


def spread(began: Sequence[int], ended: Sequence[int]) -> list[int]:
    """A slot for each stretch, by ascending beginning, so that no two in a slot overlap; the lowest that is free."""
    free_at: list[int] = []
    slots = []
    for begin, end in zip(began, ended, strict=True):
        slot = next((slot for slot, at in enumerate(free_at) if at <= begin), len(free_at))
        if slot == len(free_at):
            free_at.append(end)
        free_at[slot] = end
        slots.append(slot)
    return slots

"""The timeline: what is recorded is in the file, and nothing overlaps in a lane."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.harness import GOLDEN, IDS, STREAMING, feed, load_golden, open_model
from waste.errors import ReadError
from waste.io.backends import register
from waste.io.backends.base import ReadOp
from waste.io.backends.threads import ThreadsBackend, read_fully
from waste.io.files import FileSet
from waste.sched.priority import Priority
from waste.timeline import Timeline, spread

Lanes = dict[str, list[dict[str, Any]]]
LAYERS = len(load_golden("tiny-k3").hidden)


def lanes_of(timeline: Timeline) -> Lanes:
    """The events of its file by the names of lanes, each lane as the file has it; none of them overlap."""
    value = json.loads(b"".join(timeline.pieces()), parse_float=Fraction)
    names = {e["tid"]: e["args"]["name"] for e in value["traceEvents"] if e["name"] == "thread_name"}
    lanes: Lanes = defaultdict(list)
    for event in value["traceEvents"]:
        if event["ph"] == "X":
            lanes[names[event["tid"]]].append(event)
    assert set(lanes) == set(names.values()), "every lane has a name and an event"
    for name, events in lanes.items():
        for before, after in pairwise(events):
            assert before["dur"] >= 0
            assert before["ts"] + before["dur"] <= after["ts"], name
    assert value["otherData"] == {"dropped_events": timeline.dropped}
    assert sum(map(len, lanes.values())) == timeline.events
    return lanes


def reads_in(lanes: Lanes) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, events in lanes.items():
        if name.startswith("reads: "):
            for event in events:
                yield name.split()[1], event


@pytest.mark.parametrize("policy", ["none", "router"])
def test_everything_an_engine_did_is_in_it(policy: str) -> None:
    timeline = Timeline()

    async def main() -> Any:
        engine = open_model(
            "tiny-k3", **STREAMING | {"experts": "200KiB", "prefetch.policy": policy, "io.queue_depth": 4}
        )
        engine.watch(timeline)
        async with engine, engine.session() as session:
            await engine.feed(session, IDS[:5])
            for token in IDS[5:8]:
                await engine.feed(session, [token])
        return engine.stats(), engine._require(closed=True).workers.statistics()

    stats, workers = asyncio.run(main())
    lanes = lanes_of(timeline)
    reads = list(reads_in(lanes))
    assert Counter(name for name, _ in reads) == Counter({name: n for name, n in stats.reads.items() if n})
    for kind, size in stats.bytes_read.items():
        assert sum(event["args"]["bytes"] for _, event in reads if event["name"] == kind) == size
    # As many lanes as reads were ever in flight at one priority.
    assert max(int(name.split()[-1]) for name in lanes if name.startswith("reads: ")) < 4
    jobs = [event for name, events in lanes.items() if name.startswith("compute ") for event in events]
    assert len(jobs) == workers.jobs
    assert {event["name"] for event in jobs} == set(workers.busy_s_by_family)
    assert [event["args"]["tokens"] for event in lanes["steps"]] == [5, 1, 1, 1]
    walk = ["embedding", *(f"layer {layer}" for layer in range(LAYERS)), "head"]
    assert [event["name"] for event in lanes["layers"]] == walk * 4
    for step, at in zip(lanes["steps"], range(0, len(lanes["layers"]), len(walk)), strict=True):
        inside = lanes["layers"][at : at + len(walk)]
        assert step["ts"] == inside[0]["ts"]
        assert step["ts"] + step["dur"] == inside[-1]["ts"] + inside[-1]["dur"]
    assert {event["name"] for event in lanes["event loop"]} == {"reads asked for", "reads returned"}
    assert lanes["waits for bytes"]


def test_what_opening_reads_is_in_it_too() -> None:
    timeline = Timeline()

    async def main() -> Any:
        engine = open_model(GOLDEN / "tiny-k3-vq4p.waste")
        engine.watch(timeline)
        async with engine:
            return engine.stats()

    stats = asyncio.run(main())
    reads = list(reads_in(lanes_of(timeline)))
    assert [event["name"] for _, event in reads if event["name"] == "other"], "its codebooks"
    assert Counter(name for name, _ in reads) == Counter({name: n for name, n in stats.reads.items() if n})
    assert not timeline.has_steps


def test_a_step_that_fails_ends_where_it_failed() -> None:
    timeline, failing = Timeline(), []

    def read(files: FileSet, op: ReadOp) -> int:
        if failing:
            raise OSError("gone")
        return read_fully(files, op)

    register("failing-later", lambda depth: ThreadsBackend(depth, read=read))

    async def main() -> Any:
        async with open_model("tiny-k3", **STREAMING, **{"io.backend": "failing-later"}) as engine:
            engine.watch(timeline)
            async with engine.session() as session:
                await engine.feed(session, IDS[:1])
                failing.append(True)
                with pytest.raises(ReadError):
                    await engine.feed(session, IDS[1:2])
                engine.watch(None)
                kept = timeline.events
                failing.clear()
                await engine.feed(session, IDS[1:2])
                assert timeline.events == kept, "nobody watched that one"

    asyncio.run(main())
    lanes = lanes_of(timeline)
    assert len(lanes["steps"]) == 2
    names = [event["name"] for event in lanes["layers"]]
    assert names.count("embedding") == 2
    assert names.count("head") == 1


def test_watching_changes_no_answer() -> None:
    async def main(timeline: Timeline | None) -> bytes:
        engine = open_model("tiny-k3", **STREAMING)
        engine.watch(timeline)
        async with engine, engine.session() as session:
            return (await feed(engine, session, IDS[:4])).tobytes()

    assert asyncio.run(main(Timeline())) == asyncio.run(main(None))


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    timeline = Timeline(most_events=2)
    for at in range(5):
        timeline.job(0, "kda", at, at + 0.5)
    assert (timeline.events, timeline.dropped) == (2, 3)
    assert [event["ts"] for event in lanes_of(timeline)["compute 0"]] == [0, 1_000_000]


def test_reads_that_overlap_get_lanes_of_their_own() -> None:
    assert spread([0, 1, 2, 3, 3], [3, 2, 5, 4, 3]) == [0, 1, 1, 0, 2]
    assert spread([], []) == []
    timeline = Timeline()
    # In the order in which they return, as an engine tells of them.
    for began, ended in ((1.0, 2.0), (0.0, 3.0), (2.0, 4.0)):
        timeline.read("trunk", Priority.RING, 7, began, ended)
    timeline.read("experts", Priority.DEMAND, 9, 0.5, 3.5)
    lanes = lanes_of(timeline)
    assert [event["ts"] for event in lanes["reads: ring 0"]] == [0]
    assert [event["ts"] for event in lanes["reads: ring 1"]] == [1_000_000, 2_000_000]
    assert lanes["reads: demand 0"][0]["args"] == {"bytes": 9}


def test_nothing_recorded_is_a_file_too() -> None:
    assert lanes_of(Timeline()) == {}


def test_names_are_written_as_json() -> None:
    timeline = Timeline()
    timeline.note('a "name"\n', 0.0, 1.0)
    assert lanes_of(timeline)["runs"][0]["name"] == 'a "name"\n'

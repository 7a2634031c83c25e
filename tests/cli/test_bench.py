"""`waste bench` and `--timeline`: keys, sums, turns, files, and how they end."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import GOLDEN, PROMPT, Call, assert_one_line, finish, start
from waste.bench import course
from waste.bench.figures import overlap
from waste.cli.bench import parse_comparison
from waste.cli.bench_table import format_report
from waste.errors import InputError

SMALL = ("--prompt", "3", "-n", "2", "--set", "context=64", "--set", "compute.threads=2")
KEYS = {"model", "prompt_tokens", "tokens", "runs", "seed", "cold", "compare", "machine", "variants"}
MACHINE = {"memory_bytes_per_s", "memory_one_core_bytes_per_s", "disk_direct", "disk_sparse", "disk_problem"}
VARIANT = {
    *("value", "threads", "queue_depth", "disk_bytes_per_s", "prompt_tokens_per_s", "decode_tokens_per_s"),
    *("decode_ratio", "prompt_ratio", "token_s", "split_s", "bytes_per_token", "useful_bytes_per_token"),
    *("expert_hits", "expert_misses", "expert_hit_rate", "lookahead_issued", "lookahead_used", "overlap"),
    *("peak_rss_bytes", "ram_budget_bytes", "direct_io", "samples"),
}
SAMPLE = {
    *("run", "prompt_s", "prompt_tokens_per_s", "decode_s", "decode_tokens_per_s", "overlap", "peak_rss_bytes"),
    *("token_s", "prompt", "decode"),
}
SPENT = {
    *("bytes_read", "reads", "expert_hits", "expert_misses", "lookahead_issued", "lookahead_used"),
    *("lookahead_wasted_bytes", "io_wait_s", "compute_s_by_part", "loop_s", "useful_bytes"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "DISK_S", 0.001)
    monkeypatch.setattr(course, "MEMORY_S", 0.001)


def test_keys_and_sums_that_scripts_rely_on(call: Call) -> None:
    value = call("bench", "demo", *SMALL, "--runs", "2", "--seed", "5", "--json").json
    assert set(value) == KEYS
    assert (value["model"], value["prompt_tokens"], value["tokens"], value["runs"]) == ("demo", 3, 2, 2)
    assert (value["seed"], value["cold"], value["compare"]) == (5, False, None)
    assert set(value["machine"]) == MACHINE
    assert value["machine"]["memory_bytes_per_s"] > 0
    (variant,) = value["variants"]
    assert set(variant) == VARIANT
    assert (variant["value"], variant["threads"], variant["queue_depth"]) == (None, 2, 8)
    assert variant["disk_bytes_per_s"]["median"] > 0
    assert variant["decode_ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    samples = variant["samples"]
    assert [sample["run"] for sample in samples] == [1, 2], "the warm-up is not among them"
    for sample in samples:
        assert set(sample) == SAMPLE
        assert set(sample["prompt"]) == set(sample["decode"]) == SPENT
        assert sample["decode_s"] == pytest.approx(sum(sample["token_s"]))
        assert sample["overlap"] == overlap(
            sample["decode_s"],
            useful_bytes=sample["decode"]["useful_bytes"],
            disk_bytes_per_s=variant["disk_bytes_per_s"]["median"],
            compute_s=sum(sample["decode"]["compute_s_by_part"].values()),
            threads=2,
        )
    check_sums(variant)


def check_sums(variant: dict[str, Any]) -> None:
    """What is said of a token is what its samples add up to."""
    samples, split = variant["samples"], variant["split_s"]
    tokens = [seconds for sample in samples for seconds in sample["token_s"]]
    assert split["wall_s"] == pytest.approx(sum(tokens) / len(tokens))
    parts = split["io_wait_s"] + sum(split["parts_s"].values()) + split["loop_s"] + split["rest_s"]
    assert parts == pytest.approx(split["wall_s"])
    assert {"kda", "experts", "head"} <= set(split["parts_s"])
    assert min(tokens) <= variant["token_s"]["p50"] <= variant["token_s"]["p95"] <= max(tokens)
    for kind, size in variant["bytes_per_token"].items():
        assert size * len(tokens) == pytest.approx(sum(sample["decode"]["bytes_read"][kind] for sample in samples))
    assert variant["expert_hits"] == sum(sample["decode"]["expert_hits"] for sample in samples)
    asked = variant["expert_hits"] + variant["expert_misses"]
    assert variant["expert_hit_rate"] == variant["expert_hits"] / asked
    rates = sorted(sample["decode_tokens_per_s"] for sample in samples)
    assert (variant["decode_tokens_per_s"]["low"], variant["decode_tokens_per_s"]["high"]) == (rates[0], rates[-1])


def test_comparing_takes_turns_and_gives_ratios(call: Call) -> None:
    arguments = ("--compare", "prefetch.policy=none,router", "--runs", "1", "--json")
    value = call("bench", str(GOLDEN / "tiny-k3"), *SMALL, *arguments).json
    assert value["compare"] == "prefetch.policy"
    first, second = value["variants"]
    assert (first["value"], second["value"]) == ("none", "router")
    assert first["lookahead_issued"] == 0
    assert first["decode_ratio"]["median"] == 1.0
    rates = [variant["decode_tokens_per_s"]["median"] for variant in (first, second)]
    assert second["decode_ratio"]["median"] == pytest.approx(rates[1] / rates[0])
    check_sums(first)
    check_sums(second)


def test_the_table_for_people(call: Call) -> None:
    out = call("bench", "demo", *SMALL, "--runs", "1", "--compare", "io.queue_depth=2,4", "--cold").out
    for words in ("1 runs of 3 random ids", "(seed 0)", "nothing cached", "GB/s by all cores", "io.queue_depth=4"):
        assert words in out
    for words in ("tokens, to the first", "p95", "waiting for bytes", "event loop", "expert hits", "at 4 reads"):
        assert words in out
    assert "the cache warm from run to run" in call("bench", "demo", *SMALL, "--runs", "1").out


def test_a_table_of_what_is_not_known(call: Call) -> None:
    value = call("bench", "demo", *SMALL, "--runs", "1", "--json").json
    value["machine"] |= {"memory_bytes_per_s": None, "disk_problem": "no disk", "disk_direct": False}
    value["machine"]["disk_sparse"] = True
    value["variants"][0] |= {"disk_bytes_per_s": None, "overlap": None, "expert_hits": 0, "expert_misses": 0}
    text = format_report(value)
    for words in ("at unknown", "no disk", "refused", "holes", "no experts"):
        assert words in text


@pytest.mark.parametrize("text", ["", "x", "io.queue_depth", "io.queue_depth=4", "io.queue_depth=4,", "=4,8"])
def test_what_is_no_comparison(text: str) -> None:
    with pytest.raises(InputError, match="two values"):
        parse_comparison(text)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere",), 2, ("nowhere",)),
        (("demo", "--compare", "io.queue_depth=4"), 2, ("--compare", "two values")),
        (("demo", "--compare", "prefetch.polcy=none,router"), 2, ("prefetch.policy",)),
        (("demo", "--compare", "cache.policy=lru,lur"), 2, ("'lur'",)),
        (("demo", "--prompt", "60", "-n", "5", "--set", "context=64"), 2, ("context=65",)),
        (("demo", "--runs", "0"), 2, ("--runs",)),
        (("demo", "--ram", "1MiB"), 3, ("budget", "floor")),
        (("demo", "--timeline", "no/where.json"), 2, ("no/where.json",)),
    ],
)
def test_what_cannot_be_measured(arguments: tuple[str, ...], code: int, words: tuple[str, ...], call: Call) -> None:
    assert_one_line(call("bench", *arguments), code, *words)


def test_a_plot_without_matplotlib_says_what_to_install(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = call("bench", "demo", *SMALL, "--plot", str(tmp_path / "x.png"))
    assert_one_line(result, 2, "matplotlib", "pip install 'waste[plot]'")
    assert list(tmp_path.iterdir()) == []


def test_a_plot(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    assert call("bench", "demo", *SMALL, "--runs", "1", "--plot", str(path)).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def trace_of(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    assert all(event["ph"] in "XM" for event in events)
    return [event for event in events if event["ph"] == "X"]


def test_run_writes_a_timeline_with_all_its_reads(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    value = call("run", "demo", PROMPT, "-n", "3", "--json", "--timeline", str(path)).json
    events = trace_of(path)
    reads = [event for event in events if "bytes" in event.get("args", {})]
    # The trunk's first tiles may still come in after the last token.
    assert len(reads) >= sum(value["stats"]["reads"].values()) > 0
    assert [event["args"]["tokens"] for event in events if event["name"] == "step"] == [
        value["stats"]["prompt_tokens"],
        1,
        1,
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json"]


def test_bench_writes_a_timeline_of_all_openings(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    arguments = ("--compare", "io.queue_depth=2,4", "--runs", "1", "--timeline", str(path))
    assert call("bench", str(GOLDEN / "tiny-k3"), *SMALL, *arguments).code == 0
    names = [event["name"] for event in trace_of(path) if event["name"][0] in "24"]
    assert names == [
        f"{value}, {run}: {what}" for value in (2, 4) for run in ("warm-up", "run 1") for what in ("prompt", "tokens")
    ]


def test_no_timeline_of_nothing(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert call("run", "nowhere", PROMPT, "--timeline", str(path)).code == 2
    assert call("bench", "demo", *SMALL, "--prompt", "70", "--timeline", str(path)).code == 2
    assert list(tmp_path.iterdir()) == []


TELLING = """
import sys
from waste.cli import main, progress
class Telling(progress.ProgressDisplay):
    def __call__(self, what, done, total):
        print(what, done, file=sys.stderr, flush=True)
progress.ProgressDisplay = Telling
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")
@pytest.mark.parametrize("words", ["measuring the disk 0", "warm-up: tokens 5"])
def test_an_interrupt_ends_it_and_keeps_the_timeline(words: str, tmp_path: Path) -> None:
    arguments = ("--prompt", "3", "-n", "2000", "--timeline", str(tmp_path / "t.json"))
    process = start("bench", "demo", *arguments, program=("-c", TELLING))
    assert process.stderr is not None
    for line in process.stderr:
        if line.decode().strip() == words:
            break
    process.send_signal(signal.SIGINT)
    result = finish(process, timeout_s=30)
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err
    left = [entry.name for entry in tmp_path.iterdir()]
    assert left == (["t.json"] if "tokens" in words else [])
    if left:
        assert "step" in {event["name"] for event in trace_of(tmp_path / "t.json")}

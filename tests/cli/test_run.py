"""`waste run`: where prompts come from, what is printed and where, how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import GOLDEN, PROMPT, Call, finish, start
from waste.io.source import open_source
from waste.model.bundle import model_path


def generate(call: Call, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    value = call("run", "demo", *arguments, "--json", stdin=stdin).json
    assert isinstance(value, dict)
    return value


def test_text_goes_to_stdout_and_one_line_about_it_to_stderr(call: Call) -> None:
    plain = call("run", "demo", PROMPT, "-n", "8")
    assert plain.code == 0
    assert plain.out == generate(call, PROMPT, "-n", "8")["text"] + "\n"
    assert PROMPT not in plain.out
    assert plain.err.count("\n") == 1
    for words in ("8 tokens", "tok/s", "trunk", "experts", "cache hits", "peak RSS", "MiB of"):
        assert words in plain.err


def test_json_has_its_keys(call: Call) -> None:
    value = generate(call, PROMPT, "-n", "3")
    assert set(value) == {"model", "text", "ids", "prompt_ids", "finish_reason", "stats"}
    assert (len(value["ids"]), value["finish_reason"]) == (3, "length")
    times = {"prompt_tokens", "generated_tokens", "prompt_s", "decode_s", "tokens_per_s"}
    counted = {"bytes_read", "reads", "expert_hits", "expert_misses", "lookahead_issued", "lookahead_used"}
    measured = {"io_wait_s", "compute_s", "loop_us_per_read", "peak_rss_bytes", "direct_io"}
    assert times | counted | measured <= set(value["stats"])
    assert (value["stats"]["prompt_tokens"], value["stats"]["generated_tokens"]) == (len(value["prompt_ids"]), 3)


def test_argument_file_and_pipe_give_the_same_ids(call: Call, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT)
    asked = generate(call, PROMPT, "-n", "2")
    assert generate(call, "--file", str(tmp_path / "prompt.txt"), "-n", "2")["ids"] == asked["ids"]
    piped = generate(call, "-n", "2", stdin=PROMPT.encode())
    assert (piped["prompt_ids"], piped["ids"]) == (asked["prompt_ids"], asked["ids"])
    listed = generate(call, "--ids", ",".join(map(str, asked["prompt_ids"])), "-n", "2")
    assert (listed["prompt_ids"], listed["ids"]) == (asked["prompt_ids"], asked["ids"])


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_last_line_break_of_a_pipe_is_dropped(call: Call, ending: bytes) -> None:
    echoed = generate(call, "-n", "1", stdin=PROMPT.encode() + ending)
    assert echoed["prompt_ids"] == generate(call, PROMPT, "-n", "1")["prompt_ids"]
    doubled = generate(call, "-n", "1", stdin=PROMPT.encode() + b"\n\n")
    assert doubled["prompt_ids"] != echoed["prompt_ids"]


def test_stop_works_across_tokens_and_is_not_shown(call: Call) -> None:
    free = generate(call, PROMPT, "-n", "12")["text"]
    middle = free[10:16]
    assert " " in middle.strip()  # so it lies in several tokens
    stopped = generate(call, PROMPT, "-n", "12", "--stop", "not in there", "--stop", middle)
    assert (stopped["text"], stopped["finish_reason"]) == (free[: free.index(middle)], "stop")


def test_same_seed_gives_the_same_text(call: Call) -> None:
    def drawn(seed: int) -> Any:
        return generate(call, PROMPT, "-n", "12", "--temperature", "1", "--top-p", "0.95", "--seed", str(seed))["ids"]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_top_k_of_one_is_greedy(call: Call) -> None:
    greedy = generate(call, PROMPT, "-n", "4")["ids"]
    assert generate(call, PROMPT, "-n", "4", "--temperature", "2", "--top-k", "1")["ids"] == greedy


def test_logprobs_are_reported(call: Call) -> None:
    entries = generate(call, PROMPT, "-n", "3", "--logprobs", "2")["logprobs"]
    assert len(entries) == 3
    for entry in entries:
        best = entry["top"][0]
        assert (best["id"], best["logprob"]) == (entry["id"], entry["logprob"])
        assert entry["logprob"] <= 0
        assert len(entry["top"]) == 2
    table = call("run", "demo", PROMPT, "-n", "3", "--logprobs", "2")
    assert len(table.err.splitlines()) == 4


def test_model_without_tokenizer_takes_and_prints_ids(call: Call) -> None:
    with np.load(GOLDEN / "tiny-k3" / "golden.npz") as file:
        ids, greedy = file["ids"].tolist(), file["greedy"].tolist()
    result = call("run", str(GOLDEN / "tiny-k3"), "--ids", ",".join(map(str, ids)), "-n", str(len(greedy)))
    assert result.out == ",".join(map(str, greedy)) + "\n"


def test_settings_change_the_placement_but_not_the_text(call: Call) -> None:
    free = generate(call, PROMPT, "-n", "6")
    options = ("--preset", "laptop", "--trunk", "1MiB", "--experts", "200KiB", "--set", "trunk.tile=256KiB")
    tight = generate(call, PROMPT, "-n", "6", *options)
    assert tight["ids"] == free["ids"]
    assert tight["stats"]["ram_budget_bytes"] == 8 << 30
    assert tight["stats"]["bytes_read"]["trunk"] > free["stats"]["bytes_read"]["trunk"]


def test_text_before_an_error_is_kept(call: Call, tmp_path: Path) -> None:
    whole = generate(call, PROMPT, "-n", "12")
    ids, prompt = whole["prompt_ids"] + whole["ids"], len(whole["prompt_ids"])
    routing = tmp_path / "routing.jsonl"
    assert call("eval", "demo", "--ids", ",".join(map(str, ids)), "--routing-out", str(routing)).code == 0
    first_use: dict[tuple[int, int], int] = {}
    for line in map(json.loads, routing.read_text().splitlines()):
        for expert in line["ids"]:
            first_use.setdefault((line["layer"], expert), line["token"])
    (layer, expert), token = next(item for item in first_use.items() if item[1] >= prompt + 2)
    damage_expert(tmp_path / "model", layer, expert)
    result = call("run", str(tmp_path / "model"), PROMPT, "-n", "12")
    assert result.code == 4
    # The token at that place was shown, and failed when it was fed.
    shown = call("detokenize", "demo", *map(str, ids[prompt : token + 1])).out
    assert result.out == shown + "\n"
    assert result.err.count("\n") == 1
    assert f"layer {layer}" in result.err
    assert f"expert {expert}" in result.err


def damage_expert(model: Path, layer: int, expert: int) -> None:
    """A copy of the demo with scales in this expert that no number has."""
    shutil.copytree(model_path("demo"), model)
    source = open_source(model)
    scale = source.record(layer, expert)[1]
    with source.paths[scale.file].open("r+b") as file:
        file.seek(scale.offset)
        file.write(b"\xff" * scale.length)


def test_reader_that_leaves_early_is_no_error() -> None:
    process = start("run", "demo", PROMPT, "-n", "2000")
    assert process.stdout is not None
    assert process.stdout.read(4)
    process.stdout.close()
    assert process.stderr is not None
    assert (process.wait(timeout=100), process.stderr.read()) == (0, b"")
    process.stderr.close()


def test_prompt_comes_through_a_real_pipe() -> None:
    process = start("run", "demo", "-n", "4", stdin=subprocess.PIPE)
    out, err = process.communicate(PROMPT.encode(), timeout=100)
    assert process.returncode == 0, err
    assert out.decode() == " of the reign of\n"


def test_bytes_of_text_need_no_utf8_locale() -> None:
    process = start("detokenize", "demo", "226,130,172,65", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert finish(process).code == 0

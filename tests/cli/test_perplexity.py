"""`waste perplexity`: the float64 golden sum of the demo's held-out text, text against ids, bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import GOLDEN, PROMPT, Call, assert_one_line, start
from tests.cli.test_interrupt import interrupt, telling, wait_for
from waste.model.bundle import model_path

DEMO = model_path("demo")
HELD_OUT = DEMO / "val_ids.json"
MODEL = str(GOLDEN / "tiny-k3")
FIRST_THREE = 449.19545 + 422.59520 + 411.36509
"""Nats of the first three held-out documents, cut at 128 tokens, as a float64 model has them."""


def test_the_golden_sum_of_held_out_text(call: Call) -> None:
    """A part of it; the rest takes half a minute and is in docs/measurements.md."""
    options = ("--ids-file", str(HELD_OUT), "--limit", "3", "--max-tokens", "128")
    value = call("perplexity", "demo", *options, "--json").json
    assert value["nats"] == pytest.approx(FIRST_THREE, abs=2e-3)
    assert (value["documents"], value["predictions"]) == (3, 3 * 127)
    assert value["loss"] == value["nats"] / value["predictions"]
    assert value["perplexity"] == pytest.approx(math.exp(value["loss"]))
    assert sum(score["nats"] for score in value["scores"]) == pytest.approx(value["nats"])
    assert value["stats"]["tokens"] == 3 * 127
    # All of it has 40 such documents, and as many predictions as the golden sum counts.
    documents = json.loads(HELD_OUT.read_text())
    with np.load(DEMO / "golden.npz") as golden:
        assert golden["val40_nll"][1] == sum(min(len(ids), 512) - 1 for ids in documents[:40])


def test_text_is_one_document_with_bos_in_front(call: Call, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(PROMPT)
    text = call("perplexity", "demo", str(tmp_path / "text.txt"), "--json").json
    ids = call("tokenize", "demo", PROMPT, "--json").json["ids"]
    (tmp_path / "ids.json").write_text(json.dumps([[1792, *ids]]))
    listed = call("perplexity", "demo", "--ids-file", str(tmp_path / "ids.json"), "--json").json
    assert text["predictions"] == len(ids)
    assert (text["nats"], text["scores"]) == (listed["nats"], listed["scores"])
    shown = call("perplexity", "demo", str(tmp_path / "text.txt")).out
    assert f"perplexity {text['perplexity']:.4f}: {len(ids)} predictions in 1 document\n" in shown


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("", 2, ("ids.json is empty",)),
        ("[[1, 2", 2, ("ids.json is not JSON",)),
        ('{"a": [1, 2]}', 2, ("ids.json holds {'a'", "expected a list of documents")),
        ("[[1, 2], 3]", 2, ("document 1 is 3, expected a list of ids",)),
        ("[]", 2, ("nothing to predict",)),
        ("[[1], []]", 2, ("nothing to predict",)),
        ('[[1, 2], [3, "4"]]', 2, ("document 1 has '4' at position 1",)),
        ("[[1, 2], [3, true]]", 2, ("document 1 has True",)),
        ("[[1, 2], [3, 4, 90000]]", 2, ("document 1 of those to score: id 90000 at position 2 is out of range",)),
        ("[" * 100_000, 2, ("ids.json",)),
        ("[[" + "9" * 10_000 + ", 1]]", 2, ("absurd",)),
    ],
)
def test_bad_ids_are_refused_in_one_line(
    content: str, code: int, words: tuple[str, ...], tmp_path: Path, call: Call
) -> None:
    (tmp_path / "ids.json").write_text(content)
    assert_one_line(call("perplexity", MODEL, "--ids-file", str(tmp_path / "ids.json")), code, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo"], ("FILE", "--ids-file", "neither is given")),
        (["demo", "text.txt", "--ids-file", "ids.json"], ("both are given",)),
        (["demo", "nowhere.txt"], ("nowhere.txt",)),
        (["demo", "--ids-file", "nowhere.json"], ("nowhere.json",)),
        (["demo", "--ids-file", str(GOLDEN)], ("not a regular file",)),
        (["demo", str(GOLDEN / "tiny-k3" / "golden.npz")], ("UTF-8",)),
        (["demo", "/dev/null"], ("nothing to predict",)),
        (["demo", "x", "--limit", "0"], ("--limit",)),
        (["demo", "x", "--max-tokens", "1"], ("--max-tokens",)),
        ([MODEL, str(Path(__file__))], ("no tokenizer", "--ids-file")),
    ],
)
def test_bad_requests_are_refused_in_one_line(arguments: list[str], words: tuple[str, ...], call: Call) -> None:
    assert_one_line(call("perplexity", *arguments), 2, *words)


def test_an_interrupt_tells_what_there_is_so_far() -> None:
    process = start("perplexity", "demo", "--ids-file", str(HELD_OUT), program=telling())
    wait_for(process, "predictions 500")
    result = interrupt(process)
    assert (result.code, result.out) == (130, "")
    # One document has 497 tokens.
    assert "interrupted; so far loss " in result.err.splitlines()[-1]
    assert "496 predictions in 1 document" in result.err

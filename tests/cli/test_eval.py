"""`waste eval` against the golden numbers, and the files it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import GOLDEN, Call, assert_one_line, finish, start

MODEL = GOLDEN / "tiny-k3"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(MODEL / "golden.npz") as file:
        return dict(file)


def outputs(folder: Path) -> list[str]:
    names = {"--logits-out": "logits.npy", "--routing-out": "routing.jsonl", "--hidden-out": "hidden.npy"}
    return [word for option, name in names.items() for word in (option, str(folder / name))]


def ids_option(golden: dict[str, Any]) -> str:
    return ",".join(map(str, golden["ids"]))


@pytest.fixture
def evaluated(call: Call, tmp_path: Path, golden: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The folder of the files, and what `--json` said."""
    result = call("eval", str(MODEL), "--ids", ids_option(golden), *outputs(tmp_path), "--json")
    return tmp_path, result.json


def test_files_hold_the_golden_numbers(evaluated: tuple[Path, dict[str, Any]], golden: dict[str, Any]) -> None:
    folder, _ = evaluated
    logits, hidden = np.load(folder / "logits.npy"), np.load(folder / "hidden.npy")
    assert (logits.dtype, logits.shape) == (np.float32, golden["logits"].shape)
    assert np.abs(logits - golden["logits"]).max() <= 2e-4
    assert (hidden.dtype, hidden.shape) == (np.float32, golden["hidden"].shape)
    assert np.abs(hidden - golden["hidden"]).max() <= 4e-4


def test_routing_holds_the_golden_choices(evaluated: tuple[Path, dict[str, Any]], golden: dict[str, Any]) -> None:
    folder, _ = evaluated
    lines = [json.loads(line) for line in (folder / "routing.jsonl").read_text().splitlines()]
    layers, tokens, _ = golden["topk_ids"].shape
    moe_layers = sorted({line["layer"] for line in lines})
    assert [(line["token"], line["layer"]) for line in lines] == [(t, n) for t in range(tokens) for n in moe_layers]
    # The first layer is dense, so the MoE layers, counted from 0, are the others.
    assert moe_layers == list(range(1, layers + 1))
    for line in lines:
        assert set(line) == {"token", "layer", "ids", "weights"}
        order = sorted(zip(line["weights"], line["ids"], strict=True), key=lambda pair: (-pair[0], pair[1]))
        assert [token for _, token in order] == line["ids"]
        at = (moe_layers.index(line["layer"]), line["token"])
        assert set(line["ids"]) == set(golden["topk_ids"][at])
        assert np.abs(np.array(line["weights"]) - golden["topk_weights"][at]).max() <= 1e-5


def test_json_has_its_keys(evaluated: tuple[Path, dict[str, Any]], golden: dict[str, Any]) -> None:
    _, value = evaluated
    assert set(value) == {"model", "tokens", "ids", "seconds", "top", "stats"}
    assert value["seconds"] > 0
    assert value["ids"] == golden["ids"].tolist()
    assert set(value["stats"]["bytes_read"]) == {"trunk", "experts", "embedding", "other"}
    last = value["top"][-1]
    assert last["position"] == len(golden["ids"]) - 1
    best = np.argsort(-golden["logits"][-1])[:5]
    assert [entry["id"] for entry in last["top"]] == best.tolist()
    shifted = golden["logits"][-1] - golden["logits"][-1].max()
    assert last["top"][0]["logprob"] == pytest.approx(-np.log(np.exp(shifted).sum()), abs=1e-3)


def test_files_do_not_depend_on_the_chunk(
    evaluated: tuple[Path, dict[str, Any]], golden: dict[str, Any], call: Call, tmp_path: Path
) -> None:
    folder, _ = evaluated
    other = tmp_path / "chunks"
    other.mkdir()
    chunked = call("eval", str(MODEL), "--ids", ids_option(golden), *outputs(other), "--set", "prefill.chunk=3")
    assert chunked.code == 0
    for path in other.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_table_names_tokens_and_their_likeliest_followers(call: Call) -> None:
    result = call("eval", "demo", "--text", "In the beginning", "--top-k", "3")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split()[:2] == ["position", "token"]
    assert '"[BOS]"' in lines[1]
    assert '" of"' in lines[6]
    assert "6 tokens in" in lines[-1]


def test_failure_leaves_no_file_and_keeps_the_one_before(call: Call, tmp_path: Path) -> None:
    (tmp_path / "logits.npy").write_bytes(b"before")
    assert_one_line(call("eval", str(MODEL), "--ids", "1,99999", *outputs(tmp_path)), 2, "99999")
    assert [path.name for path in tmp_path.iterdir()] == ["logits.npy"]
    assert (tmp_path / "logits.npy").read_bytes() == b"before"


def test_outputs_may_not_share_a_file(call: Call, tmp_path: Path) -> None:
    one = str(tmp_path / "x")
    assert_one_line(call("eval", str(MODEL), "--ids", "1", "--logits-out", one, "--hidden-out", one), 2, "same name")


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    program = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
    program += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    program += "from waste.cli import main; main()"
    process = start("eval", str(MODEL), "--ids", "1,2,3,4,5,6", *outputs(tmp_path), program=("-c", program))
    assert_one_line(finish(process), 1, "cannot write", str(tmp_path))
    assert list(tmp_path.iterdir()) == []

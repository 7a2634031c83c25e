"""`waste plan`: from a config alone, what a token costs, what more RAM buys. And `waste synth`, which makes models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import GOLDEN, Call, assert_one_line
from tests.model.configs import KIMI_K3, changed

GIB = 1 << 30


@pytest.fixture
def k3(tmp_path: Path) -> str:
    """K3's config.json, and nothing else of it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(KIMI_K3), encoding="utf-8")
    return str(path)


def test_the_whole_of_k3_fits_two_gib(call: Call, k3: str) -> None:
    value = call("plan", "--config", k3, "--ram", "2GiB", "--disk", "2GB", "--json").json
    assert value["context"] == 4096
    assert value["floor_bytes"] <= 2 * GIB
    assert sum(value["parts"].values()) == value["total_bytes"] <= 2 * GIB
    assert value["parts"]["latents"] == 24 * 4096 * 576 * 4
    assert value["parts"]["state_copies"] == 69 * 96 * 128 * 128 * 4
    # The published sizes: 108.8 GB of bf16 trunk and 2.35 GB of head; 92 · 16 records of 17,547,264 bytes.
    assert value["cold_expert_bytes_per_token"] == pytest.approx(92 * 16 * 17_547_264, rel=0.001)
    assert value["bytes_per_token"]["trunk"] / (1 - value["trunk_hit_rate"]) == pytest.approx(111.1e9, rel=0.005)
    total = sum(value["bytes_per_token"].values())
    assert value["seconds_per_token"] == pytest.approx(total / 2e9)
    saved = total - sum(value["next_gib"]["bytes_per_token"].values())
    # An eighth may go to longer prompt chunks, the rest saves reads.
    assert 0.8 * GIB < saved < 1.1 * GIB


def test_a_config_alone_and_its_weights_plan_the_same(call: Call) -> None:
    for name in ("tiny-k3", "tiny-kimi-linear"):
        alone = call("plan", "--config", str(GOLDEN / name / "config.json"), "--json").json["parts"]
        whole = call("plan", str(GOLDEN / name), "--json").json["parts"]
        # Headers shift the tensors within their blocks: a block more or less for each tile and record.
        same = set(alone) - {"pinned", "ring", "experts", "embedding", "scratch"}
        assert {part: alone[part] for part in same} == {part: whole[part] for part in same}
        assert alone["scratch"] == pytest.approx(whole["scratch"], abs=1024)  # releases pad A_log as they like
        assert alone["pinned"] == pytest.approx(whole["pinned"], abs=40 * 4096)


@pytest.mark.parametrize("context", ["131072", "1M", "1048576"])
def test_contexts_up_to_a_million(call: Call, tmp_path: Path, context: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(changed(KIMI_K3, text_config__model_max_length=1 << 20)), encoding="utf-8")
    result = call("plan", "--config", str(path), "--ram", "128GiB", "--set", f"context={context}", "--json")
    if context == "1M":
        assert_one_line(result, 2, "context is '1M', expected a whole number")
    else:
        assert result.json["parts"]["latents"] == 24 * int(context) * 576 * 4


def test_more_ram_never_costs_a_token_more(call: Call, k3: str) -> None:
    costs = []
    for gib in (2, 3, 8, 64, 110, 128, 1600):
        value = call("plan", "--config", k3, "--ram", f"{gib}GiB", "--disk", "2GB", "--json").json
        costs.append(sum(value["bytes_per_token"].values()))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 1 << 20  # everything but an embedding row is in memory


def test_a_budget_below_the_floor_names_the_shortfall(call: Call, k3: str) -> None:
    floor = call("plan", "--config", k3, "--ram", "2GiB", "--disk", "1GB", "--json").json["floor_bytes"]
    assert call("plan", "--config", k3, "--ram", str(floor), "--disk", "1GB").code == 0
    assert_one_line(call("plan", "--config", k3, "--ram", str(floor - 7)), 3, "7 below the floor")


def test_the_table_for_people(call: Call) -> None:
    out = call("plan", "demo", "--disk", "500MB", "--set", "trunk.tile=64KiB", "--trunk", "1MiB").out
    for words in ("a token reads", "with 1 GiB more", "hit rate", "seconds, 0.50 GB/s", "of trunk, read once"):
        assert words in out


def test_the_disk_is_measured_where_nothing_is_said(call: Call) -> None:
    value = call("plan", "demo", "--json").json
    assert value["disk_bytes_per_s"] > 0
    assert value["seconds_per_token"] > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "neither is given"),
        (["demo", "--config", "x.json"], "both are given"),
        (["--config", "/nowhere/config.json"], "No such file"),
        (["demo", "--disk", "fast"], "--disk is 'fast'"),
        (["demo", "--disk", "0"], "--disk is '0'"),
    ],
)
def test_bad_arguments(call: Call, arguments: list[str], complaint: str) -> None:
    assert_one_line(call("plan", *arguments), 2, complaint)


def test_a_wish_beyond_the_budget_is_said(call: Call) -> None:
    options = ("--disk", "1GB", "--set", "trunk.tile=64KiB", "--ram")
    floor = call("plan", "demo", *options, "4GiB", "--json", "--set", "compute.kernels=numpy").json["floor_bytes"]
    options = ("--set", "compute.kernels=numpy", *options, str(floor + 500_000), "--trunk", "3TiB")
    assert call("plan", "demo", *options, "--json").json["cut"] == {"trunk": 3 << 40}
    assert "--trunk wished for 3.0 TiB, the budget leaves no more" in call("plan", "demo", *options).out


def test_the_floor_of_a_small_model_is_the_compilers(call: Call) -> None:
    """So no other setting is told to be the cure."""
    result = call("plan", "demo", "--ram", "300MiB")
    assert_one_line(result, 3, "compiling its kernels, should the cache lack them, takes", "raise --ram")
    assert "lower" not in result.err


def test_the_floor_of_a_large_one_is_its_own(call: Call, k3: str) -> None:
    assert_one_line(call("plan", "--config", k3, "--ram", "1GiB"), 3, "or lower context, prefill.chunk or trunk.tile")


def test_a_config_that_is_none(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[1, 2]", encoding="utf-8")
    assert_one_line(call("plan", "--config", str(path)), 2, "holds list")
    path.write_text("{", encoding="utf-8")
    assert_one_line(call("plan", "--config", str(path)), 4, "config.json")


def test_synth_makes_a_model_that_runs(call: Call, tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    options = ("--shape", "kimi-linear", "--layers", "3", "--experts", "8", "--sparse")
    made = call("synth", out, *options, "--json").json
    assert (made["shape"], made["sparse"]) == ("kimi-linear", True)
    assert made["bytes"] > 1e9
    info = call("info", out, "--json").json
    assert info["layers"]["total"] == 3
    assert_one_line(call("synth", out, *options), 2, "exists")


def test_synth_refuses_what_makes_no_model(call: Call, tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    assert_one_line(call("synth", out, "--shape", "k4"), 2, "--shape is 'k4', expected k3 or kimi-linear")
    assert_one_line(call("synth", out, "--shape", "k3", "--layers", "1"), 2, "--layers is 1")
    assert not (tmp_path / "m").exists()


def test_a_sweep_has_every_split_and_trunk_first_is_best_where_ram_is_short(call: Call, k3: str) -> None:
    value = call("plan", "--config", k3, "--ram", "64GiB", "--sweep", "--disk", "2GB", "--json").json
    splits = value["sweep"]
    assert len(splits) > 10
    trunk = [split["trunk_bytes"] for split in splits]
    assert trunk == sorted(trunk)
    assert all(split["trunk_bytes"] + split["expert_bytes"] <= value["budget_bytes"] for split in splits)
    # A byte of trunk saves a byte at every token, a byte of experts only as often as its expert is asked for.
    assert min(splits, key=lambda split: split["bytes_per_token"]) == splits[-1]
    assert splits[0]["seconds_per_token"] == pytest.approx(splits[0]["bytes_per_token"] / 2e9)
    text = call("plan", "--config", k3, "--ram", "64GiB", "--sweep", "--disk", "2GB").out
    assert text.count("least") == 1
    assert len(text.splitlines()) == len(splits) + 1


@pytest.mark.parametrize("ram", ["2GiB", "5GB", "64GiB"])
def test_what_a_sweep_shows_can_be_had(call: Call, k3: str, ram: str) -> None:
    value = call("plan", "--config", k3, "--ram", ram, "--sweep", "--disk", "2GB", "--json").json
    for split in (value["sweep"][0], value["sweep"][-1]):
        wishes = ("--trunk", str(split["trunk_bytes"]), "--experts", str(split["expert_bytes"]))
        parts = call("plan", "--config", k3, "--ram", ram, *wishes, "--json").json["parts"]
        assert parts["pinned"] + parts["ring"] == split["trunk_bytes"]
        assert parts["experts"] == split["expert_bytes"]


def test_a_picture_of_a_sweep(call: Call, k3: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.png"
    drawn = call("plan", "--config", k3, "--ram", "4GiB", "--sweep", "--plot", str(path), "--disk", "2GB")
    assert drawn.code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_sweep_that_cannot_be_drawn_says_why(call: Call, k3: str, tmp_path: Path) -> None:
    where = tmp_path / "no" / "sweep.png"
    failed = call("plan", "--config", k3, "--ram", "4GiB", "--sweep", "--plot", str(where), "--disk", "2GB")
    assert failed.code == 2
    assert "writing" in failed.err
    assert not where.parent.exists()

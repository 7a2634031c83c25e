"""The commands that only look: `info`, `plan`, `presets`, `tokenize`, `detokenize`."""

from __future__ import annotations

import pytest

from tests.cli.commands import GOLDEN, PROMPT, Call, assert_one_line
from waste.cli.options import parse_ids
from waste.cli.output import format_bytes, format_table
from waste.errors import InputError


def test_info_of_the_demo(call: Call) -> None:
    value = call("info", "demo", "--json").json
    assert value["family"] == "kimi_k3"
    assert value["layers"] == {"total": 9, "kda": 6, "mla": 3, "moe": 8, "dense": 1}
    assert value["experts"] == {"count": 64, "top_k": 6, "shared": 2}
    assert value["formats"] == {"trunk": ["BF16", "F32"], "experts": ["MXFP4"], "embedding": ["BF16"]}
    width, latent = 64, 64
    assert value["record_bytes"] == 3 * width * latent // 32 * 17
    assert value["bytes"]["experts"] == 8 * 64 * value["record_bytes"]
    assert value["bytes"]["embedding"] == 2048 * 128 * 2
    parameters = value["parameters"]
    assert parameters["total"] - parameters["active"] == 8 * 58 * 3 * width * latent + 2047 * 128
    assert value["cold_bytes_per_token"] >= value["bytes"]["trunk"] + 8 * 6 * value["record_bytes"]
    assert (value["context"], value["end_ids"], value["shards"]) == (4096, [1793], 3)
    assert (value["layout"], value["bytes"]["codebooks"]) == ("checkpoint", 0)


@pytest.mark.parametrize(
    ("name", "trunk", "experts", "record_bytes"),
    [("nano-k3.waste", ["F32", "Q4G", "Q8G"], "VQ3R", 28672), ("tiny-k3-vq4p.waste", ["F32"], "VQ4P", 8192)],
)
def test_info_of_a_container(call: Call, name: str, trunk: list[str], experts: str, record_bytes: int) -> None:
    folder = GOLDEN / name
    value = call("info", str(folder), "--json").json
    assert value["layout"] == "container"
    assert (value["formats"]["trunk"], value["formats"]["experts"]) == (trunk, [experts])
    assert value["record_bytes"] == record_bytes
    files = {path.name: path.stat().st_size for path in folder.glob("*.bin")}
    assert value["bytes"]["codebooks"] == files.pop("codebooks.bin")
    assert value["bytes"]["trunk"] + value["bytes"]["embedding"] == pytest.approx(files.pop("trunk.bin"), rel=1e-3)
    # A record's header and padding count, as they take the disk's room and time.
    assert value["bytes"]["experts"] == sum(files.values())
    read_experts = value["layers"]["moe"] * value["experts"]["top_k"] * record_bytes
    assert value["cold_bytes_per_token"] == pytest.approx(value["bytes"]["trunk"] + read_experts, rel=0.05)
    shown = call("info", str(folder)).out
    for words in ("container", experts, "codebooks", "with nothing in memory", "least RAM"):
        assert words in shown


@pytest.mark.parametrize("model", ["demo", str(GOLDEN / "nano-k3.waste")])
def test_info_knows_the_floor_whatever_the_budget(call: Call, model: str) -> None:
    value = call("info", model, "--json", "--ram", "1MiB", "--set", "context=64").json
    assert value["floor_context"] == 64
    assert value["floor_bytes"] == call("plan", model, "--json", "--set", "context=64").json["floor_bytes"]
    assert value["floor_bytes"] <= call("info", model, "--json").json["floor_bytes"]


def test_info_for_people(call: Call) -> None:
    result = call("info", str(GOLDEN / "tiny-kimi-linear"))
    assert result.code == 0
    for words in ("kimi_linear", "active per token", "kda", "experts BF16", "none: ids only"):
        assert words in result.out


def test_plan_adds_up(call: Call) -> None:
    value = call("plan", "demo", "--json", "--ram", "1GiB", "--set", "context=64").json
    assert value["budget_bytes"] == 1 << 30
    assert sum(value["parts"].values()) == value["total_bytes"] <= value["budget_bytes"]
    assert 0 < value["floor_bytes"] <= value["budget_bytes"]
    assert value["context"] == 64
    table = call("plan", "demo", "--ram", "1GiB", "--set", "context=64").out
    assert f"{value['parts']['latents']:,}" in table
    assert f"{value['floor_bytes']:,}" in table


def test_plan_obeys_its_wishes(call: Call) -> None:
    options = ("--trunk", "1MiB", "--experts", "120KiB", "--set", "trunk.tile=256KiB")
    wished = call("plan", "demo", "--json", *options).json["parts"]
    free = call("plan", "demo", "--json", "--set", "trunk.tile=256KiB").json["parts"]
    assert 0 < wished["pinned"] <= 1 << 20 < free["pinned"]
    assert 0 < wished["experts"] <= 120 << 10 < free["experts"]


def test_the_floor_is_the_floor(call: Call) -> None:
    floor = call("plan", "demo", "--json").json["floor_bytes"]
    assert call("plan", "demo", "--ram", str(floor)).code == 0
    assert_one_line(call("plan", "demo", "--ram", str(floor - 1)), 3, "1 below")


def test_presets(call: Call) -> None:
    listed = {preset["name"]: preset["settings"] for preset in call("presets", "--json").json["presets"]}
    assert set(listed) == {"laptop", "desktop", "workstation", "server", "max", "auto"}
    assert listed["laptop"]["ram"] == "8GiB"
    assert "laptop" in call("presets").out


@pytest.mark.parametrize("text", [PROMPT, "  two  lines\n\nand é € 漢字 🙂\n", "[BOS]"])
def test_text_survives_ids(call: Call, text: str) -> None:
    ids = call("tokenize", "demo", stdin=text.encode()).out
    assert call("tokenize", "demo", text).out == ids
    assert call("detokenize", "demo", ids.strip()).out == text
    assert call("detokenize", "demo", *ids.strip().split(",")).out == text
    assert call("detokenize", "demo", stdin=ids.encode()).out == text
    value = call("tokenize", "demo", text, "--json").json
    assert (",".join(map(str, value["ids"])), value["count"]) == (ids.strip(), len(value["ids"]))
    assert call("detokenize", "demo", ids.strip(), "--json").json == {"text": text, "ids": value["ids"]}


def test_specials_are_content_unless_asked_for(call: Call) -> None:
    assert call("tokenize", "demo", "[BOS]", "--special").out == "1792\n"
    assert call("tokenize", "demo", "[BOS]").out != "1792\n"


def test_parse_ids() -> None:
    assert parse_ids(" 3,17, 5\n8 ") == [3, 17, 5, 8]
    assert parse_ids("3,17,") == [3, 17]
    assert parse_ids("") == []
    for text in ("1.5", "0x3", "1_000", "٣", "-1", "1,,2", ",1"):
        with pytest.raises(InputError, match="not a token id"):
            parse_ids(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1.0 MiB"), (8 << 30, "8.0 GiB")],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_format_table() -> None:
    assert format_table([["a", "bb"], ["ccc", "d"]], right=(1,)) == "a    bb\nccc   d\n"

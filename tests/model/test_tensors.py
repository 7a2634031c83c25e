"""A checkpoint is checked against its config, tensor by tensor, before anything is computed with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.model.configs import DEMO, GOLDEN, GOLDEN_NAMES, KIMI_K3, KIMI_LINEAR, changed, golden_config
from waste.errors import ModelError, UnsupportedError
from waste.io.extents import Extent
from waste.io.source import Bank, Part, TensorInfo
from waste.model.config import ModelConfig, parse_config
from waste.model.tensors import check_tensors, check_widths, expert_shapes, tensor_shapes

NOWHERE = Extent(0, 0, 0)


def headers(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint as its safetensors headers declare it."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            found[name] = TensorInfo(entry["dtype"], tuple(entry["shape"]), NOWHERE)
    return found


def split(found: Mapping[str, TensorInfo]) -> tuple[dict[str, TensorInfo], dict[int, Bank]]:
    """The trunk's tensors, and the routed experts gathered into banks."""
    trunk: dict[str, TensorInfo] = {}
    parts: dict[int, dict[int, list[Part]]] = {}
    for name, info in sorted(found.items(), key=lambda item: item[0].replace(".w2.", ".w4.")):
        before, experts, after = name.partition(".block_sparse_moe.experts.")
        if not experts:
            trunk[name] = info
            continue
        record, _, part = after.partition(".")
        bank = parts.setdefault(int(before.rpartition(".")[2]), {})
        bank.setdefault(int(record), []).append(Part(part, info.dtype, info.shape))
    return trunk, {layer: Bank(len(records), tuple(records[0])) for layer, records in parts.items()}


def checkpoint(name: str) -> tuple[ModelConfig, dict[str, TensorInfo], dict[int, Bank]]:
    """Config, trunk and banks of a golden model."""
    trunk, banks = split(headers(GOLDEN / name))
    return parse_config(golden_config(name)), trunk, banks


K3_LAYER = "language_model.model.layers."


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_checkpoints_are_what_their_configs_imply(name: str) -> None:
    config, trunk, banks = checkpoint(name)
    check_tensors(config, trunk, banks)
    assert set(tensor_shapes(config)) == set(trunk)
    assert set(banks) == {layer for layer in range(config.num_hidden_layers) if config.is_moe(layer)}


def test_demo_checkpoint() -> None:
    trunk, banks = split(headers(DEMO))
    check_tensors(parse_config(json.loads((DEMO / "config.json").read_text(encoding="utf-8"))), trunk, banks)


def test_kimi_k3_adds_up() -> None:
    config = parse_config(KIMI_K3)
    assert config.moe is not None
    (w1, w3, w2) = expert_shapes(config).values()
    assert (w1, w3, w2) == ((3072, 3584), (3072, 3584), (3584, 3072))
    trunk = sum(_product(shape) for shape in tensor_shapes(config).values())
    experts = 92 * 896 * 3 * 3072 * 3584
    assert trunk + experts == pytest.approx(2.78e12, rel=2e-3)
    check_widths(config)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def test_kimi_linear_adds_up() -> None:
    config = parse_config(KIMI_LINEAR)
    trunk = sum(_product(shape) for shape in tensor_shapes(config).values())
    assert trunk + 26 * 256 * 3 * 1024 * 2304 == pytest.approx(49e9, rel=0.02)
    check_widths(config)


def test_a_tied_head_is_not_asked_for() -> None:
    config, trunk, banks = checkpoint("tiny-groups")
    del trunk["lm_head.weight"]
    check_tensors(replace(config, tie_word_embeddings=True), trunk, banks)
    with pytest.raises(ModelError, match=r"lm_head\.weight is missing.*\[300, 96\] \(vocab_size, hidden_size\)"):
        check_tensors(config, trunk, banks)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_tensor_is_asked_for(name: str) -> None:
    config, trunk, banks = checkpoint(name)
    for missing in trunk:
        rest = {key: info for key, info in trunk.items() if key != missing}
        with pytest.raises(ModelError, match=rf"^{missing} is missing"):
            check_tensors(config, rest, banks)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_shape_and_dtype_is_checked(name: str) -> None:
    config, trunk, banks = checkpoint(name)
    for key, info in trunk.items():
        longer = (info.shape[0] + 1, *info.shape[1:])
        if not key.endswith(".A_log"):
            with pytest.raises(ModelError, match=rf"^{key} is .*config\.json implies"):
                check_tensors(config, trunk | {key: replace(info, shape=longer)}, banks)
        for dtype in ("I8", "U8", "F64"):
            with pytest.raises(UnsupportedError, match=rf"^{key} is stored as {dtype}, expected BF16 or F16 or F32"):
                check_tensors(config, trunk | {key: replace(info, dtype=dtype)}, banks)
        for dtype in ("F32", "F16"):
            check_tensors(config, trunk | {key: replace(info, dtype=dtype)}, banks)


def test_a_wrong_shape_names_the_config_key() -> None:
    config, trunk, banks = checkpoint("tiny-k3")
    wrong = replace(config, intermediate_size=232)
    with pytest.raises(ModelError, match=r"mlp\.gate_proj.*\[224, 160\].*\[232, 160\] \(intermediate_size, "):
        check_tensors(wrong, trunk, banks)


@pytest.mark.parametrize("shape", [(5,), (32,), (1, 1, 5, 1), (128,)])
def test_a_log_may_be_padded_and_of_any_rank(shape: tuple[int, ...]) -> None:
    config, trunk, banks = checkpoint("tiny-k3")
    check_tensors(config, trunk | {f"{K3_LAYER}0.self_attn.A_log": TensorInfo("F32", shape, NOWHERE)}, banks)


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4, 1), (0,)])
def test_a_log_may_not_be_shorter_than_the_heads(shape: tuple[int, ...]) -> None:
    config, trunk, banks = checkpoint("tiny-k3")
    with pytest.raises(ModelError, match=r"A_log is .*at least 5 values \(linear_attn_config\.num_heads\)"):
        check_tensors(config, trunk | {f"{K3_LAYER}0.self_attn.A_log": TensorInfo("F32", shape, NOWHERE)}, banks)


LOST_KEYS = (
    ("text_config__attn_res_block_size", None, "attn_res_block_size"),
    ("text_config__mla_use_output_gate", False, "mla_use_output_gate"),
    ("text_config__latent_moe_use_norm", False, "latent_moe_use_norm"),
    ("text_config__num_shared_experts", 0, "num_shared_experts"),
)


@pytest.mark.parametrize(("path", "value", "key"), LOST_KEYS, ids=[key for _, _, key in LOST_KEYS])
def test_tensors_that_the_config_does_not_call_for(path: str, value: object, key: str) -> None:
    _, trunk, banks = checkpoint("tiny-k3")
    config = parse_config(changed(golden_config("tiny-k3"), **{path: value}))
    with pytest.raises(ModelError, match=rf"calls for none: check {key}"):
        check_tensors(config, trunk, banks)


def test_a_missing_bank() -> None:
    config, trunk, banks = checkpoint("tiny-groups")
    del banks[2]
    with pytest.raises(ModelError, match=r"model\.layers\.2\..*experts are missing, expected 16 \(num_experts\)"):
        check_tensors(config, trunk, banks)


@pytest.mark.parametrize("records", [0, 15, 17])
def test_another_number_of_experts(records: int) -> None:
    config, trunk, banks = checkpoint("tiny-groups")
    banks[1] = replace(banks[1], records=records)
    with pytest.raises(ModelError, match=rf"layers\.1\..*experts are {records}, expected 16 \(num_experts\)"):
        check_tensors(config, trunk, banks)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_part_of_an_expert_is_checked(name: str) -> None:
    config, trunk, banks = checkpoint(name)
    for layer, bank in banks.items():
        for i, part in enumerate(bank.parts):
            rest = bank.parts[:i] + bank.parts[i + 1 :]
            wide = replace(part, shape=(part.shape[0], part.shape[1] + 1))
            foreign = replace(part, dtype="F16")
            for parts, error in (
                (
                    rest,
                    r"experts consist of .*expected w1\.weight, w3\.weight, w2\.weight or w1\.weight_packed",
                ),
                (_swapped(bank.parts, i, wide), rf"{part.name} is .*config\.json implies"),
                (_swapped(bank.parts, i, foreign), rf"{part.name} is stored as F16"),
            ):
                with pytest.raises((ModelError, UnsupportedError), match=error):
                    check_tensors(config, trunk, banks | {layer: replace(bank, parts=parts)})


def _swapped(parts: tuple[Part, ...], index: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:index], part, *parts[index + 1 :])


def test_experts_may_be_f32() -> None:
    config, trunk, banks = checkpoint("tiny-groups")
    parts = tuple(replace(part, dtype="F32") for part in banks[1].parts)
    check_tensors(config, trunk, banks | {1: replace(banks[1], parts=parts)})


def test_mxfp4_needs_whole_groups() -> None:
    config, trunk, banks = checkpoint("tiny-k3")
    assert config.moe is not None
    for width in (40, 56, 72):
        odd = replace(config, moe=replace(config.moe, expert_width=width, num_shared=0))
        without_shared = {name: info for name, info in trunk.items() if "shared_experts" not in name}
        with pytest.raises(UnsupportedError, match=rf"moe_intermediate_size is {width}, .*multiple of 32.*MXFP4"):
            check_tensors(odd, without_shared, banks)


WIDTH_KEYS = (
    "hidden_size",
    "intermediate_size",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "moe_intermediate_size",
    "routed_expert_hidden_size",
    "linear_attn_config__head_dim",
)


@pytest.mark.parametrize("key", WIDTH_KEYS)
def test_widths_are_whole_lanes(key: str) -> None:
    config = parse_config(changed(KIMI_K3, **{f"text_config__{key}": 2044}))
    with pytest.raises(UnsupportedError, match=rf"{key.split('__')[-1]} is 2044, expected a multiple of 8"):
        check_tensors(config, {}, {})

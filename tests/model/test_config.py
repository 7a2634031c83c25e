"""The config reader takes the published configs as they are and refuses anything it would have to guess."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.model.configs import (
    ABSENT,
    DEMO,
    GOLDEN_NAMES,
    KIMI_K3,
    KIMI_LINEAR,
    MXFP4,
    changed,
    golden_config,
)
from waste.errors import ModelError, UnsupportedError
from waste.model.config import Activation, KdaConfig, MlaConfig, MoeConfig, parse_config

HUGE = 10**12


def test_kimi_k3() -> None:
    config = parse_config(KIMI_K3)
    assert config.prefix == "language_model."
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (93, 7168, 163840)
    assert config.attn_res_block_size == 12
    assert config.activation == Activation("situ", 4.0, 25.0)
    assert config.kda == KdaConfig(96, 128, 4, full_rank_gate=True, gate_lower_bound=-5.0)
    assert config.kda.channels == 12288
    assert config.mla == MlaConfig(96, 1536, 512, 128, 64, 128, output_gate=True)
    assert config.moe == MoeConfig(896, 16, 2, 3072, 3584, True, 1.0, True, "sigmoid", 1, 1)
    assert config.moe.input_size(config.hidden_size) == 3584
    assert config.moe.shared_width == 6144
    assert sum(config.layer_is_kda) == 69
    assert [i for i, is_kda in enumerate(config.layer_is_kda) if not is_kda] == [*range(3, 92, 4), 92]
    assert [config.is_moe(i) for i in range(3)] == [False, True, True]
    assert (config.bos_token_id, config.eos_token_ids) == (163584, (163585, 163586))


def test_kimi_linear() -> None:
    config = parse_config(KIMI_LINEAR)
    assert config.prefix == ""
    assert config.attn_res_block_size is None
    assert config.activation.name == "silu"
    assert config.kda == KdaConfig(32, 128, 4, full_rank_gate=False, gate_lower_bound=None)
    assert config.mla == MlaConfig(32, None, 512, 128, 64, 128, output_gate=False)
    assert config.moe == MoeConfig(256, 8, 1, 1024, None, False, 2.446, True, "sigmoid", 1, 1)
    assert config.moe.input_size(config.hidden_size) == 2304
    assert sum(config.layer_is_kda) == 20
    assert config.max_context == 1048576
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_models(name: str) -> None:
    raw = golden_config(name)
    config = parse_config(raw)
    text = raw.get("text_config", raw)
    assert config.num_hidden_layers == len(config.layer_is_kda) == text["num_hidden_layers"]
    assert config.hidden_size == text["hidden_size"]
    assert config.moe is not None
    assert (config.moe.groups, config.moe.topk_groups) == (text["num_expert_group"], text["topk_group"])
    assert config.eos_token_ids == (2,)


def test_demo_model() -> None:
    config = parse_config(json.loads((DEMO / "config.json").read_text(encoding="utf-8")))
    assert config.layer_is_kda == (True, True, True, False, True, True, True, False, False)
    assert (config.bos_token_id, config.eos_token_ids, config.max_context) == (1792, (1793,), 4096)


def test_softmax_router_and_groups_are_allowed() -> None:
    config = parse_config(changed(KIMI_LINEAR, moe_router_activation_func="softmax", num_expert_group=8, topk_group=4))
    assert config.moe is not None
    assert config.moe.router_activation == "softmax"
    assert (config.moe.groups, config.moe.topk_groups) == (8, 4)


def test_layers_without_experts() -> None:
    config = parse_config(changed(KIMI_LINEAR, first_k_dense_replace=3, moe_layer_freq=4))
    assert [i for i in range(10) if config.is_moe(i)] == [4, 8]


def test_a_model_without_experts() -> None:
    absent = dict.fromkeys(("num_experts", "num_experts_per_token", "moe_intermediate_size"), ABSENT)
    config = parse_config(changed(KIMI_LINEAR, **absent))
    assert config.moe is None
    assert not any(config.is_moe(i) for i in range(27))


def test_situ_without_linear_beta_leaves_up_uncapped() -> None:
    config = parse_config(changed(KIMI_K3, text_config__activation_situ_linear_beta=ABSENT))
    assert config.activation == Activation("situ", 4.0, None)


def test_latent_experts_without_norm() -> None:
    config = parse_config(changed(KIMI_K3, text_config__latent_moe_use_norm=False))
    assert config.moe is not None
    assert not config.moe.latent_norm


def test_outer_values_count_where_the_text_config_has_none() -> None:
    config = parse_config(changed(KIMI_K3, text_config__bos_token_id=None) | {"bos_token_id": 7})
    assert config.bos_token_id == 7
    assert parse_config(KIMI_K3 | {"bos_token_id": 7}).bos_token_id == 163584


INTEGER_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "num_experts",
    "num_experts_per_token",
    "moe_intermediate_size",
    "moe_layer_freq",
    "num_expert_group",
    "topk_group",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "model_max_length",
    "linear_attn_config__num_heads",
    "linear_attn_config__head_dim",
    "linear_attn_config__short_conv_kernel_size",
)
NOT_DIMENSIONS = (0, -1, True, 8.0, "8", [8], HUGE, 10**5000)


@pytest.mark.parametrize(
    "value",
    NOT_DIMENSIONS,
    ids=("zero", "negative", "bool", "float", "str", "list", "huge", "gigantic"),
)
@pytest.mark.parametrize("key", INTEGER_KEYS)
def test_what_is_not_a_dimension(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"{key.split('__')[-1]} is .*expected an integer from"):
        parse_config(changed(KIMI_LINEAR, **{key: value}))


REQUIRED_KEYS = tuple(key for key in KIMI_LINEAR if key not in ("architectures", "q_lora_rank", "model_max_length"))


@pytest.mark.parametrize("key", REQUIRED_KEYS)
def test_a_missing_key(key: str) -> None:
    with pytest.raises(ModelError, match=rf"{key} is missing, expected"):
        parse_config(changed(KIMI_LINEAR, **{key: ABSENT}))


CONTRADICTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("kda_layers is missing", {"linear_attn_config__kda_layers": ABSENT}),
    ("full_attn_layers is missing", {"linear_attn_config__full_attn_layers": ABSENT}),
    ("kda_layers is null", {"linear_attn_config__kda_layers": None}),
    ("kda_layers is .*expected a list", {"linear_attn_config__kda_layers": "1,2,3"}),
    ("layer 1 .* in both .*kda_layers", {"linear_attn_config__full_attn_layers": [1, *range(4, 25, 4), 27]}),
    ("layer 27 .* in neither .*kda_layers", {"linear_attn_config__full_attn_layers": list(range(4, 25, 4))}),
    ("full_attn_layers holds 28", {"linear_attn_config__full_attn_layers": [*range(4, 25, 4), 27, 28]}),
    ("full_attn_layers holds 0", {"linear_attn_config__full_attn_layers": [0, *range(4, 25, 4), 27]}),
    ("full_attn_layers holds true", {"linear_attn_config__full_attn_layers": [True, 4]}),
    ("full_attn_layers holds 4.0", {"linear_attn_config__full_attn_layers": [4.0]}),
    ("full_attn_layers .* every number once", {"linear_attn_config__full_attn_layers": [4, 4]}),
    ("linear_attn_config is null", {"linear_attn_config": None}),
    ("num_experts_per_token is 257", {"num_experts_per_token": 257}),
    ("num_expert_group is 3, expected a divisor", {"num_expert_group": 3}),
    ("topk_group is 5", {"num_expert_group": 4, "topk_group": 5}),
    ("num_expert_group is 256, .*two experts", {"num_expert_group": 256, "topk_group": 8}),
    ("num_experts_per_token is 8, .*the 4", {"num_expert_group": 128, "topk_group": 2}),
    ("use_grouped_topk is false", {"num_expert_group": 4, "topk_group": 2, "use_grouped_topk": False}),
    ("num_experts is null", {"num_experts": None}),
    ("first_k_dense_replace is 28", {"first_k_dense_replace": 28}),
    ("first_k_dense_replace is -1", {"first_k_dense_replace": -1}),
    ('hidden_act is .gelu., expected "silu" or "situ"', {"hidden_act": "gelu"}),
    ("activation_situ_beta is missing", {"hidden_act": "situ"}),
    ("activation_situ_beta is 0", {"hidden_act": "situ", "activation_situ_beta": 0}),
    (
        "activation_situ_linear_beta is -1",
        {"hidden_act": "situ", "activation_situ_beta": 4, "activation_situ_linear_beta": -1},
    ),
    ("moe_router_activation_func is .relu.", {"moe_router_activation_func": "relu"}),
    ("moe_renormalize is 1,", {"moe_renormalize": 1}),
    ("routed_scaling_factor is nan", {"routed_scaling_factor": math.nan}),
    ("routed_scaling_factor is inf", {"routed_scaling_factor": math.inf}),
    ("routed_scaling_factor is an integer of more", {"routed_scaling_factor": 10**5000}),
    ("rms_norm_eps is 0.0", {"rms_norm_eps": 0.0}),
    ("rms_norm_eps is true", {"rms_norm_eps": True}),
    ("num_key_value_heads is 8, expected num_attention_heads, 32", {"num_key_value_heads": 8}),
    ("q_lora_rank is 0", {"q_lora_rank": 0}),
    ("attn_res_block_size is 0", {"attn_res_block_size": 0}),
    ("latent_moe_use_norm is true, .*routed_expert_hidden_size", {"latent_moe_use_norm": True}),
    ("latent_moe_use_norm is missing", {"routed_expert_hidden_size": 64}),
    ("gate_lower_bound is 5.0", {"linear_attn_config__gate_lower_bound": 5.0}),
    ("use_full_rank_gate is 1,", {"linear_attn_config__use_full_rank_gate": 1}),
    ("eos_token_id is 163840", {"eos_token_id": 163840}),
    ("eos_token_id holds -1", {"eos_token_id": [1, -1]}),
    ("bos_token_id is .*BOS", {"bos_token_id": "[BOS]"}),
    ("model_type is .llama., expected .kimi_linear. or .kimi_k3.", {"model_type": "llama"}),
    ("architectures is .*KimiLinearForCausalLM", {"architectures": ["LlamaForCausalLM"]}),
    ("architectures is .*a list", {"architectures": "KimiLinearForCausalLM"}),
    ("text_config is .*expected an object", {"text_config": "kimi_linear"}),
)


@pytest.mark.parametrize(("message", "changes"), CONTRADICTIONS, ids=[message for message, _ in CONTRADICTIONS])
def test_contradictions(message: str, changes: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config(changed(KIMI_LINEAR, **changes))


UNSUPPORTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mla_use_nope is false, .*rotary", {"mla_use_nope": False}),
    ("short_conv_kernel_size is 3", {"linear_attn_config__short_conv_kernel_size": 3}),
    ("quantization_config.format is .*mxfp4", {"quantization_config": MXFP4 | {"format": "pack-quantized"}}),
    ("quantization_config.quant_method is .fp8.", {"quantization_config": {"quant_method": "fp8"}}),
    ("topk_method is .greedy., expected .noaux_tc.", {"topk_method": "greedy"}),
    (
        "group_0.weights.group_size is 16, expected 32",
        {"quantization_config": changed(MXFP4, config_groups__group_0__weights__group_size=16)},
    ),
    (
        "group_0.weights.num_bits is 8, expected 4",
        {"quantization_config": changed(MXFP4, config_groups__group_0__weights__num_bits=8)},
    ),
    (
        "group_0.weights.type is .int., expected .float.",
        {"quantization_config": changed(MXFP4, config_groups__group_0__weights__type="int")},
    ),
)


@pytest.mark.parametrize(("message", "changes"), UNSUPPORTED, ids=[message for message, _ in UNSUPPORTED])
def test_what_nothing_here_can_run(message: str, changes: dict[str, object]) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse_config(changed(KIMI_LINEAR, **changes))


def test_nested_keys_are_named_with_their_path() -> None:
    with pytest.raises(ModelError, match=r"text_config\.linear_attn_config\.num_heads is 0"):
        parse_config(changed(KIMI_K3, text_config__linear_attn_config__num_heads=0))


def test_the_two_levels_must_agree_on_tied_embeddings() -> None:
    with pytest.raises(ModelError, match=r"tie_word_embeddings is true.*text_config"):
        parse_config(KIMI_K3 | {"tie_word_embeddings": True})


def test_a_foreign_text_config() -> None:
    with pytest.raises(ModelError, match=r"text_config\.model_type is .*llama"):
        parse_config(changed(KIMI_K3, text_config__model_type="llama"))

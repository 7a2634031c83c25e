"""The configs of the two published models, reduced to what the reader looks at, and of the test models."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
DEMO = ROOT / "waste" / "demo"
GOLDEN_NAMES = ("tiny-k3", "tiny-kimi-linear", "tiny-groups")

KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "num_hidden_layers": 27,
    "hidden_size": 2304,
    "vocab_size": 163840,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "intermediate_size": 9216,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "tie_word_embeddings": False,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "routed_scaling_factor": 2.446,
    "num_expert_group": 1,
    "topk_group": 1,
    "hidden_act": "silu",
    "linear_attn_config": {
        "kda_layers": [i for i in range(1, 28) if i % 4 and i != 27],
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "rms_norm_eps": 1e-5,
    "model_max_length": 1048576,
}

MXFP4 = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "float", "symmetric": True}}},
}

KIMI_K3: dict[str, Any] = {
    "model_type": "kimi_k3",
    "architectures": ["KimiK3ForConditionalGeneration"],
    "tie_word_embeddings": False,
    "quantization_config": MXFP4,
    "text_config": {
        **KIMI_LINEAR,
        "num_hidden_layers": 93,
        "hidden_size": 7168,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "intermediate_size": 33792,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584,
        "latent_moe_use_norm": True,
        "routed_scaling_factor": 1.0,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 12,
        "linear_attn_config": {
            "kda_layers": [i for i in range(1, 93) if i % 4],
            "full_attn_layers": [*range(4, 93, 4), 93],
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
        "q_lora_rank": 1536,
        "mla_use_output_gate": True,
        "bos_token_id": 163584,
        "eos_token_id": [163585, 163586],
    },
}

ABSENT = object()


def changed(config: dict[str, Any], **changes: object) -> dict[str, Any]:
    """A deep copy with keys replaced; `a__b` reaches into a section, `ABSENT` removes the key."""
    copied = copy.deepcopy(config)
    for path, value in changes.items():
        *sections, key = path.split("__")
        level = copied
        for section in sections:
            level = level[section]
        if value is ABSENT:
            del level[key]
        else:
            level[key] = value
    return copied


def golden_config(name: str) -> dict[str, Any]:
    """`config.json` of a golden model."""
    raw: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text(encoding="utf-8"))
    return raw

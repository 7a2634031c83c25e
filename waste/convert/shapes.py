"""The configs of the two published models, and smaller ones of the same widths."""

from __future__ import annotations

from typing import Any, Literal

from waste.errors import InputError

Shape = Literal["k3", "kimi-linear"]
SHAPES: tuple[Shape, ...] = ("k3", "kimi-linear")
LARGEST_BLOCK = 12

_MXFP4 = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "weights": {
                "num_bits": 4,
                "group_size": 32,
                "type": "float",
                "scale_dtype": "torch.uint8",
                "strategy": "group",
                "symmetric": True,
            },
        }
    },
}


def shape_config(shape: Shape, *, layers: int | None = None, experts: int | None = None) -> dict[str, Any]:
    """`config.json` at a published model's widths, with fewer (or more) layers and experts where asked.

    Every fourth layer and the last have full attention; attention-residual blocks are fitted to the layers.
    Raises InputError for counts that make no model.
    """
    count = (93 if shape == "k3" else 27) if layers is None else layers
    banks = (896 if shape == "k3" else 256) if experts is None else experts
    if not 2 <= count <= 4096:
        raise InputError(f"--layers is {count}, expected 2 to 4096: a dense one first, full attention last")
    least = 16 if shape == "k3" else 8
    if not least <= banks <= 65536:
        raise InputError(f"--experts is {banks}, expected {least} (the experts of a token) to 65536")
    text = _text(shape, count, banks)
    if shape == "kimi-linear":
        return text
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "text_config": text,
        "tie_word_embeddings": False,
        "quantization_config": _MXFP4,
    }


def _text(shape: Shape, layers: int, experts: int) -> dict[str, Any]:
    is_k3 = shape == "k3"
    full = sorted({*range(4, layers, 4), layers})
    linear: dict[str, Any] = {
        "num_heads": 96 if is_k3 else 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "full_attn_layers": full,
        "kda_layers": [layer for layer in range(1, layers + 1) if layer not in full],
    }
    config: dict[str, Any] = {
        "model_type": "kimi_linear",
        "architectures": ["KimiLinearForCausalLM"],
        "vocab_size": 163840,
        "hidden_size": 7168 if is_k3 else 2304,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "intermediate_size": 33792 if is_k3 else 9216,
        "moe_intermediate_size": 3072 if is_k3 else 1024,
        "num_experts": experts,
        "num_experts_per_token": 16 if is_k3 else 8,
        "num_shared_experts": 2 if is_k3 else 1,
        "routed_scaling_factor": 1.0 if is_k3 else 2.446,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "topk_group": 1,
        "hidden_act": "situ" if is_k3 else "silu",
        "num_attention_heads": 96 if is_k3 else 32,
        "num_key_value_heads": 96 if is_k3 else 32,
        "q_lora_rank": 1536 if is_k3 else None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1048576,
        "linear_attn_config": linear,
    }
    if is_k3:
        linear |= {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
        config |= {
            "routed_expert_hidden_size": 3584,
            "latent_moe_use_norm": True,
            "attn_res_block_size": _block_size(layers),
            "activation_situ_beta": 4.0,
            "activation_situ_linear_beta": 25.0,
            "mla_use_output_gate": True,
        }
    return config


def _block_size(layers: int) -> int:
    """As many blocks as the full model has layers for, but at least two where there are layers for two."""
    return max(1, min(LARGEST_BLOCK, -(-layers // 2)))

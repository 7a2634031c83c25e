"""Which tensors the walk needs, and whether a checkpoint has them in the shapes its config implies.

Names are those of the published checkpoints. Every expected dimension remembers the config key it came from,
so that a contradiction is reported with both sides: the tensor and the key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from waste.errors import ModelError, UnsupportedError
from waste.model.config import MXFP4_GROUP, ModelConfig, MoeConfig

if TYPE_CHECKING:
    from waste.io.source import Bank, Part, TensorInfo

PLAIN_DTYPES = ("BF16", "F32")
TRUNK_DTYPES = ("BF16", "F16", "F32", "Q8G", "Q4G")
LANES = 8

PLAIN_PARTS = ("w1.weight", "w3.weight", "w2.weight")
VECTOR_PARTS = (*PLAIN_PARTS, *(f"{part}_scale" for part in PLAIN_PARTS))
MXFP4_PARTS = tuple(f"{matrix}.weight_{half}" for matrix in ("w1", "w3", "w2") for half in ("packed", "scale"))

# Tensors of one layer that only some configs call for, and the key that would. Finding one that the config
# does not call for means that the config lost that key; running without it would answer, and wrongly.
OPTIONAL_TENSORS = {
    "self_attention_res_norm.weight": "attn_res_block_size",
    "self_attention_res_proj.weight": "attn_res_block_size",
    "mlp_res_norm.weight": "attn_res_block_size",
    "mlp_res_proj.weight": "attn_res_block_size",
    "self_attn.q_a_proj.weight": "q_lora_rank",
    "self_attn.f_a_proj.weight": "linear_attn_config.full_attn_layers",
    "self_attn.kv_a_proj_with_mqa.weight": "linear_attn_config.kda_layers",
    "self_attn.g_a_proj.weight": "linear_attn_config.use_full_rank_gate",
    "block_sparse_moe.gate.weight": "moe_layer_freq",
    "block_sparse_moe.routed_expert_down_proj.weight": "routed_expert_hidden_size",
    "block_sparse_moe.routed_expert_norm.weight": "latent_moe_use_norm",
    "block_sparse_moe.shared_experts.gate_proj.weight": "num_shared_experts",
    "mlp.gate_proj.weight": "first_k_dense_replace",
}


class Dim(NamedTuple):
    """One expected dimension and the config key (or product of keys) that it follows from."""

    key: str
    size: int


Shape = tuple[Dim, ...]


def tensor_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Name, prefix included, to shape for every tensor but the routed experts, in walk order.

    `A_log` is given as `[heads]`; checkpoints store it in other shapes and may pad it (see `check_tensors`).
    """
    return {name: tuple(dim.size for dim in shape) for name, shape in _trunk(config)}


def expert_shapes(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    """`w1`, `w3`, `w2` of one routed expert to `(rows, columns)`; empty without experts."""
    if config.moe is None:
        return {}
    return {name: (rows.size, columns.size) for name, (rows, columns) in _expert(config, config.moe).items()}


def check_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo], banks: Mapping[int, Bank]) -> None:
    """Check that every tensor and every expert the walk needs is there, in the shape and a dtype it can use.

    Raises `ModelError` naming the tensor, the shape found, the shape expected and the config key it follows
    from; `UnsupportedError` for a width or a dtype the kernels cannot take. Values are not looked at.
    """
    check_widths(config)
    for name, shape in _trunk(config):
        if name not in tensors:
            raise ModelError(f"{name} is missing, config.json implies {_described(shape)}")
        _check_tensor(name, tensors[name], shape)
    for layer in range(config.num_hidden_layers):
        _check_unexpected(config, layer, tensors)
    if config.moe is not None:
        for layer in filter(config.is_moe, range(config.num_hidden_layers)):
            _check_bank(config, config.moe, layer, banks.get(layer))


def check_widths(config: ModelConfig) -> None:
    """Raise `UnsupportedError` naming the key of a width that is not a whole number of eight-lane steps."""
    for dim in _widths(config):
        if dim.size % LANES:
            raise UnsupportedError(
                f"config.json: {dim.key} is {dim.size}, expected a multiple of {LANES}: products run in {LANES} lanes"
            )


def _widths(config: ModelConfig) -> Iterator[Dim]:
    yield Dim("hidden_size", config.hidden_size)
    yield Dim("intermediate_size", config.intermediate_size)
    yield Dim("linear_attn_config.head_dim", config.kda.head_dim)
    mla = config.mla
    if mla.q_lora_rank is not None:
        yield Dim("q_lora_rank", mla.q_lora_rank)
    yield Dim("kv_lora_rank", mla.kv_lora_rank)
    yield Dim("qk_nope_head_dim", mla.qk_nope_head_dim)
    yield Dim("qk_rope_head_dim", mla.qk_rope_head_dim)
    yield Dim("v_head_dim", mla.v_head_dim)
    if config.moe is not None:
        yield Dim("moe_intermediate_size", config.moe.expert_width)
        if config.moe.latent_size is not None:
            yield Dim("routed_expert_hidden_size", config.moe.latent_size)


def _trunk(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden = Dim("hidden_size", config.hidden_size)
    vocab = Dim("vocab_size", config.vocab_size)
    model = f"{config.prefix}model."
    yield f"{model}embed_tokens.weight", (vocab, hidden)
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer(config, layer, hidden):
            yield f"{model}layers.{layer}.{name}", shape
    if config.attn_res_block_size is not None:
        yield f"{model}output_attn_res_norm.weight", (hidden,)
        yield f"{model}output_attn_res_proj.weight", (Dim("1", 1), hidden)
    yield f"{model}norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield f"{config.prefix}lm_head.weight", (vocab, hidden)


def _layer(config: ModelConfig, layer: int, hidden: Dim) -> Iterator[tuple[str, Shape]]:
    if config.attn_res_block_size is not None:
        for mix in ("self_attention_res", "mlp_res"):
            yield f"{mix}_norm.weight", (hidden,)
            yield f"{mix}_proj.weight", (Dim("1", 1), hidden)
    yield "input_layernorm.weight", (hidden,)
    yield from _kda(config, hidden) if config.layer_is_kda[layer] else _mla(config, hidden)
    yield "post_attention_layernorm.weight", (hidden,)
    if config.moe is not None and config.is_moe(layer):
        yield from _moe(config.moe, hidden)
    else:
        yield from _mlp("mlp", hidden, Dim("intermediate_size", config.intermediate_size))


def _kda(config: ModelConfig, hidden: Dim) -> Iterator[tuple[str, Shape]]:
    kda = config.kda
    heads = Dim("linear_attn_config.num_heads", kda.num_heads)
    width = Dim("linear_attn_config.head_dim", kda.head_dim)
    channels = Dim("linear_attn_config.num_heads·head_dim", kda.channels)
    for name in ("q", "k", "v"):
        yield f"self_attn.{name}_proj.weight", (channels, hidden)
        taps = Dim("linear_attn_config.short_conv_kernel_size", kda.conv_kernel)
        yield f"self_attn.{name}_conv1d.weight", (channels, Dim("1", 1), taps)
    yield "self_attn.f_a_proj.weight", (width, hidden)
    yield "self_attn.f_b_proj.weight", (channels, width)
    yield "self_attn.dt_bias", (channels,)
    yield "self_attn.A_log", (heads,)
    yield "self_attn.b_proj.weight", (heads, hidden)
    if kda.full_rank_gate:
        yield "self_attn.g_proj.weight", (channels, hidden)
    else:
        yield "self_attn.g_a_proj.weight", (width, hidden)
        yield "self_attn.g_b_proj.weight", (channels, width)
    yield "self_attn.o_norm.weight", (width,)
    yield "self_attn.o_proj.weight", (hidden, channels)


def _mla(config: ModelConfig, hidden: Dim) -> Iterator[tuple[str, Shape]]:
    mla = config.mla
    query_width = mla.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    query = Dim("num_attention_heads·(qk_nope_head_dim+qk_rope_head_dim)", query_width)
    rank = Dim("kv_lora_rank", mla.kv_lora_rank)
    latent = Dim("kv_lora_rank+qk_rope_head_dim", mla.kv_lora_rank + mla.qk_rope_head_dim)
    expanded_width = mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    expanded = Dim("num_attention_heads·(qk_nope_head_dim+v_head_dim)", expanded_width)
    value = Dim("num_attention_heads·v_head_dim", mla.num_heads * mla.v_head_dim)
    if mla.q_lora_rank is None:
        yield "self_attn.q_proj.weight", (query, hidden)
    else:
        query_rank = Dim("q_lora_rank", mla.q_lora_rank)
        yield "self_attn.q_a_proj.weight", (query_rank, hidden)
        yield "self_attn.q_a_layernorm.weight", (query_rank,)
        yield "self_attn.q_b_proj.weight", (query, query_rank)
    yield "self_attn.kv_a_proj_with_mqa.weight", (latent, hidden)
    yield "self_attn.kv_a_layernorm.weight", (rank,)
    yield "self_attn.kv_b_proj.weight", (expanded, rank)
    if mla.output_gate:
        yield "self_attn.g_proj.weight", (value, hidden)
    yield "self_attn.o_proj.weight", (hidden, value)


def _moe(moe: MoeConfig, hidden: Dim) -> Iterator[tuple[str, Shape]]:
    experts = Dim("num_experts", moe.num_experts)
    yield "block_sparse_moe.gate.weight", (experts, hidden)
    yield "block_sparse_moe.gate.e_score_correction_bias", (experts,)
    if moe.latent_size is not None:
        latent = Dim("routed_expert_hidden_size", moe.latent_size)
        yield "block_sparse_moe.routed_expert_down_proj.weight", (latent, hidden)
        if moe.latent_norm:
            yield "block_sparse_moe.routed_expert_norm.weight", (latent,)
        yield "block_sparse_moe.routed_expert_up_proj.weight", (hidden, latent)
    if moe.num_shared:
        width = Dim("moe_intermediate_size·num_shared_experts", moe.shared_width)
        yield from _mlp("block_sparse_moe.shared_experts", hidden, width)


def _mlp(name: str, hidden: Dim, width: Dim) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.gate_proj.weight", (width, hidden)
    yield f"{name}.up_proj.weight", (width, hidden)
    yield f"{name}.down_proj.weight", (hidden, width)


def _expert(config: ModelConfig, moe: MoeConfig) -> dict[str, tuple[Dim, Dim]]:
    key = "hidden_size" if moe.latent_size is None else "routed_expert_hidden_size"
    outside = Dim(key, moe.input_size(config.hidden_size))
    inside = Dim("moe_intermediate_size", moe.expert_width)
    return {"w1": (inside, outside), "w3": (inside, outside), "w2": (outside, inside)}


def _check_tensor(name: str, found: TensorInfo, expected: Shape) -> None:
    _check_dtype(name, found.dtype, TRUNK_DTYPES)
    if name.endswith(".A_log"):
        heads = expected[0]
        if math.prod(found.shape) < heads.size:
            raise ModelError(f"{name} is {list(found.shape)}, expected at least {heads.size} values ({heads.key})")
    elif found.shape != tuple(dim.size for dim in expected):
        raise ModelError(f"{name} is {list(found.shape)}, config.json implies {_described(expected)}")


def _check_dtype(name: str, dtype: str, known: Sequence[str]) -> None:
    if dtype not in known:
        raise UnsupportedError(f"{name} is stored as {dtype}, expected {' or '.join(known)}")


def _check_unexpected(config: ModelConfig, layer: int, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse a layer that holds tensors the config does not call for."""
    expected = {name for name, _ in _layer(config, layer, Dim("hidden_size", config.hidden_size))}
    optional = dict(OPTIONAL_TENSORS)
    kind = "linear_attn_config.use_full_rank_gate" if config.layer_is_kda[layer] else "mla_use_output_gate"
    optional["self_attn.g_proj.weight"] = kind
    for suffix, key in optional.items():
        name = f"{config.prefix}model.layers.{layer}.{suffix}"
        if suffix not in expected and name in tensors:
            raise ModelError(f"{name} is in the checkpoint, but config.json calls for none: check {key}")


def _check_bank(config: ModelConfig, moe: MoeConfig, layer: int, bank: Bank | None) -> None:
    name = f"{config.prefix}model.layers.{layer}.block_sparse_moe.experts"
    if bank is None:
        raise ModelError(f"{name} are missing, expected {moe.num_experts} (num_experts)")
    if bank.records != moe.num_experts:
        raise ModelError(f"{name} are {bank.records}, expected {moe.num_experts} (num_experts)")
    parts = {part.name: part for part in bank.parts if bank.header is None or part.name != "header"}
    shapes = _expert(config, moe)
    if bank.codebooks is not None and tuple(parts) == VECTOR_PARTS:
        for matrix, shape in shapes.items():
            _check_part(name, parts[f"{matrix}.weight"], shape, columns=shape[1].size)
    elif tuple(parts) == PLAIN_PARTS:
        for matrix, shape in shapes.items():
            part = parts[f"{matrix}.weight"]
            _check_dtype(f"{name}.*.{part.name}", part.dtype, PLAIN_DTYPES)
            _check_part(name, part, shape, columns=shape[1].size)
    elif tuple(parts) == MXFP4_PARTS:
        _check_mxfp4(name, parts, shapes)
    else:
        raise ModelError(
            f"{name} consist of {', '.join(parts) or 'nothing'}, "
            f"expected {', '.join(PLAIN_PARTS)} or {', '.join(MXFP4_PARTS)}"
        )


def _check_mxfp4(name: str, parts: Mapping[str, Part], shapes: Mapping[str, tuple[Dim, Dim]]) -> None:
    """Two codes a byte, and one scale for a group of them, in a row: only whole groups can be stored."""
    for _, columns in shapes.values():
        if columns.size % MXFP4_GROUP:
            raise UnsupportedError(
                f"config.json: {columns.key} is {columns.size}, expected a multiple of {MXFP4_GROUP}: "
                f"{name} are stored as MXFP4, in groups of {MXFP4_GROUP}"
            )
    for matrix, shape in shapes.items():
        for half, weights in (("packed", 2), ("scale", MXFP4_GROUP)):
            part = parts[f"{matrix}.weight_{half}"]
            if part.dtype != "U8":
                raise UnsupportedError(f"{name}.*.{part.name} is stored as {part.dtype}, expected U8")
            _check_part(name, part, shape, columns=shape[1].size // weights)


def _check_part(name: str, part: Part, shape: tuple[Dim, Dim], *, columns: int) -> None:
    rows = shape[0]
    if part.shape != (rows.size, columns):
        raise ModelError(
            f"{name}.*.{part.name} is {list(part.shape)}, "
            f"config.json implies [{rows.size}, {columns}] ({rows.key}, {shape[1].key})"
        )


def _described(shape: Shape) -> str:
    return f"{[dim.size for dim in shape]} ({', '.join(dim.key for dim in shape)})"

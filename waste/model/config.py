"""What `config.json` says about a model, read without guessing.

Two families share these types, Kimi-Linear and Kimi K3; the names in `ARCHITECTURES` and `MODEL_TYPES` only
say that the formulas are the known ones. Layers count from 0 here; the two layer maps of the file from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from waste.errors import ModelError, UnsupportedError
from waste.model.config_fields import ConfigFields

ARCHITECTURES = ("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")
MODEL_TYPES = ("kimi_linear", "kimi_k3")

# Bounds far above any real model: a number beyond them is a damaged or hostile file, to size nothing with.
MAX_LAYERS = 4096
MAX_HEADS = 65_536
MAX_EXPERTS = 65_536
MAX_WIDTH = 1 << 22
MAX_VOCAB = 1 << 24
MAX_CONTEXT = 1 << 31

CONV_TAPS = 4
MXFP4_FORMAT = "mxfp4-pack-quantized"
MXFP4_GROUP = 32
TOPK_METHOD = "noaux_tc"  # sigmoid or softmax scores, chosen with a correction bias


@dataclass(frozen=True, slots=True)
class Activation:
    """The gated activation of every MLP: `silu`, or `situ` with its caps (`linear_beta` None: none on up)."""

    name: Literal["silu", "situ"]
    beta: float
    linear_beta: float | None


@dataclass(frozen=True, slots=True)
class KdaConfig:
    """Kimi delta attention. `gate_lower_bound` None selects the softplus decay."""

    num_heads: int
    head_dim: int
    conv_kernel: int
    full_rank_gate: bool
    gate_lower_bound: float | None

    @property
    def channels(self) -> int:
        """Width of q, k, v and the gate over all heads."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Latent attention without rotary embedding. `q_lora_rank` None: the query is one product."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    output_gate: bool


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Router and experts. `expert_width` is an expert's inner width; `latent_size` None: experts read x."""

    num_experts: int
    top_k: int
    num_shared: int
    expert_width: int
    latent_size: int | None
    latent_norm: bool
    scaling: float
    renormalize: bool
    router_activation: Literal["sigmoid", "softmax"]
    groups: int
    topk_groups: int

    def input_size(self, hidden_size: int) -> int:
        """Width of what a routed expert reads and writes."""
        return hidden_size if self.latent_size is None else self.latent_size

    @property
    def shared_width(self) -> int:
        """Inner width of the shared experts, one MLP; 0 without any."""
        return self.expert_width * self.num_shared


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A whole model. `prefix` stands before every tensor name; `max_context` None: no limit is named."""

    prefix: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    intermediate_size: int
    first_k_dense_replace: int
    moe_layer_freq: int
    attn_res_block_size: int | None
    max_context: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    activation: Activation
    kda: KdaConfig
    mla: MlaConfig
    moe: MoeConfig | None
    layer_is_kda: tuple[bool, ...]

    def is_moe(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) routes to experts; the others are an MLP of `intermediate_size`."""
        return self.moe is not None and layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0


def parse_config(raw: Mapping[str, object], *, prefix: str | None = None) -> ModelConfig:
    """The model `config.json` describes. prefix: of tensor names, where that is known from elsewhere.

    Raises `ModelError` naming the key, what was found and what was expected where the file is incomplete or
    contradicts itself, and `UnsupportedError` where it asks for something that nothing here can run.
    """
    outer = ConfigFields(raw)
    _check_family(outer)
    _check_quantization(outer)
    nested = outer.has("text_config")
    text = outer.section("text_config") if nested else outer
    if nested:
        _check_family(text)
        _check_quantization(text)
    if prefix is None:
        prefix = "language_model." if nested else ""
    num_layers = text.integer("num_hidden_layers", low=1, high=MAX_LAYERS)
    vocab_size = text.integer("vocab_size", low=1, high=MAX_VOCAB)
    return ModelConfig(
        prefix=prefix,
        hidden_size=text.integer("hidden_size", low=1, high=MAX_WIDTH),
        num_hidden_layers=num_layers,
        vocab_size=vocab_size,
        rms_norm_eps=text.number("rms_norm_eps", above=0.0, below=1.0),
        tie_word_embeddings=_tie_word_embeddings(outer, text),
        intermediate_size=text.integer("intermediate_size", low=1, high=MAX_WIDTH),
        first_k_dense_replace=text.integer("first_k_dense_replace", low=0, high=num_layers),
        moe_layer_freq=text.integer("moe_layer_freq", low=1, high=MAX_LAYERS),
        attn_res_block_size=text.optional_integer("attn_res_block_size", low=1, high=MAX_LAYERS),
        max_context=_max_context(outer, text),
        bos_token_id=_level_with("bos_token_id", outer, text).optional_integer(
            "bos_token_id", low=0, high=vocab_size - 1
        ),
        eos_token_ids=_eos_token_ids(_level_with("eos_token_id", outer, text), vocab_size),
        activation=_activation(text),
        kda=_kda(text),
        mla=_mla(text),
        moe=_moe(text),
        layer_is_kda=_layer_is_kda(text, num_layers),
    )


def _check_family(fields: ConfigFields) -> None:
    if fields.choice("model_type", MODEL_TYPES) and not fields.has("architectures"):
        return
    if not set(fields.strings("architectures")) & set(ARCHITECTURES):
        fields.refuse("architectures", f"one of {', '.join(ARCHITECTURES)}")


def _check_quantization(fields: ConfigFields) -> None:
    """Refuse any storage but MXFP4 in groups of 32. Which tensors are stored so, their own names say."""
    if not fields.has("quantization_config"):
        return
    section = fields.section("quantization_config")
    _require(section, "quant_method", "compressed-tensors")
    _require(section, "format", MXFP4_FORMAT)
    groups = section.section("config_groups")
    for name in groups.key_names():
        group = groups.section(name)
        if group.has("format"):
            _require(group, "format", MXFP4_FORMAT)
        weights = group.section("weights")
        _require(weights, "num_bits", 4)
        _require(weights, "group_size", MXFP4_GROUP)
        _require(weights, "type", "float")
        _require(weights, "symmetric", True)


def _require(fields: ConfigFields, key: str, expected: str | int | bool) -> None:
    try:
        fields.equal(key, expected)
    except ModelError as error:
        raise UnsupportedError(f"{error}; only {MXFP4_FORMAT} weights can be read") from None


def _level_with(key: str, outer: ConfigFields, text: ConfigFields) -> ConfigFields:
    """The level that holds `key`; the text config's own value goes before the outer one."""
    return text if text.has(key) else outer


def _tie_word_embeddings(outer: ConfigFields, text: ConfigFields) -> bool:
    tied = _level_with("tie_word_embeddings", outer, text).flag("tie_word_embeddings")
    if outer.has("tie_word_embeddings") and outer.flag("tie_word_embeddings") != tied:
        outer.refuse("tie_word_embeddings", f"the same as {text.name('tie_word_embeddings')}")
    return tied


def _max_context(outer: ConfigFields, text: ConfigFields) -> int | None:
    for key in ("max_position_embeddings", "model_max_length"):
        limit = _level_with(key, outer, text).optional_integer(key, low=1, high=MAX_CONTEXT)
        if limit is not None:
            return limit
    return None


def _eos_token_ids(fields: ConfigFields, vocab_size: int) -> tuple[int, ...]:
    """`eos_token_id` as published: absent, one id or a list."""
    if fields.is_list("eos_token_id"):
        return fields.integers("eos_token_id", low=0, high=vocab_size - 1)
    single = fields.optional_integer("eos_token_id", low=0, high=vocab_size - 1)
    return () if single is None else (single,)


def _activation(text: ConfigFields) -> Activation:
    if text.choice("hidden_act", ("silu", "situ")) == "silu":
        return Activation("silu", beta=1.0, linear_beta=None)
    return Activation(
        "situ",
        beta=text.number("activation_situ_beta", above=0.0),
        linear_beta=text.optional_number("activation_situ_linear_beta", above=0.0),
    )


def _kda(text: ConfigFields) -> KdaConfig:
    linear = text.section("linear_attn_config")
    taps = linear.integer("short_conv_kernel_size", low=1, high=MAX_WIDTH)
    if taps != CONV_TAPS:
        raise UnsupportedError(
            f"config.json: {linear.name('short_conv_kernel_size')} is {taps}, expected {CONV_TAPS}: "
            "the short convolution has four taps"
        )
    return KdaConfig(
        num_heads=linear.integer("num_heads", low=1, high=MAX_HEADS),
        head_dim=linear.integer("head_dim", low=1, high=MAX_WIDTH),
        conv_kernel=taps,
        full_rank_gate=linear.flag("use_full_rank_gate", default=False),
        gate_lower_bound=linear.optional_number("gate_lower_bound", below=0.0),
    )


def _mla(text: ConfigFields) -> MlaConfig:
    if not text.flag("mla_use_nope"):
        raise UnsupportedError(
            f"config.json: {text.name('mla_use_nope')} is false, expected true: rotary embedding is not supported"
        )
    heads = text.integer("num_attention_heads", low=1, high=MAX_HEADS)
    if text.integer("num_key_value_heads", low=1, high=MAX_HEADS) != heads:
        text.refuse("num_key_value_heads", f"num_attention_heads, {heads}")
    return MlaConfig(
        num_heads=heads,
        q_lora_rank=text.optional_integer("q_lora_rank", low=1, high=MAX_WIDTH),
        kv_lora_rank=text.integer("kv_lora_rank", low=1, high=MAX_WIDTH),
        qk_nope_head_dim=text.integer("qk_nope_head_dim", low=1, high=MAX_WIDTH),
        qk_rope_head_dim=text.integer("qk_rope_head_dim", low=1, high=MAX_WIDTH),
        v_head_dim=text.integer("v_head_dim", low=1, high=MAX_WIDTH),
        output_gate=text.flag("mla_use_output_gate", default=False),
    )


def _moe(text: ConfigFields) -> MoeConfig | None:
    if not any(text.has(key) for key in ("num_experts", "num_experts_per_token", "moe_intermediate_size")):
        return None
    if text.has("topk_method"):
        _require(text, "topk_method", TOPK_METHOD)
    num_experts = text.integer("num_experts", low=1, high=MAX_EXPERTS)
    top_k = text.integer("num_experts_per_token", low=1, high=num_experts)
    groups, topk_groups = _groups(text, num_experts, top_k)
    latent_size = text.optional_integer("routed_expert_hidden_size", low=1, high=MAX_WIDTH)
    if latent_size is None and text.has("latent_moe_use_norm") and text.flag("latent_moe_use_norm"):
        text.refuse("latent_moe_use_norm", "false or absent, since routed_expert_hidden_size is absent")
    return MoeConfig(
        num_experts=num_experts,
        top_k=top_k,
        num_shared=text.integer("num_shared_experts", low=0, high=MAX_EXPERTS),
        expert_width=text.integer("moe_intermediate_size", low=1, high=MAX_WIDTH),
        latent_size=latent_size,
        latent_norm=False if latent_size is None else text.flag("latent_moe_use_norm"),
        scaling=text.number("routed_scaling_factor", above=0.0),
        renormalize=text.flag("moe_renormalize"),
        router_activation=_router_activation(text),
        groups=groups,
        topk_groups=topk_groups,
    )


def _router_activation(text: ConfigFields) -> Literal["sigmoid", "softmax"]:
    name = text.choice("moe_router_activation_func", ("sigmoid", "softmax"))
    return "sigmoid" if name == "sigmoid" else "softmax"


def _groups(text: ConfigFields, num_experts: int, top_k: int) -> tuple[int, int]:
    """Number of expert groups and how many are kept, checked so that a selection always exists."""
    groups = text.integer("num_expert_group", low=1, high=num_experts)
    if num_experts % groups:
        text.refuse("num_expert_group", f"a divisor of num_experts, {num_experts}")
    topk_groups = text.integer("topk_group", low=1, high=groups)
    if topk_groups == groups:
        return groups, topk_groups
    if text.has("use_grouped_topk") and not text.flag("use_grouped_topk"):
        text.refuse("use_grouped_topk", f"true or absent, since topk_group keeps {topk_groups} of {groups} groups")
    group_size = num_experts // groups
    if group_size < 2:
        text.refuse("num_expert_group", "groups of at least two experts, since a group is judged by its two best")
    if top_k > topk_groups * group_size:
        text.refuse("num_experts_per_token", f"at most the {topk_groups * group_size} experts of {topk_groups} groups")
    return groups, topk_groups


def _layer_is_kda(text: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    """The two 1-based layer maps as one flag a layer; together they must name every layer once."""
    linear = text.section("linear_attn_config")
    kda = set(linear.integers("kda_layers", low=1, high=num_layers))
    full = set(linear.integers("full_attn_layers", low=1, high=num_layers))
    both = sorted(kda & full)
    if both:
        raise ModelError(
            f"config.json: layer {both[0]} (from 1) is in both {linear.name('kda_layers')} and "
            f"{linear.name('full_attn_layers')}, expected one of them"
        )
    for layer in range(1, num_layers + 1):
        if layer not in kda and layer not in full:
            raise ModelError(
                f"config.json: layer {layer} (from 1) is in neither {linear.name('kda_layers')} nor "
                f"{linear.name('full_attn_layers')}, expected one of them"
            )
    return tuple(layer in kda for layer in range(1, num_layers + 1))

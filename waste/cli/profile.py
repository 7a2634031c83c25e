"""A model in numbers: parameters, bytes and formats by kind. Nothing is allocated and no weights are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from waste.blueprint import draw
from waste.footprint import RECORD_GAP
from waste.io.container import Container
from waste.io.extents import place
from waste.io.files import FileSet
from waste.model.bundle import ModelBundle
from waste.model.decoder import Decoder
from waste.model.experts import RecordLayout
from waste.model.layout import lay_out
from waste.settings import Settings

_ENOUGH = 1 << 60


def profile_model(bundle: ModelBundle, settings: Settings) -> dict[str, Any]:
    """For `info --json`. Bytes are those of the weights, but `cold_bytes_per_token` counts whole blocks.

    A container's records count with their headers and padding. Tensors that the text walk does not use are not counted.
    Raises ContextLengthError for a context the model was not made for.
    """
    config, source = bundle.config, bundle.source
    decoder = Decoder(config, source, FileSet.alignment)
    layout = lay_out(decoder.uses(), source.tensors, tile_bytes=settings.trunk_tile, align=FileSet.alignment)
    trunk = [source.tensors[name] for name in layout.by_name]
    embedding = source.tensors[f"{config.prefix}model.embed_tokens.weight"]
    experts = _profile_experts(bundle)
    trunk_parameters = sum(math.prod(info.shape) for info in trunk)
    # Tied to the head it is part of the trunk already.
    own_embedding = 0 if config.tie_word_embeddings else math.prod(embedding.shape)
    kda = sum(config.layer_is_kda)
    moe = sum(map(config.is_moe, range(config.num_hidden_layers)))
    # A floor is asked for, not a split: no budget is too small for it.
    drawn = draw(bundle, _unbounded(settings), is_elsewhere=True)
    return {
        "model": str(bundle.path),
        "layout": "container" if isinstance(source, Container) else "checkpoint",
        "family": _family(source.config),
        "parameters": {
            "total": trunk_parameters + own_embedding + experts.parameters,
            "active": trunk_parameters + embedding.shape[1] + experts.active,
        },
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "layers": {
            "total": config.num_hidden_layers,
            "kda": kda,
            "mla": config.num_hidden_layers - kda,
            "moe": moe,
            "dense": config.num_hidden_layers - moe,
        },
        "experts": None
        if config.moe is None
        else {"count": config.moe.num_experts, "top_k": config.moe.top_k, "shared": config.moe.num_shared},
        "formats": {
            "trunk": sorted({info.dtype for info in trunk}),
            "experts": sorted(experts.formats),
            "embedding": [embedding.dtype],
        },
        "bytes": {
            "trunk": sum(info.stored_bytes for info in trunk),
            "experts": experts.stored_bytes,
            "embedding": embedding.stored_bytes,
            "codebooks": sum(bank.codebooks.extent.length for bank in source.banks.values() if bank.codebooks),
        },
        "record_bytes": experts.record_bytes,
        "cold_bytes_per_token": layout.total_bytes + decoder.embedding.slot_bytes + experts.cold_bytes,
        "floor_bytes": drawn.plan.floor_bytes,
        "floor_context": drawn.shape.context,
        "context": config.max_context,
        "tokenizer": None if bundle.tokenizer is None else {"kind": "tiktoken", "vocab_size": config.vocab_size},
        "bos_id": config.bos_token_id,
        "end_ids": sorted(bundle.end_ids),
        "shards": len(source.paths),
    }


def _unbounded(settings: Settings) -> Settings:
    return replace(settings, ram=_ENOUGH, trunk=None, experts=None, sessions=settings.sessions or 1)


def _family(raw: Mapping[str, object]) -> str:
    return str(raw.get("model_type"))


@dataclass(slots=True)
class _Experts:
    """The routed experts of all layers; zeros for a dense model."""

    parameters: int = 0
    active: int = 0
    stored_bytes: int = 0
    record_bytes: int = 0
    cold_bytes: int = 0
    formats: set[str] = field(default_factory=set)


def _profile_experts(bundle: ModelBundle) -> _Experts:
    found, source, moe = _Experts(), bundle.source, bundle.config.moe
    if moe is None:
        return found
    for number, bank in source.banks.items():
        if not bundle.config.is_moe(number):
            continue
        layout = RecordLayout.of(bank)
        matrices = (layout.gate, layout.up, layout.down)
        parameters = sum(matrix.rows * matrix.columns for matrix in matrices)
        record = source.record(number, 0)
        record_bytes = bank.header.record_bytes if bank.header else sum(extent.length for extent in record)
        reads = place(record, align=FileSet.alignment, max_gap=RECORD_GAP).reads
        found.parameters += bank.records * parameters
        found.active += moe.top_k * parameters
        found.stored_bytes += bank.records * record_bytes
        found.record_bytes = max(found.record_bytes, record_bytes)
        found.cold_bytes += moe.top_k * sum(read.length for read in reads)
        found.formats |= {matrix.format for matrix in matrices}
    return found

"""What a model takes of the RAM under given settings: the numbers the planner splits a budget by."""

from __future__ import annotations

from dataclasses import dataclass

from waste.io.extents import place
from waste.io.source import WeightSource
from waste.model.bundle import ModelBundle
from waste.model.decoder import Decoder
from waste.model.layout import TrunkLayout
from waste.model.state import StateShape
from waste.sched.plan import Demand
from waste.settings import MIB, Settings

INTERPRETER_BYTES = 256 * MIB
"""Python with every import and all kernels, compiled in this process: measured at 221 MiB, see measurements."""
TOKENIZER_BYTES_PER_TOKEN = 400
"""Measured: 60 MiB for the 163,584 ranks of K3."""
INDEX_BYTES_PER_TENSOR = 600
RECORD_GAP = 64 * 1024
"""Unwanted bytes read along inside a record rather than asking twice."""
DEFAULT_CHUNK = 64
DEFAULT_SESSIONS = 4


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How large a step may be: tokens of all sessions together, rows of logits, prompts at once."""

    tokens: int
    logit_rows: int
    sessions: int
    spares: int


def step_sizes(settings: Settings, vocab_size: int) -> StepSizes:
    """From settings: the chunk length, and as many logit rows as fit 64 MiB."""
    chunk = min(settings.prefill_chunk or DEFAULT_CHUNK, settings.context)
    sessions = settings.sessions or DEFAULT_SESSIONS
    tokens = chunk + sessions - 1
    return StepSizes(
        tokens=tokens,
        logit_rows=max(sessions, min(tokens, 64 * MIB // (4 * vocab_size))),
        sessions=sessions,
        spares=1 if chunk > 1 else 0,
    )


def record_slot_bytes(source: WeightSource, align: int) -> int:
    """A slot that any expert's record fits, wherever it lies in its blocks; 0 without experts."""
    return max(
        (
            place(source.record(number, index), align=align, max_gap=RECORD_GAP).buffer_bytes
            for number, bank in source.banks.items()
            for index in range(bank.records)
        ),
        default=0,
    )


def make_demand(
    bundle: ModelBundle, decoder: Decoder, layout: TrunkLayout, settings: Settings, sizes: StepSizes, threads: int
) -> Demand:
    """Every part of the memory by name, beside what the planner splits."""
    config, source = bundle.config, bundle.source
    shape = StateShape.of(config, settings.context)
    records = sum(bank.records for number, bank in source.banks.items() if config.is_moe(number))
    fixed = {
        "interpreter": INTERPRETER_BYTES,
        "index": INDEX_BYTES_PER_TENSOR * (len(source.tensors) + 6 * records),
        "tokenizer": TOKENIZER_BYTES_PER_TOKEN * config.vocab_size if bundle.tokenizer else 0,
        "state": sizes.sessions * (shape.recurrent_bytes + shape.small_bytes),
        "state_copies": sizes.spares * shape.recurrent_bytes,
        "latents": sizes.sessions * shape.latent_bytes,
        "scratch": decoder.scratch_bytes(tokens=sizes.tokens, logit_rows=sizes.logit_rows, threads=threads),
        "logits": 4 * config.vocab_size * sizes.logit_rows,
        "embedding": sizes.tokens * decoder.embedding.slot_bytes,
    }
    return Demand(
        fixed=fixed,
        tiles=layout.placements,
        record_bytes=record_slot_bytes(source, align=4096) if records else 0,
        records=records,
        layer_records=min(config.moe.top_k * sizes.tokens, config.moe.num_experts) if config.moe else 0,
    )

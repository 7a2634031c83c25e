"""What a model takes of the RAM under given settings: the numbers the planner splits a budget by."""

from __future__ import annotations

from dataclasses import dataclass

from waste.io.extents import Extent, place
from waste.io.source import WeightSource
from waste.model.bundle import ModelBundle
from waste.model.codebooks import codebook_bytes
from waste.model.decoder import Decoder
from waste.model.layout import TrunkLayout
from waste.model.state import StateShape
from waste.sched.plan import Demand
from waste.settings import MIB, Settings

INTERPRETER_BYTES = 192 * MIB
"""Python with every import, all kernels loaded, threads and the step's own objects: measured at 166 MiB."""
COMPILER_BYTES = 320 * MIB
"""The child process that compiles kernels: measured at 262 MiB for a checkpoint, 292 for a container in five formats.

It ends before the engine allocates.
"""
TOKENIZER_BYTES_PER_TOKEN = 400
"""Measured: 60 MiB for the 163,584 ranks of K3."""
INDEX_BYTES_PER_TENSOR = 1000
INDEX_BYTES_PER_EXPERT_TENSOR = 24
RECORD_GAP = 64 * 1024
"""Unwanted bytes read along inside a record rather than asking twice."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How large a step may be. chunk: prompt tokens of one session. sessions: how many may be open.

    logit_rows: rows of logits of one step.
    """

    chunk: int
    sessions: int
    logit_rows: int

    @property
    def tokens(self) -> int:
        """Rows of the largest batch: one session's chunk and a token of each other."""
        return self.chunk + self.sessions - 1

    @property
    def spares(self) -> int:
        """Second recurrent states: one, for a chunk of several tokens."""
        return int(self.chunk > 1)


CHUNK = 64
"""Prompt tokens of one step. The same for every budget, so that more RAM never means more bytes read."""
MOST_SESSIONS = 8
"""Sessions that are planned for unasked, where everything else is in memory already."""


def step_sizes(settings: Settings, vocab_size: int, *, sessions: int) -> StepSizes:
    """The chunk as set or usual; as many rows of logits as it has, if they fit 64 MiB."""
    chunk = min(settings.prefill_chunk or CHUNK, settings.context)
    rows = max(sessions, min(chunk, 64 * MIB // (4 * vocab_size)))
    return StepSizes(chunk=chunk, sessions=sessions, logit_rows=rows)


def record_slot_bytes(source: WeightSource, align: int) -> int:
    """A slot that any expert's record fits, wherever it lies in its blocks; 0 without experts."""
    return max(
        (
            _placed_bytes(source.record(number, index), align)
            for number, bank in source.banks.items()
            # With headers records are of one size, a whole number of blocks: they all lie alike.
            for index in range(1 if bank.header else bank.records)
        ),
        default=0,
    )


def _placed_bytes(record: tuple[Extent, ...], align: int) -> int:
    """Buffer for a record; for one contiguous run, the usual case, without placing it."""
    first = min(extent.offset for extent in record)
    last = max(extent.end for extent in record)
    if last - first == sum(extent.length for extent in record) and len({extent.file for extent in record}) == 1:
        return -(-last // align) * align - first // align * align
    return place(record, align=align, max_gap=RECORD_GAP).buffer_bytes


def make_demand(
    bundle: ModelBundle,
    decoder: Decoder,
    layout: TrunkLayout,
    *,
    context: int,
    sizes: StepSizes,
    threads: int,
    record_bytes: int,
) -> Demand:
    """Every part of the memory by name, beside what the planner splits; `record_bytes` is `record_slot_bytes`."""
    config, source = bundle.config, bundle.source
    shape = StateShape.of(config, context)
    records = sum(bank.records for number, bank in source.banks.items() if config.is_moe(number))
    parts = max((len(bank.parts) for bank in source.banks.values() if bank.header is None), default=0)
    moe = config.moe
    fixed = {
        "interpreter": INTERPRETER_BYTES,
        "index": INDEX_BYTES_PER_TENSOR * len(source.tensors) + INDEX_BYTES_PER_EXPERT_TENSOR * parts * records,
        "tokenizer": TOKENIZER_BYTES_PER_TOKEN * config.vocab_size if bundle.tokenizer else 0,
        "state": sizes.sessions * (shape.recurrent_bytes + shape.small_bytes),
        "state_copies": sizes.spares * shape.recurrent_bytes,
        "latents": sizes.sessions * shape.latent_bytes,
        "scratch": decoder.scratch_bytes(tokens=sizes.tokens, logit_rows=sizes.logit_rows, threads=threads),
        "logits": 4 * config.vocab_size * sizes.logit_rows,
        "embedding": sizes.tokens * decoder.embedding.slot_bytes,
        "codebooks": codebook_bytes(source, decoder.align),
    }
    layers = sum(map(config.is_moe, range(config.num_hidden_layers)))
    return Demand(
        fixed=fixed,
        tiles=layout.placements,
        record_bytes=record_bytes,
        records=records,
        layer_records=moe.top_k if moe else 0,
        token_records=moe.top_k * layers if moe else 0,
    )

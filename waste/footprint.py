"""What a model takes of the RAM under given settings: the numbers the planner splits a budget by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waste.io import backends
from waste.io.extents import Extent, place
from waste.io.source import WeightSource
from waste.model.bundle import ModelBundle
from waste.model.codebooks import codebook_bytes
from waste.model.decoder import Decoder
from waste.model.layout import TrunkLayout
from waste.model.state import StateShape
from waste.sched.plan import Demand
from waste.settings import MIB, Settings
from waste.temporaries import numpy_bytes

INTERPRETER_BYTES = 192 * MIB
"""Python with every import, all kernels loaded and the step's own objects: measured at 166 MiB."""
COMPILER_BYTES = 400 * MIB
"""A child process that compiles kernels and this one beside it, which has allocated nothing of the model yet.

Measured together at 369 MiB for a checkpoint and 390 for a container of VQ3R, Q8G and Q4G, pages that both have
counted once. The child ends before the engine allocates.
"""
THREAD_BYTES = 64 * 1024
"""Resident memory of a compute thread: its stack and malloc's pages for it."""
TILE_BYTES = 800
"""Objects of a trunk tile with its first piece: its placement and reads, its slot in the ring, its array."""
PIECE_BYTES = 500
"""Objects of a piece of a tensor within a tile."""
POSITION_BYTES = 120
"""An id of the context: the number itself, and its place in the lists that a prompt goes through."""
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
    def embedding_slots(self) -> int:
        return min(self.tokens, EMBEDDING_SLOTS)

    @property
    def spares(self) -> int:
        """Second recurrent states: one, for a chunk of several tokens."""
        return int(self.chunk > 1)


LEAST_CHUNK = 64
MOST_CHUNK = 4096
"""Prompt tokens of one step: a multiple of the least, as many as `CHUNK_SHARE` of what a budget has above the floor
carries.

A prompt reads the streamed trunk and its experts once a chunk, so long ones save most of the reads. The share is kept
from trunk and experts whether the chunk uses all of it or not: more RAM makes all of them larger or none, and never
means more bytes read.
"""
CHUNK_SHARE = 1 / 8
EMBEDDING_SLOTS = 64
"""Rows of the embedding on their way at a time."""
MOST_SESSIONS = 8
"""Sessions that are planned for unasked, where everything else is in memory already."""


def step_sizes(settings: Settings, vocab_size: int, *, sessions: int, chunk: int = LEAST_CHUNK) -> StepSizes:
    """The chunk as set, else `chunk`; as many rows of logits as it has, if they fit 64 MiB."""
    chunk = min(settings.prefill_chunk or chunk, settings.context)
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


def compiling_bytes(fixed: Mapping[str, int], settings: Settings) -> int:
    """The most memory of this process and a compiling one together, before anything else is allocated.

    fixed: the parts of a `Demand`. Nothing where nothing is compiled.
    """
    if settings.compute_kernels != "numba":
        return 0
    return COMPILER_BYTES + sum(fixed[part] for part in ("index", "tokenizer", "tiles", "reserve"))


def make_demand(
    bundle: ModelBundle,
    decoder: Decoder,
    layout: TrunkLayout,
    settings: Settings,
    *,
    sizes: StepSizes,
    threads: int,
    record_bytes: int,
) -> Demand:
    """Every part of the memory by name, beside what the planner splits; `record_bytes` is `record_slot_bytes`.

    Raises InputError for a backend that does not exist.
    """
    config, source = bundle.config, bundle.source
    shape = StateShape.of(config, settings.context)
    records = sum(bank.records for number, bank in source.banks.items() if config.is_moe(number))
    parts = max((len(bank.parts) for bank in source.banks.values() if bank.header is None), default=0)
    moe = config.moe
    scratch_bytes = decoder.scratch_bytes(
        tokens=sizes.tokens, sessions=sizes.sessions, logit_rows=sizes.logit_rows, threads=threads
    )
    readers_bytes = backends.memory_bytes(settings.io_backend, queue_depth=settings.io_queue_depth)
    fixed = {
        "interpreter": INTERPRETER_BYTES,
        "threads": THREAD_BYTES * threads + readers_bytes,
        "index": INDEX_BYTES_PER_TENSOR * len(source.tensors) + INDEX_BYTES_PER_EXPERT_TENSOR * parts * records,
        "tokenizer": TOKENIZER_BYTES_PER_TOKEN * config.vocab_size if bundle.tokenizer else 0,
        "tiles": TILE_BYTES * len(layout.placements) + PIECE_BYTES * len(layout.pieces),
        "ids": POSITION_BYTES * settings.context * sizes.sessions,
        "state": sizes.sessions * (shape.recurrent_bytes + shape.small_bytes),
        "state_copies": sizes.spares * shape.recurrent_bytes,
        "latents": sizes.sessions * shape.latent_bytes,
        "scratch": scratch_bytes,
        "logits": 4 * config.vocab_size * sizes.logit_rows,
        "embedding": sizes.embedding_slots * decoder.embedding.slot_bytes,
        "codebooks": codebook_bytes(source, decoder.align),
        "temporaries": 0,
        "reserve": settings.reserve,
    }
    if settings.compute_kernels == "numpy":
        fixed["temporaries"] = numpy_bytes(
            bundle,
            layout,
            context=settings.context,
            tokens=sizes.tokens,
            threads=threads,
            scratch_bytes=scratch_bytes,
        )
    layers = sum(map(config.is_moe, range(config.num_hidden_layers)))
    return Demand(
        fixed=fixed,
        tiles=layout.placements,
        record_bytes=record_bytes,
        records=records,
        layer_records=moe.top_k if moe else 0,
        token_records=moe.top_k * layers if moe else 0,
    )

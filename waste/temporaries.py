"""What the numpy kernels allocate while they compute: whole matrices in float64, where the compiled ones stream."""

from __future__ import annotations

from waste.model.bundle import ModelBundle
from waste.model.experts import RecordLayout
from waste.model.layout import TrunkLayout
from waste.settings import MIB

BYTES_PER_WEIGHT = {
    "BF16": 12,
    "F16": 8,
    "F32": 8,
    "MXFP4": 18,
    "Q8G": 17,
    "Q4G": 18,
    "VQ2R": 18,
    "VQ3R": 18,
    "VQ4P": 22,
}
"""Most bytes at once for each weight of the rows that a kernel widens or multiplies, measured and rounded up."""
DOUBLE_BYTES = 8
ARGUMENT_COPIES = 7
"""An operation on rows of float32 takes up to 6.1 times its arguments: copies and steps between, in float64."""
LATENT_COPIES = 4
"""Attention over float32 latents takes them twice in float64."""
BLAS_BYTES = 2 * MIB
"""Buffers of numpy's own matrix product, for each compute thread."""


def numpy_bytes(
    bundle: ModelBundle, layout: TrunkLayout, *, context: int, tokens: int, threads: int, scratch_bytes: int
) -> int:
    """Memory of one step's kernels at their peak: the phases of a walk follow each other, its threads do not.

    tokens: rows of the largest batch. scratch_bytes: all of a step's arrays, float32.
    """
    config, source = bundle.config, bundle.source
    trunk = max(
        (
            # The threads share a piece's rows; each of them widens all inputs for itself.
            BYTES_PER_WEIGHT[piece.tensor.format.name] * piece.count * piece.tensor.columns
            + DOUBLE_BYTES * tokens * (threads * piece.tensor.columns + piece.count)
            for piece in layout.pieces
        ),
        default=0,
    )
    records = (RecordLayout.of(bank) for number, bank in source.banks.items() if config.is_moe(number))
    matrices = {matrix for record in records for matrix in (record.gate, record.up, record.down)}
    expert = max(
        (
            BYTES_PER_WEIGHT[matrix.format] * matrix.rows * matrix.columns
            + DOUBLE_BYTES * tokens * (matrix.rows + matrix.columns)
            for matrix in matrices
        ),
        default=0,
    )
    mla = config.mla if not all(config.layer_is_kda) else None
    latents = 0 if mla is None else 4 * context * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    phases = (trunk, threads * expert, threads * LATENT_COPIES * latents, ARGUMENT_COPIES * scratch_bytes)
    return max(phases) + threads * BLAS_BYTES

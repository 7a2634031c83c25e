"""The numpy kernel set: readable, slow, needs no compiler."""

from __future__ import annotations

from . import formats
from .kernel_set import KernelSet
from .twins import formats as twins
from .twins import kda, mla, moe, vectors, vq

KERNELS = KernelSet(
    name="numpy",
    formats={
        "BF16": twins.format_kernels(formats.BF16, twins.bf16_matrix, for_experts=True),
        "F16": twins.format_kernels(formats.F16, twins.f16_matrix),
        "F32": twins.format_kernels(formats.F32, twins.f32_matrix, for_experts=True),
        "MXFP4": twins.format_kernels(formats.MXFP4, twins.mxfp4_matrix, find_bad_scale=twins.find_bad_scale),
        "Q8G": twins.format_kernels(formats.Q8G, twins.q8g_matrix),
        "Q4G": twins.format_kernels(formats.Q4G, twins.q4g_matrix),
    },
    codebook_formats={
        "VQ3R": vq.codebook_kernels(vq.byte_indices, vector_bytes=3, stages=3, entries=256),
        "VQ2R": vq.codebook_kernels(vq.byte_indices, vector_bytes=2, stages=2, entries=256),
        "VQ4P": vq.codebook_kernels(vq.packed_indices, vector_bytes=3, stages=4, entries=64),
    },
    rms_norm=vectors.rms_norm,
    activate=vectors.activate,
    multiply_sigmoid=vectors.multiply_sigmoid,
    add=vectors.add,
    exponential=vectors.exponential,
    mix_residuals=vectors.mix_residuals,
    short_convolution=kda.short_convolution,
    prepare=kda.prepare,
    scan=kda.scan,
    gate_output=kda.gate_output,
    attend=mla.attend,
    route=moe.route,
    combine=moe.combine,
    accumulate=moe.accumulate,
)

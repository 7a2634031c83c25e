"""The numpy kernel set: readable, slow, needs no compiler."""

from __future__ import annotations

from .kernel_set import KernelSet
from .twins import formats, kda, mla, moe, vectors

KERNELS = KernelSet(
    name="numpy",
    formats={
        "BF16": formats.format_kernels(formats.bf16_matrix, 16),
        "F32": formats.format_kernels(formats.f32_matrix, 32),
        "MXFP4": formats.format_kernels(formats.mxfp4_matrix, 4, has_scales=True),
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
)

"""The compiled kernel set."""

from __future__ import annotations

from . import bf16, f32, kda, mla, moe, mxfp4, vectors
from .kernel_set import FormatKernels, KernelSet

KERNELS = KernelSet(
    name="numba",
    formats={
        "BF16": FormatKernels(product=bf16.product, widen=bf16.widen, absorb=bf16.absorb),
        "F32": FormatKernels(product=f32.product, widen=f32.widen, absorb=f32.absorb),
        "MXFP4": FormatKernels(product=mxfp4.product, widen=mxfp4.widen, find_bad_scale=mxfp4.find_bad_scale),
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

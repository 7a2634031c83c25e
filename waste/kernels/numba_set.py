"""The compiled kernel set."""

from __future__ import annotations

from . import bf16, f16, f32, kda, mla, moe, mxfp4, q4g, q8g, vectors, vq
from .kernel_set import CodebookKernels, FormatKernels, KernelSet

KERNELS = KernelSet(
    name="numba",
    formats={
        "BF16": FormatKernels(product=bf16.product, widen=bf16.widen, absorb=bf16.absorb, experts=bf16.experts),
        "F16": FormatKernels(product=f16.product, widen=f16.widen, absorb=f16.absorb),
        "F32": FormatKernels(product=f32.product, widen=f32.widen, absorb=f32.absorb, experts=f32.experts),
        "MXFP4": FormatKernels(
            product=mxfp4.product,
            widen=mxfp4.widen,
            find_bad_scale=mxfp4.find_bad_scale,
            experts=mxfp4.experts,
        ),
        "Q8G": FormatKernels(product=q8g.product, widen=q8g.widen, absorb=q8g.absorb),
        "Q4G": FormatKernels(product=q4g.product, widen=q4g.widen, absorb=q4g.absorb),
    },
    codebook_formats={
        "VQ3R": CodebookKernels(
            product=vq.vq3r_product,
            widen=vq.vq3r_widen,
            find_bad_scale=vq.find_bad_scale,
            experts=vq.vq3r_experts,
        ),
        "VQ2R": CodebookKernels(
            product=vq.vq2r_product,
            widen=vq.vq2r_widen,
            find_bad_scale=vq.find_bad_scale,
            experts=vq.vq2r_experts,
        ),
        "VQ4P": CodebookKernels(
            product=vq.vq4p_product,
            widen=vq.vq4p_widen,
            find_bad_scale=vq.find_bad_scale,
            experts=vq.vq4p_experts,
        ),
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

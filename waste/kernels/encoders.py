"""The kernels that a conversion needs: those that widen what checkpoints hold, and those that search codebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import bf16, f32, mxfp4, vq_encode
from ._jit import compile_kernel

ENCODERS: tuple[Any, ...] = (bf16.widen, f32.widen, mxfp4.widen, vq_encode.encode, vq_encode.assign)


def prepare_encoders(progress: Callable[[int, int], None]) -> None:
    """Compile them, or load them from the cache; `progress(done, total)` meanwhile, which may raise to call it off."""
    for done, kernel in enumerate(ENCODERS):
        progress(done, len(ENCODERS))
        compile_kernel(kernel)

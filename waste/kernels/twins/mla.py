"""Multi-head latent attention."""

from __future__ import annotations

import numpy as np

from .vectors import Floats, softmax


def attend(cache: Floats, position: int, query: Floats, scale: float, begin: int, end: int, out: Floats) -> None:
    latent = out.shape[1]
    for t in range(begin, end):
        seen = cache[: position + t - begin + 1].astype(np.float64)
        out[t] = softmax(seen @ query[t] * scale) @ seen[:, :latent]

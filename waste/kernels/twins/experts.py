"""An expert's whole MLP by a format's own product; what its arguments are stands in `waste.kernels._expert`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..kernel_set import Kernel
from .vectors import Floats, activate

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Multiply = Callable[[int, int, int, Floats, Floats], None]
"""(matrix, columns, rows, x, y): y = x·Wᵀ for w1 (0), w3 (1) or w2 (2)."""


def find_in_expert(
    find_bad_scale: Kernel, data: Bytes, places: Integers, inner: int, outer: int, found: Integers
) -> bool:
    """Fill `found`, and say whether a scale is bad; w1 and w3 have `inner` scales each, w2 has `outer`."""
    for matrix, count in enumerate((inner, inner, outer)):
        find_bad_scale(data, int(places[3 + matrix]), count, found, 1)
        if found[1] >= 0:
            found[0] = matrix
            return True
    found[0] = -1
    return False


def answer(
    multiply: Multiply, x: Floats, tokens: Integers, gathered: Floats, gate: Floats, up: Floats, y: Floats,
    kind: int, beta: float, linear_beta: float,
) -> None:  # fmt: skip
    """y = w2·act(w1·x, w3·x) for these rows of x."""
    n, inputs, width = tokens.size, x.shape[1], gate.shape[1]
    rows, gate, up = x[tokens[0] : tokens[0] + 1], gate[:n], up[:n]
    if n > 1:
        rows = np.take(x, tokens, axis=0, out=gathered[:n], mode="clip")  # other modes gather in a copy first
    multiply(0, inputs, width, rows, gate)
    multiply(1, inputs, width, rows, up)
    activate(gate, up, kind, beta, linear_beta, 0, width)
    multiply(2, width, inputs, gate, y)

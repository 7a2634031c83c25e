"""BF16 weights: two bytes each, the upper half of a float32. Rows lie one after another; there are no scales.

Every weight format offers the same kernels. Arguments they share: `data` uint8, the buffer a tile was read into;
`at` and `scale_at`, byte positions of row 0 and of its scales; `columns`, the input width (a multiple of 8);
rows `first` to `last`.
"""

from __future__ import annotations

from typing import Any

from ._experts import ARGUMENTS, answer, no_bad_scale, plain_rows
from ._jit import f32s2, i64, kernel, u8s
from ._lanes import f32_from_bf16_bytes, load_bf16_bytes
from ._plain import multiply, multiply_transposed, widen_rows
from .vectors import activate

BYTES = 2


@kernel(u8s, i64, i64, i64, i64, i64, f32s2, f32s2, i64)
def product(
    data: Any, at: int, scale_at: int, columns: int, first: int, last: int, x: Any, y: Any, y_column: int
) -> None:
    """y[t, y_column + r] = Σ_i W[r, i]·x[t, i] for every token t and the rows first ≤ r < last."""
    multiply(load_bf16_bytes, BYTES, data, at, columns, first, last, x, y, y_column)


@kernel(u8s, i64, i64, i64, i64, f32s2, i64, f32s2)
def absorb(data: Any, at: int, scale_at: int, columns: int, rows: int, x: Any, x_column: int, y: Any) -> None:
    """y[t, i] = Σ_r W[r, i]·x[t, x_column + r]: the matrix transposed, rows fused in ascending order."""
    multiply_transposed(load_bf16_bytes, BYTES, data, at, columns, rows, x, x_column, y)


@kernel(u8s, i64, i64, i64, i64, f32s2)
def widen(data: Any, at: int, scale_at: int, columns: int, rows: int, y: Any) -> None:
    """y[r, i] = W[r, i] as float32."""
    widen_rows(f32_from_bf16_bytes, BYTES, data, at, columns, rows, y)


@kernel(*ARGUMENTS, calls=(product, activate))
def experts(
    records: Any, x: Any, tokens: Any, gathered: Any, gate: Any, up: Any, answers: Any,
    kind: int, beta: float, linear_beta: float, turns: Any, found: Any,
) -> None:  # fmt: skip
    """answers = w2·act(w1·x, w3·x) of several experts: see `_experts`. No scale can be bad."""
    answer(
        plain_rows, product, no_bad_scale,
        records, 0, x, x, tokens, gathered, gate, up, answers, kind, beta, linear_beta, turns, found, 0, 0,
    )  # fmt: skip

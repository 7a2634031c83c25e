"""Vector quantization: which codebook vector is nearest to eight weights, for encoding and for k-means.

Nearest is the largest `x·c − |c|²/2`; of equals the lowest index wins. Sixteen vectors are searched at once, one a
lane, so every instruction set computes the same steps for a vector, whoever its neighbours are.
"""

from __future__ import annotations

from typing import Any

from ._jit import f32, f32s, f32s2, helper, i64, i64s, kernel, types
from ._lanes import element
from ._wide import choose_where_less, fma_wide, load_wide, splat_wide, store_wide

AT_ONCE = 16
"""Vectors searched together: callers give whole multiples."""
SCRATCH = AT_ONCE * 9
"""Float32 of scratch: the vectors, component by component, then their indices."""

_f64s = types.Array(types.float64, 1, "C")
_f64s2 = types.Array(types.float64, 2, "C")
_u8s3 = types.Array(types.uint8, 3, "C")


@helper
def gather(x: Any, row: Any, column: Any, scratch: Any) -> None:
    """scratch[16·component + lane] of the vectors at `column` of sixteen rows."""
    for lane in range(AT_ONCE):
        for component in range(8):
            scratch[AT_ONCE * component + lane] = x[row + lane, column + component]


@helper
def nearest(books: Any, halves: Any, first: Any, entries: Any, scratch: Any) -> None:
    """Put the index, as a float32, of the vector nearest to each of sixteen behind them in the scratch.

    books: float32, eight an entry; halves: −|c|²/2 of each. The search is among `entries` from entry `first` on.
    """
    x0, x1, x2, x3 = load_wide(scratch, 0), load_wide(scratch, 16), load_wide(scratch, 32), load_wide(scratch, 48)
    x4, x5, x6, x7 = load_wide(scratch, 64), load_wide(scratch, 80), load_wide(scratch, 96), load_wide(scratch, 112)
    best = splat_wide(f32(-3.0e38))
    best_at = splat_wide(f32(0.0))
    for entry in range(first, first + entries):
        at = 8 * entry
        score = fma_wide(x0, splat_wide(element(books, at)), splat_wide(element(halves, entry)))
        score = fma_wide(x1, splat_wide(element(books, at + 1)), score)
        score = fma_wide(x2, splat_wide(element(books, at + 2)), score)
        score = fma_wide(x3, splat_wide(element(books, at + 3)), score)
        score = fma_wide(x4, splat_wide(element(books, at + 4)), score)
        score = fma_wide(x5, splat_wide(element(books, at + 5)), score)
        score = fma_wide(x6, splat_wide(element(books, at + 6)), score)
        score = fma_wide(x7, splat_wide(element(books, at + 7)), score)
        best_at = choose_where_less(best, score, splat_wide(f32(entry - first)), best_at)
        best = choose_where_less(best, score, score, best)
    store_wide(scratch, 8 * AT_ONCE, best_at)


@kernel(f32s2, f32s, f32s, i64, i64, f32s, _u8s3)
def encode(x: Any, books: Any, halves: Any, stages: int, entries: int, scratch: Any, indices: Any) -> None:
    """indices[v, r, s] = where the residual of x[r, 8v : 8v + 8] after s stages is nearest in codebook s.

    x: float32 [rows, columns], rows already divided by their scales, a multiple of `AT_ONCE`; books: float32
    [stages·entries·8]; halves: −|c|²/2, [stages·entries]; scratch: float32 [SCRATCH].
    """
    rows, columns = x.shape
    for v in range(columns // 8):
        for row in range(0, rows, AT_ONCE):
            gather(x, row, 8 * v, scratch)
            for stage in range(stages):
                first = stage * entries
                nearest(books, halves, first, entries, scratch)
                for i in range(AT_ONCE):
                    index = int(scratch[8 * AT_ONCE + i])
                    indices[v, row + i, stage] = index
                    at = 8 * (first + index)
                    for component in range(8):
                        scratch[AT_ONCE * component + i] -= books[at + component]


@kernel(f32s2, f32s, f32s, i64, f32s, i64s, f32s, _f64s2, i64s, _f64s)
def assign(
    x: Any, book: Any, halves: Any, entries: int, scratch: Any, labels: Any, errors: Any, sums: Any, counts: Any,
    total: Any,
) -> None:  # fmt: skip
    """One round of k-means: labels[i] = the entry nearest to x[i], errors[i] = their squared distance.

    sums [entries, 8] and counts [entries] gather the vectors by label, total[0] the errors; all begin at zero here.
    x: float32 [n, 8], n a multiple of `AT_ONCE`.
    """
    sums[:] = 0.0
    counts[:] = 0
    total[0] = 0.0
    for begin in range(0, x.shape[0], AT_ONCE):
        gather(x, begin, 0, scratch)
        nearest(book, halves, 0, entries, scratch)
        for i in range(AT_ONCE):
            label = int(scratch[8 * AT_ONCE + i])
            labels[begin + i] = label
            counts[label] += 1
            error = f32(0.0)
            for component in range(8):
                value = x[begin + i, component]
                sums[label, component] += value
                difference = value - book[8 * label + component]
                error += difference * difference
            errors[begin + i] = error
            total[0] += error

#!/usr/bin/env python3
"""How fast the product kernels are, against what memory delivers in the same run.

bench/kernels.py [--rows N] [--columns N] [--json]: for each format one token and a tile of sixteen, on one thread and
on all, from buffers larger than the caches. Gweights/s count each weight once per token.
"""

from __future__ import annotations

import argparse
import json
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from waste.kernels import formats, load_kernels, prepare
from waste.process import usable_cores

FORMATS = {
    form.name: form for form in (formats.BF16, formats.F16, formats.F32, formats.MXFP4, formats.Q8G, formats.Q4G)
}
CODEBOOK_FORMATS = {"VQ3R": (3, 3, 256), "VQ2R": (2, 2, 256), "VQ4P": (3, 4, 64)}
"""Bytes of eight weights, codebooks, entries."""
INDEX_BLOCK = 64


@njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]  # numba has no types
def total(values: np.ndarray) -> int:
    result = 0
    for i in range(values.size):
        result += values[i]
    return result


def best_s(run: Callable[[], object], *, repeats: int = 7) -> float:
    """The shortest of several runs, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def memory_bandwidth(pool: ThreadPoolExecutor, threads: int) -> float:
    """Bytes a second that `threads` read from memory."""
    values = np.ones(1 << 25, np.int64)
    parts = np.array_split(values, threads)
    return values.nbytes / best_s(lambda: list(pool.map(total, parts)))


Product = Callable[[int, int, np.ndarray, np.ndarray], None]
"""(first row, last row, x, y)."""


def prepare_rows(name: str, rows: int, columns: int) -> tuple[Product, int]:
    """The product with random weights of a format, and their bytes."""
    layout = FORMATS[name]
    product = load_kernels("numba").formats[name].product
    random = np.random.default_rng(0)
    weights = rows * layout.row_bytes(columns)
    data = random.integers(0, 256, weights + rows * layout.scale_bytes(columns), dtype=np.uint8)
    if layout.group is None:
        values = random.standard_normal(weights // 64).astype(np.float16 if name == "F16" else np.float32)
        stored = (values.view(np.uint32) >> 16).astype(np.uint16) if name == "BF16" else values
        data[:weights] = np.resize(stored.view(np.uint8), weights)
    elif layout.scale_size == 1:
        data[weights:] = 120
    else:
        data[weights:] = np.full((data.size - weights) // 2, 0.01, np.float16).view(np.uint8)
    return lambda first, last, x, y: product(data, 0, weights, columns, first, last, x, y, 0), data.nbytes


def prepare_vectors(name: str, rows: int, columns: int) -> tuple[Product, int]:
    """The same for a format with codebooks."""
    vector_bytes, stages, entries = CODEBOOK_FORMATS[name]
    product = load_kernels("numba").codebook_formats[name].product
    random = np.random.default_rng(0)
    indices = rows * columns // 8 * vector_bytes
    data = random.integers(0, 256, indices + 2 * rows, dtype=np.uint8)
    data[indices:] = np.ones(rows, np.float16).view(np.uint8)
    # Where a page begins, as the engine has them: a vector across two cache lines takes twice the time.
    books = np.frombuffer(mmap.mmap(-1, 32 * stages * entries), np.float32)
    books[:] = random.standard_normal(books.size)
    return (
        lambda first, last, x, y: product(data, 0, indices, columns, first, last, INDEX_BLOCK, books, x, y),
        data.nbytes,
    )


def measure(
    name: str, rows: int, columns: int, tokens: int, threads: int, pool: ThreadPoolExecutor
) -> dict[str, object]:
    product, size = (prepare_rows if name in FORMATS else prepare_vectors)(name, rows, columns)
    random = np.random.default_rng(1)
    x = random.standard_normal((tokens, columns)).astype(np.float32)
    y = np.empty((tokens, rows), np.float32)
    cuts = [rows * part // threads for part in range(threads + 1)]
    seconds = best_s(lambda: list(pool.map(lambda i: product(cuts[i], cuts[i + 1], x, y), range(threads))))
    return {
        "format": name,
        "tokens": tokens,
        "threads": threads,
        "gweights_per_s": rows * columns * tokens / seconds / 1e9,
        "gbytes_per_s": size / seconds / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--columns", type=int, default=7168)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prepare(load_kernels("numba"))
    cores = usable_cores()
    found: list[dict[str, object]] = []
    with ThreadPoolExecutor(cores) as pool:
        bandwidth = {threads: memory_bandwidth(pool, threads) for threads in sorted({1, cores})}
        for name in (*FORMATS, *CODEBOOK_FORMATS):
            for tokens in (1, 16):
                found += [
                    measure(name, options.rows, options.columns, tokens, threads, pool)
                    for threads in sorted({1, cores})
                ]
    if options.json:
        print(json.dumps({"memory_bytes_per_s": bandwidth, "products": found}))
        return
    print("memory read  " + "   ".join(f"{n} threads {rate / 1e9:5.1f} GB/s" for n, rate in bandwidth.items()))
    print(f"{'format':7} {'tokens':>6} {'threads':>7} {'Gweights/s':>11} {'GB/s':>7} {'of memory':>10}")
    for row in found:
        share = float(str(row["gbytes_per_s"])) * 1e9 / bandwidth[int(str(row["threads"]))]
        print(
            f"{row['format']:7} {row['tokens']:6} {row['threads']:7} {row['gweights_per_s']:11.1f} "
            f"{row['gbytes_per_s']:7.1f} {share:9.0%}"
        )


if __name__ == "__main__":
    main()

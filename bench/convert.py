#!/usr/bin/env python3
"""How fast weights are encoded, on one core: seconds of its own time, so that busy neighbours do not count.

bench/convert.py [--rows N] [--columns N] [--json]: a block of Gaussian rows of a K3 expert's width for every format of
experts and of the trunk, and k-means of one matrix's codebooks as often as a conversion fits them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from waste.convert.banks import MAX_VECTORS
from waste.convert.codebooks import Codebooks, fit_codebooks
from waste.convert.experts import normalize, pack_indices
from waste.convert.quantize import quantize_groups, quantize_mxfp4
from waste.io.record import VECTOR_FORMATS, VectorFormat
from waste.kernels.encoders import prepare_encoders
from waste.kernels.vq_encode import SCRATCH, encode


def best_s(run: Callable[[], object], *, repeats: int = 9) -> float:
    """The shortest of several runs, after one to warm up, in seconds of this thread."""
    run()
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    return min(times)


def encode_block(values: np.ndarray, books: Codebooks, form: VectorFormat) -> np.ndarray:
    """All that a conversion does with 64 rows once they are float32."""
    rows, columns = values.shape
    normal, _ = normalize(values)
    indices = np.empty((columns // 8, rows, form.stages), np.uint8)
    encode(normal, books.values, books.halves, form.stages, form.entries, np.empty(SCRATCH, np.float32), indices)
    return pack_indices(indices, form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=3584)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prepare_encoders(lambda done, total: None)
    random = np.random.default_rng(0)
    values = random.standard_normal((options.rows, options.columns)).astype(np.float32)
    rates: dict[str, float] = {}
    fits: dict[str, float] = {}
    for name, form in VECTOR_FORMATS.items():
        books = Codebooks(form, 0.3 * random.standard_normal(form.stages * form.entries * 8).astype(np.float32))
        seconds = best_s(partial(encode_block, values, books, form))
        rates[name] = values.size / seconds / 1e6
        vectors = 0.3 * random.standard_normal((MAX_VECTORS, 8)).astype(np.float32)
        began = time.thread_time()
        fit_codebooks(vectors, form, random)
        fits[name] = time.thread_time() - began
    rates["MXFP4"] = values.size / best_s(lambda: quantize_mxfp4(values)) / 1e6
    for name in ("Q8G", "Q4G"):
        rates[name] = values.size / best_s(partial(quantize_groups, values, name)) / 1e6
    if options.json:
        print(json.dumps({"mweights_per_s": rates, "fit_s": fits}))
        return
    print(f"{'format':7} {'Mweights/s a core':>18} {'k-means, s a matrix':>20}")
    for name, rate in rates.items():
        print(f"{name:7} {rate:18.1f} {fits.get(name, 0):20.1f}")


if __name__ == "__main__":
    main()

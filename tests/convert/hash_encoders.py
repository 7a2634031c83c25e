"""Runs the encoders on seeded vectors, and prints a hash of what came out and what numba compiled for.

python -m tests.convert.hash_encoders
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from waste.convert.codebooks import fit_codebooks
from waste.io.record import VECTOR_FORMATS
from waste.kernels import vq_encode
from waste.kernels.encoders import prepare_encoders


def hash_encoders() -> dict[str, str]:
    """By format: codebooks fitted to a few vectors, and the indices of some rows."""
    random = np.random.default_rng(3)
    vectors = random.standard_normal((1024, 8)).astype(np.float32)
    rows = random.standard_normal((32, 64)).astype(np.float32)
    hashes = {}
    for name, form in VECTOR_FORMATS.items():
        books = fit_codebooks(vectors, form, np.random.default_rng(4))
        indices = np.zeros((8, 32, form.stages), np.uint8)
        scratch = np.zeros(vq_encode.SCRATCH, np.float32)
        vq_encode.encode(rows, books.values, books.halves, form.stages, form.entries, scratch, indices)
        hashes[name] = hashlib.sha256(books.values.tobytes() + indices.tobytes()).hexdigest()
    return hashes


def main() -> None:
    prepare_encoders(lambda done, total: None)
    kernel: Any = vq_encode.encode
    print(json.dumps({"hashes": hash_encoders(), "cpu": kernel.targetctx.codegen().magic_tuple()[1]}))


if __name__ == "__main__":
    main()

"""Compiles kernels in a process of its own, runs them on the table, and prints what came out as JSON.

python -m tests.kernels.hash_kernels [KERNEL …]      all kernels of the table if none is named
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

from waste.kernels import load_kernels

from .cases import CASES


def hash_outputs(kernels: dict[str, Any], names: Iterable[str]) -> dict[str, str]:
    """A hash of the written arguments of every case of these kernels."""
    chosen = set(names)
    hashes = {}
    for case in CASES:
        if case.kernel in chosen:
            digest = hashlib.sha256()
            arguments = case.run(kernels[case.kernel])
            for position in case.writes:
                digest.update(arguments[position].tobytes())
            hashes[str(case)] = digest.hexdigest()
    return hashes


def main() -> None:
    from waste.kernels._jit import cache_folder, compile_kernel

    kernels: dict[str, Any] = load_kernels("numba").by_name()
    names = sys.argv[1:] or list(kernels)
    for name in names:
        compile_kernel(kernels[name])
    report = {
        "hashes": hash_outputs(kernels, names),
        "cache_hits": sum(sum(kernels[name].stats.cache_hits.values()) for name in names),
        "folder": str(cache_folder()),
        "cpu": kernels[names[0]].targetctx.codegen().magic_tuple()[1],
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()

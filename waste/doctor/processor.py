"""The processor as the compiler of the kernels sees it, and the ways through the kernels that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waste.errors import UnsupportedError
from waste.kernels import load_kernels

_X86 = "fma f16c bmi2 avx avx2 avx512f avx512vl avx512bw avx512vbmi avx512vnni avx512bf16 amx-tile"
_ARM = "neon fullfp16 dotprod bf16 i8mm sve sve2"
FEATURES = (*_X86.split(), *_ARM.split())
"""Those that matter to arithmetic on weights, by LLVM's names."""


@dataclass(frozen=True, slots=True)
class Processor:
    """name: LLVM's, or what NUMBA_CPU_NAME says. features: those of FEATURES it has. paths: operation to way."""

    name: str
    features: tuple[str, ...]
    paths: Mapping[str, str]


def processor() -> Processor | None:
    """What kernels are compiled for; None where there is no compiler."""
    try:
        kernel = load_kernels("numba").add
    except (UnsupportedError, ImportError):
        return None
    triple, name, flags = getattr(kernel, "targetctx").codegen().magic_tuple()  # noqa: B009
    return describe(str(triple), str(name), str(flags))


def describe(triple: str, name: str, flags: str) -> Processor:
    """The same from LLVM's words: flags as "+avx2,-sse4a,…"."""
    given = {flag[1:] for flag in flags.split(",") if flag.startswith("+")}
    is_x86 = triple.startswith(("x86_64", "i686"))
    return Processor(
        name=name,
        features=tuple(feature for feature in FEATURES if feature in given),
        paths={
            # Without the instruction every fused step is a call of the C library: the same bits, a tenth of the speed.
            "multiply-add": "in hardware" if not is_x86 or "fma" in given else "in software, slow",
            "lanes": "avx2" if "avx2" in given else "neon" if "neon" in given else "generic",
            "MXFP4 codes": _code_path(given),
        },
    )


def _code_path(given: set[str]) -> str:
    """As `kernels/_e2m1` chooses."""
    if "avx512vl" in given:
        return "avx512vl"
    return "avx2" if "avx2" in given else "generic"

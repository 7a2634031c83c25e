"""A kernel set: every operation the walk needs, in one implementation.

`numba` is the engine: compiled, in the canonical order. `numpy` is its readable twin, equal within tolerance; it
needs no compiler and runs under NUMBA_DISABLE_JIT. The kernels' docstrings in `bf16`, `mxfp4`, `vectors`, `kda`,
`mla` and `moe` say what each does; both sets take the same arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True)
class FormatKernels:
    """The kernels of one weight format; a format that no trunk uses has no `absorb`."""

    product: Kernel
    widen: Kernel
    absorb: Kernel | None = None
    find_bad_scale: Kernel | None = None


@dataclass(frozen=True, slots=True)
class KernelSet:
    """All kernels by name; `formats` by the name of a weight format ("BF16", "F32", "MXFP4")."""

    name: str
    formats: Mapping[str, FormatKernels]
    rms_norm: Kernel
    activate: Kernel
    multiply_sigmoid: Kernel
    add: Kernel
    exponential: Kernel
    mix_residuals: Kernel
    short_convolution: Kernel
    prepare: Kernel
    scan: Kernel
    gate_output: Kernel
    attend: Kernel
    route: Kernel
    combine: Kernel

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel of the set, once."""
        for field in fields(self):
            value = getattr(self, field.name)
            if callable(value):
                yield value
        for kernels in self.formats.values():
            for field in fields(kernels):
                if (kernel := getattr(kernels, field.name)) is not None:
                    yield kernel


KERNEL_SETS = ("numba", "numpy")


def load_kernels(name: str) -> KernelSet:
    """The kernel set of this name. `numba` is imported on demand, and nothing is compiled yet."""
    if name not in KERNEL_SETS:
        raise ValueError(f"no kernel set is called {name!r}; there are {', '.join(KERNEL_SETS)}")
    kernel_set: KernelSet = importlib.import_module(f".{name}_set", __package__).KERNELS
    return kernel_set

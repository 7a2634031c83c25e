"""A kernel set: every operation the walk needs, in one implementation.

`numba` is the engine: compiled, in the canonical order. `numpy` is its readable twin, equal within tolerance; it
needs no compiler and runs under NUMBA_DISABLE_JIT. The kernels' docstrings in `bf16`, `mxfp4`, `vq`, `vectors`, `kda`,
`mla` and `moe` say what each does; both sets take the same arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True)
class FormatKernels:
    """The kernels of one weight format; `absorb` is missing where no trunk uses it, `experts` where no expert does."""

    product: Kernel
    widen: Kernel
    absorb: Kernel | None = None
    find_bad_scale: Kernel | None = None
    experts: Kernel | None = None


@dataclass(frozen=True, slots=True)
class CodebookKernels:
    """The kernels of one format whose weights are indices into codebooks, which only experts use."""

    product: Kernel
    widen: Kernel
    find_bad_scale: Kernel
    experts: Kernel


@dataclass(frozen=True, slots=True)
class KernelSet:
    """All kernels by name; `formats` by the name of a weight format ("BF16", "MXFP4"), `codebook_formats` likewise."""

    name: str
    formats: Mapping[str, FormatKernels]
    codebook_formats: Mapping[str, CodebookKernels]
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
    accumulate: Kernel

    def only(self, formats: Iterable[str]) -> KernelSet:
        """The same set with kernels for these weight formats alone; names it does not know are passed over."""
        wanted = set(formats)
        return replace(
            self,
            formats={name: kernels for name, kernels in self.formats.items() if name in wanted},
            codebook_formats={name: kernels for name, kernels in self.codebook_formats.items() if name in wanted},
        )

    @property
    def format_names(self) -> tuple[str, ...]:
        """The weight formats it has kernels for."""
        return (*self.formats, *self.codebook_formats)

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel of the set; one that several formats share comes with each."""
        yield from self.by_name().values()

    def by_name(self) -> dict[str, Kernel]:
        """Every kernel under its name: "rms_norm", "BF16.product".

        Those that call others come first: the last are compiled first, and what is called is there by then.
        """
        by_format: dict[str, FormatKernels | CodebookKernels] = {**self.formats, **self.codebook_formats}
        named: dict[str, Kernel] = {
            f"{name}.experts": kernels.experts for name, kernels in by_format.items() if kernels.experts is not None
        }
        for field in fields(self):
            value = getattr(self, field.name)
            if callable(value):
                named[field.name] = value
        for format_name, kernels in by_format.items():
            for field in fields(kernels):
                if (kernel := getattr(kernels, field.name)) is not None:
                    named[f"{format_name}.{field.name}"] = kernel
        return named


KERNEL_SETS = ("numba", "numpy")


def load_kernels(name: str) -> KernelSet:
    """The kernel set of this name. `numba` is imported on demand, and nothing is compiled yet."""
    if name not in KERNEL_SETS:
        raise ValueError(f"no kernel set is called {name!r}; there are {', '.join(KERNEL_SETS)}")
    kernel_set: KernelSet = importlib.import_module(f".{name}_set", __package__).KERNELS
    return kernel_set

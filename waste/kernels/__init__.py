"""Arithmetic on arrays: kernels by storage format and by operation, their numpy twins, the compute threads."""

from .compiling import prepare
from .kernel_set import KERNEL_SETS, FormatKernels, KernelSet, load_kernels

__all__ = ["KERNEL_SETS", "FormatKernels", "KernelSet", "load_kernels", "prepare"]

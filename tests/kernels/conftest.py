"""Compiled kernels for the tests of this folder."""

from __future__ import annotations

import pytest

from waste.kernels import load_kernels, prepare
from waste.kernels.kernel_set import Kernel


@pytest.fixture(scope="session")
def compiled() -> dict[str, Kernel]:
    """The numba kernels by the names of the table, compiled or out of the cache."""
    kernel_set = load_kernels("numba")
    prepare(kernel_set)
    return kernel_set.by_name()

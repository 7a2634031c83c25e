"""Rule 1 over machines: generic code, AVX2 and whatever this machine has give the same bits."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator

import pytest

from waste.kernels.kernel_set import Kernel

from .hash_kernels import hash_outputs
from .processes import report_of, start_hashing

SETTINGS = {
    "generic": {"NUMBA_CPU_NAME": "generic"},
    "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
}
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Both started at once: each compiles every kernel."""
    started = {name: start_hashing(**SETTINGS[name]) for name in SETTINGS if IS_X86 or name != "haswell"}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def own_hashes(processes: object, compiled: dict[str, Kernel]) -> dict[str, str]:
    return hash_outputs(compiled, compiled)


@pytest.mark.parametrize("cpu", SETTINGS)
def test_same_bits(cpu: str, processes: dict[str, subprocess.Popen[str]], own_hashes: dict[str, str]) -> None:
    if cpu not in processes:
        pytest.skip(f"{cpu} code does not run on {platform.machine()}")
    report = report_of(processes[cpu])
    assert report.cpu == cpu
    different = [case for case, expected in own_hashes.items() if report.hashes[case] != expected]
    assert not different

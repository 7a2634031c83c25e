"""Getting the kernels ready: a child process compiles what the cache lacks, this one only loads.

A compiler's memory stays with its process long after it is done; the child's ends with it, before the engine
allocates anything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .kernel_set import KernelSet, load_kernels

Progress = Callable[[int], None]
_ROOT = str(Path(__file__).parents[2])
_CHILD = f"import sys; sys.path.insert(0, {_ROOT!r}); from waste.kernels.compiling import fill_cache; fill_cache()"


def prepare(kernel_set: KernelSet, progress: Progress = lambda done: None) -> None:
    """Make every kernel callable; `progress(done)` as they are compiled, and it may raise to call it off."""
    if kernel_set.name != "numba":
        return
    from ._jit import compile_kernel, ready_mark

    mark = ready_mark()
    if mark is not None and not mark.exists():
        _compile_elsewhere(progress)
    for done, kernel in enumerate(kernel_set.kernels()):
        progress(done)
        compile_kernel(kernel)


def _compile_elsewhere(progress: Progress) -> None:
    """Fill the cache in a child process. If it fails, or cannot be started, this process compiles what is missing."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return
    with child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if line.strip().isdigit():
                    progress(int(line))
        except BaseException:
            child.kill()
            raise


def fill_cache() -> None:
    """What the child does: compile everything, telling how far it is, and leave a mark when all is there."""
    from ._jit import compile_kernel, ready_mark

    for done, kernel in enumerate(load_kernels("numba").kernels()):
        print(done, flush=True)
        compile_kernel(kernel)
    mark = ready_mark()
    if mark is not None:
        mark.touch()

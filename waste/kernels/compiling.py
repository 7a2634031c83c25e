"""Getting the kernels ready: a child process compiles what the cache lacks, this one only loads.

A compiler's memory stays with its process long after it is done; the child's ends with it, before the engine
allocates anything.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from .kernel_set import KernelSet, load_kernels

Progress = Callable[[int], None]
_ROOT = str(Path(__file__).parents[2])
_CHILD = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from waste.kernels.compiling import fill_cache; "
    "fill_cache(sys.argv[1:])"
)


def prepare(kernel_set: KernelSet, progress: Progress = lambda done: None) -> None:
    """Make every kernel callable; `progress(done)` again and again meanwhile, which may raise to call it off."""
    if kernel_set.name != "numba":
        return
    from ._jit import compile_kernel, ready_mark

    mark = ready_mark(kernel_set.format_names)
    if mark is not None and not mark.exists():
        _compile_elsewhere(kernel_set.format_names, progress)
    done = 0
    for kernel in kernel_set.kernels():
        progress(done)
        compile_kernel(kernel)
        done += 1
    progress(done)


def _compile_elsewhere(formats: Sequence[str], progress: Progress) -> None:
    """Fill the cache in a child process. If it fails, or cannot be started, this process compiles what is missing."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *formats],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return
    lines: SimpleQueue[bytes | None] = SimpleQueue()
    reader = threading.Thread(target=_pump, args=(child.stdout, lines), name="waste-compiling", daemon=True)
    reader.start()
    done = 0
    line: bytes | None = b"0"
    try:
        while line is not None:
            done = int(line) if line.strip().isdigit() else done
            progress(done)
            # Not a moment longer without `progress`: it may want to call this off while one kernel takes a second.
            with suppress(Empty):
                line = lines.get(timeout=0.05)
    except BaseException:
        child.kill()
        raise
    finally:
        child.wait()
        reader.join()


def _pump(stream: IO[bytes], lines: SimpleQueue[bytes | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def fill_cache(formats: Sequence[str]) -> None:
    """What the child does: compile what models in these weight formats need, and leave a mark when all is there.

    It tells how far it is.
    """
    from ._jit import compile_kernel, ready_mark

    for done, kernel in enumerate(load_kernels("numba").only(formats).kernels()):
        print(done, flush=True)
        compile_kernel(kernel)
    mark = ready_mark(formats)
    if mark is not None:
        mark.touch()

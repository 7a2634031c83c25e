"""Getting the kernels ready: child processes compile what the cache lacks, this one only loads.

A compiler's memory stays with its process long after it is done; the children's ends with them, before the engine
allocates anything.

numba keeps an index file for each function, and two processes that add to the same one at once can lose an entry. So
every kernel is given to one child, the next that has nothing to do.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from .kernel_set import Kernel, KernelSet

Progress = Callable[[int], None]
COMPILING, LOADING = "compiling kernels", "loading kernels"
"""What `prepare` is at."""
_ROOT = str(Path(__file__).parents[2])
_CHILD = f"import sys; sys.path.insert(0, {_ROOT!r}); from waste.kernels.compiling import serve; serve()"
KERNELS_A_CHILD = 4
"""A child takes longer to start than most kernels to compile: with fewer than these it would not pay."""
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Filled:
    """Kernels by what became of them: `present` in the cache before, `compiled` now, `missing` still.

    children: processes that compiled.
    """

    present: int
    compiled: int
    missing: int
    children: int


def prepare(
    kernel_set: KernelSet, progress: Callable[[str, int], None] = lambda phase, done: None, *, children: int = 1
) -> None:
    """Make every kernel callable; what the cache lacks is compiled by up to so many children at once.

    `progress(phase, done)` comes again and again meanwhile, and may raise to call it off.
    """
    if kernel_set.name != "numba":
        return
    from ._jit import compile_kernel

    filled = fill_cache(kernel_set.kernels(), partial(progress, COMPILING), children=children)
    phase, done = COMPILING if filled.missing else LOADING, 0
    for kernel in kernel_set.kernels():
        progress(phase, done)
        compile_kernel(kernel)
        done += 1
    progress(phase, done)


def fill_cache(kernels: Iterable[Kernel], progress: Progress = lambda done: None, *, children: int) -> Filled:
    """Compile the kernels that the cache lacks, in up to so many child processes at once; this one loads nothing.

    `progress(done)` counts distinct kernels that are in the cache; it may raise to call it off, which ends the
    children. A kernel whose child fails, or cannot be started, is `missing`, as all are without a cache to fill.
    """
    names = list(dict.fromkeys(_name(kernel) for kernel in kernels))
    lacking = [name for name in names if not _is_ready(name)]
    present = len(names) - len(lacking)
    if not lacking or _mark(lacking[0]) is None:
        return Filled(present, 0, len(lacking), 0)
    count = max(1, min(children, len(lacking) // KERNELS_A_CHILD))
    # The last ones of a set, its products, take the longest: begun first, they leave nobody waiting at the end.
    count = _compile_elsewhere(lacking[::-1], count, lambda done: progress(present + done))
    missing = sum(not _is_ready(name) for name in lacking)
    return Filled(present, len(lacking) - missing, missing, count)


def _name(kernel: Kernel) -> str:
    """Where a child finds the kernel: its module and its name there."""
    return f"{kernel.__module__}.{kernel.__qualname__}"


def _mark(name: str) -> Path | None:
    """A file that says that this kernel is in the cache; None without a cache."""
    from ._jit import ready_mark

    return ready_mark(name)


def _is_ready(name: str) -> bool:
    mark = _mark(name)
    return mark is not None and mark.exists()


def _compile_elsewhere(names: Sequence[str], children: int, progress: Progress) -> int:
    """Compile in child processes, the first name first; returns how many could be started."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for name in names:
        waiting.put(name)
    compiled: list[str] = []
    started: list[subprocess.Popen[str]] = []
    threads: list[threading.Thread] = []
    try:
        for number in range(children):
            with suppress(OSError):
                started.append(_start_child())
                hand = threading.Thread(
                    target=_hand_out,
                    args=(started[-1], waiting, compiled),
                    name=f"waste-compiling-{number}",
                    daemon=True,
                )
                threads.append(hand)
                hand.start()
        for thread in threads:
            while thread.is_alive():
                # Not a moment longer without `progress`: it may want to call this off while a kernel takes a second.
                progress(len(compiled))
                thread.join(_PAUSE_S)
    except BaseException:
        for child in started:
            child.kill()
        raise
    finally:
        for thread in threads:
            thread.join()
        for child in started:
            child.wait()
    progress(len(compiled))
    return len(started)


def _start_child() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _hand_out(child: subprocess.Popen[str], waiting: SimpleQueue[str], compiled: list[str]) -> None:
    """Give a child one kernel after another, until there are none left or it is gone; then it ends."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(Empty, OSError), child.stdout, child.stdin:
        while True:
            name = waiting.get_nowait()
            child.stdin.write(f"{name}\n")
            child.stdin.flush()
            if child.stdout.readline().strip() != name:
                return
            compiled.append(name)


def serve() -> None:
    """What a child does: compile the kernels whose names come in, mark each as ready, and say its name."""
    from ._jit import compile_kernel

    for line in sys.stdin:
        name = line.strip()
        module, _, function = name.rpartition(".")
        compile_kernel(getattr(importlib.import_module(module), function))
        mark = _mark(name)
        if mark is not None:
            mark.touch()
        print(name, flush=True)

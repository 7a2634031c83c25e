"""All numba policy in one place: compile flags, the disk cache, which kernels get compiled when.

This is the only module that imports numba or llvmlite; the others take what they need from here.

- Kernels are serial and release the GIL; the engine's own compute threads run them on row ranges.
- No fastmath and no contraction: a product and a sum fuse only where the source says `fma`, so one source gives
  the same bits on every instruction set.
- `helper` functions exist only inside kernels. A `kernel` has one declared signature; `compile_kernel` builds it,
  and a call with other types is an error instead of a surprise compilation.
- A kernel may call others, which it names in `calls`: their compiled code is linked into it, out of the cache too.
- numba's disk cache does not notice a change in a callee of another file, so its folder is named by a hash of every
  kernel source and of numba's version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
from llvmlite import binding
from llvmlite import ir as ir
from numba import carray as carray
from numba import extending, njit
from numba import types as types

from ..errors import UnsupportedError

if numba.config.DISABLE_JIT:
    raise UnsupportedError("NUMBA_DISABLE_JIT is set: unset it, or set compute.kernels=numpy, which compiles nothing")

binding.initialize_native_asmparser()  # for the one step that LLVM cannot be brought to emit: `_codebooks`

F = TypeVar("F", bound=Callable[..., Any])

models = extending.models
register_model = extending.register_model
overload = extending.overload

void = types.void
i64 = types.int64
f32 = types.float32
u8s = types.Array(types.uint8, 1, "C")
i64s = types.Array(types.int64, 1, "C")
i64s2 = types.Array(types.int64, 2, "C")
f32s = types.Array(types.float32, 1, "C")
f32s2 = types.Array(types.float32, 2, "C")
f32s3 = types.Array(types.float32, 3, "C")

_declared: dict[str, tuple[Any, Any, tuple[Callable[..., Any], ...]]] = {}
"""Each kernel's dispatcher and signature, and the kernels it calls."""


@cache
def cache_folder() -> Path | None:
    """The writable folder for compiled kernels: the user's, else a temporary one; None where neither can be had."""
    name = folder_name(sorted(Path(__file__).parent.rglob("*.py")))
    for parent in (_user_cache, _temporary_cache):
        try:
            folder = parent() / name
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                os.utime(folder)
        except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
            continue
        remove_unused(folder)
        return folder
    return None


def _temporary_cache() -> Path:
    """A folder that this user alone can write to: what lies in it will be run. Raises OSError if it is not."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"waste-cache-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (not folder.is_dir() or status.st_uid != user or status.st_mode & 0o022):
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def has_wide_registers() -> bool:
    """Whether kernels are compiled for 32 vector registers of 512 bits each."""
    told = numba.config.CPU_FEATURES or ""
    if numba.config.CPU_NAME:
        return "+avx512f" in told.split(",")
    return bool(binding.get_host_cpu_features().get("avx512f"))


def ready_mark(kernel: str) -> Path | None:
    """A file that says that this kernel is in the cache; None without a cache."""
    folder = cache_folder()
    return None if folder is None else folder / f"ready-{kernel.lower()}"


def folder_name(sources: Iterable[Path]) -> str:
    """Changes with every kernel source, with numba, LLVM and Python, and with the processor as numba sees it.

    And with where the sources lie, which numba's own index goes by.

    numba would keep several processors' code side by side in one folder, but two processes that add to it at once can
    lose each other's entries.
    """
    processor = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    told = f"{numba.config.CPU_NAME} {numba.config.CPU_FEATURES}"
    versions = f"{numba.__version__} {llvmlite.__version__} {sys.version}"
    place = Path(__file__).parent
    digest = hashlib.sha256(f"{versions} {processor} {told} {place}".encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return f"kernels-{digest.hexdigest()[:16]}"


def remove_unused(current: Path) -> None:
    """Remove the folders of other versions that nobody has used for a month."""
    month_ago = time.time() - 30 * 24 * 3600
    with suppress(OSError):
        for folder in current.parent.glob("kernels-*"):
            if folder != current and folder.stat().st_mtime < month_ago:
                shutil.rmtree(folder, ignore_errors=True)


def _user_cache() -> Path:
    if configured := os.environ.get("WASTE_CACHE_DIR"):
        return Path(configured)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "waste"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "waste" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waste"


def _cached(dispatcher: Any) -> Any:
    """Turn on numba's disk cache in our folder, for this function only."""
    folder = cache_folder()
    if folder is not None:
        outer, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
        try:
            dispatcher.enable_caching()
        finally:
            numba.config.CACHE_DIR = outer
    return dispatcher


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that emits its own LLVM code; kernels call it without the leading typing context."""
    wrapped: Callable[..., Any] = extending.intrinsic(function)
    return wrapped


def helper(function: F) -> F:
    """A function that only kernels call; it is compiled into them."""
    dispatcher: F = njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return dispatcher


def template(function: F) -> F:
    """A helper that calls kernels; its source is put into those that use it.

    As a `helper` it would link and optimize the kernels' code once more for itself.
    """
    dispatcher: F = njit(nogil=True, error_model="numpy", inline="always")(function)
    return dispatcher


def kernel(*signature: Any, calls: tuple[Callable[..., Any], ...] = ()) -> Callable[[F], F]:
    """A kernel of one signature: argument types in order. It returns nothing; results go into its arguments.

    calls: the kernels that it calls.
    """

    def decorate(function: F) -> F:
        dispatcher: Any = _cached(njit(nogil=True, error_model="numpy")(function))
        name = f"{function.__module__}.{function.__qualname__}"
        _declared[name] = (dispatcher, void(*signature), calls)
        result: F = dispatcher
        return result

    return decorate


def compile_kernel(function: Callable[..., Any]) -> None:
    """Compile a kernel, or load it from the cache; nothing to do if that is done."""
    dispatcher, signature, calls = _declared[f"{function.__module__}.{function.__qualname__}"]
    if not dispatcher.signatures:
        # Before their caller: it would compile them for the types it calls them with.
        for called in calls:
            compile_kernel(called)
        _compile(dispatcher, signature)
        dispatcher.disable_compile()


def _compile(dispatcher: Any, signature: Any) -> None:
    try:
        dispatcher.compile(signature)
    except Exception:
        # The disk is full, in which case the kernel exists by now, or a file of the cache is damaged: do without.
        # Where the kernel itself is at fault the same error comes again.
        if not dispatcher.signatures:
            with suppress(OSError):
                dispatcher._cache.flush()
            dispatcher._cache.disable()
            dispatcher.compile(signature)

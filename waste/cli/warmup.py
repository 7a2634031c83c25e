"""`waste warmup`: compile kernels now, so that no engine has to wait for it later."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.interrupt import INTERRUPTION
from waste.cli.options import JsonOption, resolve_settings
from waste.errors import BudgetError, WasteError

if TYPE_CHECKING:
    from waste.kernels.compiling import Filled
    from waste.kernels.kernel_set import Kernel


def warmup(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A model's folder, or `demo` [default: every kernel].")
    ] = None,
    ram: Annotated[
        str | None, typer.Option("--ram", metavar="SIZE", help="What the compiling processes may take, or auto.")
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Compile the kernels a model needs, or all there are, on every core the memory allows.

    They are kept in the user's cache folder (WASTE_CACHE_DIR names another one), and opening a model only loads them.
    """

    def work() -> None:
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.kernels.compiling import fill_cache
        from waste.opening import compiling_children

        kernels = _kernels(model)
        children = compiling_children(_budget(ram))
        interrupted: list[bool] = []
        began = perf_counter()
        with ProgressDisplay() as progress, INTERRUPTION.calls(lambda: interrupted.append(True)):

            def report(done: int) -> None:
                if interrupted:
                    raise KeyboardInterrupt
                progress("compiling kernels", done, len(kernels))

            filled = fill_cache(kernels, report, children=children)
        found = _described(model, filled, perf_counter() - began)
        if as_json:
            print_json(found)
        else:
            write_text(_as_text(found))
        _complain(filled, found["folder"])

    return work


def _kernels(model: str | None) -> list[Kernel]:
    """Those for the formats a model is stored in; without a model all, what conversions need included."""
    from waste.kernels import load_kernels
    from waste.model.bundle import load_bundle

    every = load_kernels("numba")
    if model is not None:
        found = [*every.only(load_bundle(model).weight_formats()).kernels()]
    else:
        from waste.kernels.encoders import ENCODERS

        found = [*every.kernels(), *ENCODERS]
    return list(dict.fromkeys(found))


def _budget(ram: str | None) -> int:
    """Bytes for this process and the compiling ones. Raises BudgetError if they do not hold even one of those."""
    from waste.blueprint import DEFAULT_RAM
    from waste.footprint import COMPILER_BYTES
    from waste.machine import usable_memory_bytes

    budget = resolve_settings(None, ram, None, None, None).ram
    if budget is None:
        budget = usable_memory_bytes(if_unknown=DEFAULT_RAM) // 8 * 7
    if budget < COMPILER_BYTES:
        raise BudgetError(f"compiling takes {COMPILER_BYTES:,} bytes, the budget is {budget:,}; raise --ram")
    return budget


def _described(model: str | None, filled: Filled, seconds: float) -> dict[str, Any]:
    from waste.kernels._jit import cache_folder

    folder = cache_folder()
    return {
        "model": model,
        "kernels": filled.present + filled.compiled + filled.missing,
        "compiled": filled.compiled,
        "present": filled.present,
        "missing": filled.missing,
        "children": filled.children,
        "seconds": seconds,
        "folder": None if folder is None else str(folder),
    }


def _as_text(found: dict[str, Any]) -> str:
    processes = "1 process" if found["children"] == 1 else f"{found['children']} processes"
    how = f" in {found['seconds']:.1f} s by {processes}" if found["children"] else ""
    where = found["folder"] or "nowhere to keep them"
    return f"{found['compiled']} of {found['kernels']} kernels compiled{how}, {found['present']} were there: {where}\n"


def _complain(filled: Filled, folder: str | None) -> None:
    if folder is None:
        raise WasteError("no folder for compiled kernels can be written; name one by WASTE_CACHE_DIR")
    if filled.missing:
        raise WasteError(
            f"{filled.missing} kernels could not be compiled into {folder}; is there room on the disk, and memory?"
        )

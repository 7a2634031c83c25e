"""The read backends, by name. A backend is one module here, named as the backend, that calls `register`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

from waste.errors import InputError
from waste.io.backends.base import Backend, TakesFaults

Factory = Callable[[int], Backend]

READER_BYTES = 32 << 10
"""Resident memory of a reading thread, the pages of its stack and malloc's for it: measured at 15 KiB."""

_NOT_BACKENDS = {"base", "contract", "faults", "ledger"}
# For tests, which import it: there is nothing it could do for anybody else.
_HIDDEN = {"hanging"}
_factories: dict[str, Factory] = {}
_window_bytes: dict[str, Callable[[int], int]] = {}


def register(name: str, factory: Factory, *, window_bytes: Callable[[int], int] = lambda queue_depth: 0) -> None:
    """Make a backend known. `factory` takes the queue depth: how many reads it should keep in flight.

    window_bytes: by queue depth, memory for all reads in flight that is neither their buffers nor the readers' own.
    """
    _factories[name] = factory
    _window_bytes[name] = window_bytes


def names() -> list[str]:
    """Every backend there is for a user, sorted."""
    return sorted((_factories.keys() | _module_names()) - _HIDDEN)


def resolve(name: str) -> str:
    """The backend that `name` stands for: "auto" is the best one for this machine, today always `threads`."""
    return "threads" if name == "auto" else name


def memory_bytes(name: str, *, queue_depth: int) -> int:
    """What a backend takes beside the buffers it reads into. Raises InputError for an unknown name."""
    name = _load(name)
    return queue_depth * READER_BYTES + _window_bytes[name](queue_depth)


def create(name: str, *, queue_depth: int, faults: str = "") -> Backend:
    """A new backend, not yet started; "auto" is the best one for this machine, today always `threads`.

    faults: what a simulated disk does wrong, see `waste.io.backends.faults`.

    Raises InputError for an unknown name, a queue depth below 1, and faults that are malformed or for a real disk.
    """
    if queue_depth < 1:
        raise InputError(f"io.queue_depth is {queue_depth}; expected at least 1")
    name = _load(name)
    backend = _factories[name](queue_depth)
    if faults:
        if not isinstance(backend, TakesFaults):
            raise InputError(f"io.faults is {faults!r}, but io.backend {name!r} is a real disk; set it to 'simulated'")
        backend.set_faults(faults)
    return backend


def _load(name: str) -> str:
    """The name of the backend meant, which is registered then. Raises InputError for an unknown one."""
    name = resolve(name)
    if name not in _factories and name in _module_names():
        # Imported by name, so that a backend's own dependencies load only where it is used.
        import_module(f"{__name__}.{name}")
    if name not in _factories:
        near = get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"unknown io.backend {name!r}; expected auto, {', '.join(names())}{hint}")
    return name


def _module_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(__path__)} - _NOT_BACKENDS - _HIDDEN

"""Everything `waste` raises on purpose, sorted by whose fault it is.

    WasteError              any of the below
    ├── ModelError          a config or a model file is wrong
    │   └── DamagedError    a file contradicts itself or what its index promised
    ├── ReadError           the device did not return the bytes asked for
    ├── BudgetError         the memory budget is below what the model needs
    ├── InputError          a request is wrong: prompt, ids, sampling, settings
    ├── ContextLengthError  a request needs more positions than the session has
    ├── UnsupportedError    well-formed, but nothing here can run it
    └── ClosedError         the engine was closed before or during the call

A message says what was found, what was expected and what to do. `exit_code` is what the command line returns.
"""

from __future__ import annotations

from collections.abc import Hashable


class WasteError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1


class ModelError(WasteError):
    """The model's configuration or one of its files is wrong."""

    exit_code = 2


class DamagedError(ModelError):
    """A file contradicts itself or what its index promised."""

    exit_code = 4


class ReadError(WasteError):
    """The device did not return the bytes asked for. `key` names what was read, where the reader knows it."""

    exit_code = 4

    def __init__(self, message: str, *, key: Hashable | None = None) -> None:
        super().__init__(message)
        self.key = key


class BudgetError(WasteError):
    """The memory budget is below what the model needs."""

    exit_code = 3


class InputError(WasteError):
    """A request is wrong: its prompt, ids, sampling parameters or settings."""

    exit_code = 2


class ContextLengthError(WasteError):
    """A request needs more positions than its session has."""

    exit_code = 2


class UnsupportedError(WasteError):
    """Well-formed, but nothing here can run it."""

    exit_code = 2


class ClosedError(WasteError):
    """The engine was closed before or during the call."""

"""`waste` runs Mixture-of-Experts language models far larger than RAM: weights stay on disk, a token at a time.

    async with waste.open("k3", preset="laptop") as engine:
        async for token in engine.generate("In the beginning", max_tokens=64):
            print(token.text, end="", flush=True)

Names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waste.errors import (
    BudgetError,
    ClosedError,
    ContextLengthError,
    DamagedError,
    InputError,
    ModelError,
    ReadError,
    UnsupportedError,
    WasteError,
)

if TYPE_CHECKING:
    from waste.engine import Engine, open
    from waste.generate import Token
    from waste.model.sampling import SamplingParams
    from waste.session import Session
    from waste.sync import run

__version__ = "0.1.0"

_LAZY = {
    "Engine": "waste.engine",
    "SamplingParams": "waste.model.sampling",
    "Session": "waste.session",
    "Token": "waste.generate",
    "open": "waste.engine",
    "run": "waste.sync",
}

__all__ = [
    "BudgetError",
    "ClosedError",
    "ContextLengthError",
    "DamagedError",
    "Engine",
    "InputError",
    "ModelError",
    "ReadError",
    "SamplingParams",
    "Session",
    "Token",
    "UnsupportedError",
    "WasteError",
    "open",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'waste' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))

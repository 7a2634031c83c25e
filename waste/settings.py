"""Every knob by its dotted name, parsed and checked once, into one frozen object."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from waste.errors import InputError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
DEFAULT_CONTEXT = 4096
DEFAULT_QUEUE_DEPTH = 8
_UNITS = {"": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
# No exponent: 1e-999999999 as a fraction has a thousand million digits.
_SHARE = re.compile(r"\d{1,6}(\.\d{1,6}|/\d{1,6})?")


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes are bytes; None means `auto`: the planner or the machine decides.

    ram_share: what part of the machine `ram: auto` takes. reserve: bytes of the budget for what the caller holds.
    """

    ram: int | None = None
    ram_share: Fraction = Fraction(7, 8)
    reserve: int = 0
    trunk: int | None = None
    experts: int | None = None
    context: int = DEFAULT_CONTEXT
    sessions: int | None = None
    trunk_tile: int = 64 * MIB
    io_backend: str = "auto"
    io_queue_depth: int = DEFAULT_QUEUE_DEPTH
    io_direct: str = "auto"
    io_faults: str = ""
    cache_policy: str = "lfru"
    prefetch_policy: str = "none"
    prefetch_width: int | None = None
    prefetch_depth: int = 1
    prefill_chunk: int | None = None
    compute_threads: int | None = None
    compute_kernels: str = "numba"
    verify: bool = False


def parse_size(text: object) -> int:
    """Bytes from a bare number or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB. Raises ValueError."""
    if isinstance(text, bool):
        raise ValueError
    if isinstance(text, int):
        size = text
    elif isinstance(text, str) and (match := _SIZE.fullmatch(text)) and match[2].lower() in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2].lower()])
    else:
        raise ValueError
    if not 0 <= size < 1 << 62:
        raise ValueError
    return size


def _some(value: object) -> int:
    size = parse_size(value)
    if size == 0:
        raise ValueError
    return size


def _share(value: object) -> Fraction:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not _SHARE.fullmatch(str(value)):
        raise ValueError
    try:
        share = Fraction(str(value))
    except ZeroDivisionError:
        raise ValueError from None
    if not 0 < share <= 1:
        raise ValueError
    return share


def _auto(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value in ("auto", None) else parse(value)


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
        raise ValueError
    return value


def _few(value: object) -> int:
    count = _count(value)
    if count > MOST_THREADS:
        raise ValueError
    return count


def _word(value: object) -> str:
    # YAML reads a bare `on` or `off` as a truth value; direct reads spell theirs that way.
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, str):
        raise ValueError
    return value


def _truth(value: object) -> bool:
    words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str | int) and str(value).lower() in words:
        return words[str(value).lower()]
    raise ValueError


MOST_THREADS = 1024
"""Readers or compute threads that anybody could mean."""
_A_FEW = f"a whole number from 1 to {MOST_THREADS}"
_A_SIZE, _A_COUNT = "a size such as 512MiB, 8GiB or a number of bytes", "a whole number from 1"
_KEYS: dict[str, tuple[Callable[[object], Any], str]] = {
    "ram": (_auto(parse_size), f"{_A_SIZE}, or auto"),
    "ram.share": (_share, "a part of the machine, such as 7/8 or 0.9"),
    "reserve": (parse_size, _A_SIZE),
    "trunk": (_auto(parse_size), f"{_A_SIZE}, or auto"),
    "experts": (_auto(parse_size), f"{_A_SIZE}, or auto"),
    "context": (_count, _A_COUNT),
    "sessions": (_auto(_count), f"{_A_COUNT}, or auto"),
    "trunk.tile": (_some, f"{_A_SIZE}, not 0"),
    "io.backend": (_word, "the name of a backend, or auto"),
    "io.queue_depth": (_few, _A_FEW),
    "io.direct": (_word, "auto, on or off"),
    "io.faults": (_word, "a list of faults for the simulated backend"),
    "cache.policy": (_word, "the name of an eviction policy"),
    "prefetch.policy": (_word, "the name of a prefetch policy"),
    "prefetch.width": (_auto(_count), f"{_A_COUNT}, or auto"),
    "prefetch.depth": (_count, _A_COUNT),
    "prefill.chunk": (_auto(_count), f"{_A_COUNT}, or auto"),
    "compute.threads": (_auto(_few), f"{_A_FEW}, or auto"),
    "compute.kernels": (_word, "numba or numpy"),
    "verify": (_truth, "true or false"),
}
KEYS = tuple(_KEYS)


def parse_settings(values: Mapping[str, object], *, where: str = "settings") -> dict[str, Any]:
    """Values by dotted key, parsed, under the field names of `Settings`.

    Raises InputError naming the key: an unknown one with the nearest known, a bad value with what was expected.
    """
    parsed = {}
    for key, value in values.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.0)[0]
            raise InputError(f"{where}: there is no setting {key!r}; did you mean {near!r}?")
        parse, expected = _KEYS[key]
        try:
            parsed[key.replace(".", "_")] = parse(value)
        except ValueError:
            raise InputError(f"{where}: {key} is {value!r}, expected {expected}") from None
    return parsed


assert {key.replace(".", "_") for key in KEYS} == {field.name for field in fields(Settings)}

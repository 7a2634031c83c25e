"""What a simulated disk does, in one line of text: the setting `io.faults`.

Parts are separated by commas; those left out do nothing. For example

    latency=2ms,bandwidth=2GB/s,depth=8,reorder,seed=7,fail=3%,fail-at=12:eio,short-at=5

| part | meaning |
|---|---|
| latency=TIME | every read takes at least this long; TIME is a number with us, ms or s |
| bandwidth=RATE | all reads together get this much; RATE is a number with B/s, KB/s … GB/s, KiB/s … GiB/s |
| depth=N | the device works on N reads at once, the others wait; else all that are submitted |
| reorder | waiting reads begin in a random order, and each takes between nothing and twice the latency |
| seed=N | of everything random, 0 if left out; the same seed does the same to the same reads |
| fail=P% | each read fails with this probability, as with EIO |
| fail-at=N or N:ERROR | the N-th read submitted, from 1, fails; ERROR is an errno name such as eio, enodev, etimedout |
| short-at=N | the N-th read brings fewer bytes than it needs, as from a file that was cut short |

fail-at and short-at may be given several times.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from waste.errors import InputError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER = r"(\d+(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class Faults:
    """latency_s seconds; bandwidth bytes a second, None for no limit; fail from 0 to 1.

    fail_at: errno by the number of the read, from 1. short_at: the numbers of the reads that come short.
    """

    latency_s: float = 0.0
    bandwidth: float | None = None
    depth: int | None = None
    reorder: bool = False
    seed: int = 0
    fail: float = 0.0
    fail_at: Mapping[int, int] = field(default_factory=dict)
    short_at: frozenset[int] = frozenset()


def parse_faults(text: str) -> Faults:
    """Raises InputError naming the part that is unknown, malformed or given twice."""
    values: dict[str, Any] = {}
    fail_at: dict[int, int] = {}
    short_at: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in _PARTS:
            raise InputError(f"io.faults has no part {part!r}; there are {', '.join(_PARTS)}")
        parse, expected = _PARTS[name]
        try:
            if bool(equals) is (name == "reorder"):
                raise ValueError
            parsed = parse(value.strip())
        except ValueError:
            raise InputError(f"io.faults: {part!r} is not {expected}") from None
        if name == "fail-at":
            fail_at[parsed[0]] = parsed[1]
        elif name == "short-at":
            short_at.add(parsed)
        elif _FIELDS[name] in values:
            raise InputError(f"io.faults: {part!r} gives {name} a second time")
        else:
            values[_FIELDS[name]] = parsed
    return Faults(**values, fail_at=fail_at, short_at=frozenset(short_at))


def _quantity(text: str, units: Mapping[str, float], suffix: str = "") -> float:
    match = re.fullmatch(rf"{_NUMBER}\s*([a-z]+){suffix}", text.lower())
    if match is None or match[2] not in units:
        raise ValueError
    return float(match[1]) * units[match[2]]


def _rate(text: str) -> float:
    rate = _quantity(text, _BYTES, "/s")
    if rate <= 0:
        raise ValueError
    return rate


def _share(text: str) -> float:
    match = re.fullmatch(rf"{_NUMBER}\s*%", text)
    if match is None or float(match[1]) > 100:
        raise ValueError
    return float(match[1]) / 100


def _whole(text: str, least: int = 1) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise ValueError
    return int(text)


def _failure(text: str) -> tuple[int, int]:
    number, colon, name = text.partition(":")
    code = getattr(errno, name.strip().upper(), None) if colon else errno.EIO
    if not isinstance(code, int):
        raise ValueError
    return _whole(number.strip()), code


_PARTS: dict[str, tuple[Callable[[str], Any], str]] = {
    "latency": (lambda text: _quantity(text, _SECONDS), "a time such as latency=2ms"),
    "bandwidth": (_rate, "a rate such as bandwidth=2GB/s"),
    "depth": (_whole, "a whole number from 1, such as depth=8"),
    "reorder": (lambda _: True, "the word reorder by itself"),
    "seed": (lambda text: _whole(text, 0), "a whole number such as seed=7"),
    "fail": (_share, "a share such as fail=3%"),
    "fail-at": (_failure, "the number of a read from 1, such as fail-at=12 or fail-at=12:eio"),
    "short-at": (_whole, "the number of a read from 1, such as short-at=5"),
}
_FIELDS = {"latency": "latency_s"} | {name: name for name in ("bandwidth", "depth", "reorder", "seed", "fail")}

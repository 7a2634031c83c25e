"""Typed access to one level of `config.json`: every value is checked and every complaint names its key."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from waste.errors import ModelError

SHOWN_CHARACTERS = 60
LARGEST_FLOAT = sys.float_info.max


class ConfigFields:
    """One mapping of the config, with the dotted path that leads to it.

    Every method raises `ModelError` naming the key, what was found and what was expected. Nothing has a
    default unless the caller gives one: a missing key is a complaint, not a guess.
    """

    def __init__(self, raw: Mapping[str, object], path: str = "") -> None:
        self._raw = raw
        self._path = path

    def name(self, key: str) -> str:
        """The key as messages spell it, `text_config.hidden_size`."""
        return f"{self._path}{key}"

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._raw.get(key) is not None

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise `ModelError` for `key`, saying what it holds and what was expected."""
        found = f"is {shown(self._raw[key])}" if key in self._raw else "is missing"
        raise ModelError(f"config.json: {self.name(key)} {found}, expected {expected}")

    def integer(self, key: str, *, low: int, high: int) -> int:
        """A JSON integer in [low, high]; a bool, a float or a string is not one."""
        value = self._raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"an integer from {low:,} to {high:,}")
        return value

    def optional_integer(self, key: str, *, low: int, high: int) -> int | None:
        """As `integer`, and None where the key is missing or null."""
        return self.integer(key, low=low, high=high) if self.has(key) else None

    def number(self, key: str, *, above: float = -math.inf, below: float = math.inf) -> float:
        """A finite number strictly between `above` and `below`."""
        value = self._raw.get(key)
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not max(above, -LARGEST_FLOAT) < value < min(below, LARGEST_FLOAT)
        ):
            bounds = [f" above {above:g}"] * math.isfinite(above) + [f" below {below:g}"] * math.isfinite(below)
            self.refuse(key, "a finite number" + " and".join(bounds))
        return float(value)

    def optional_number(self, key: str, *, above: float = -math.inf, below: float = math.inf) -> float | None:
        """As `number`, and None where the key is missing or null."""
        return self.number(key, above=above, below=below) if self.has(key) else None

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """true or false; `default` (if one is given) where the key is missing or null."""
        if default is not None and not self.has(key):
            return default
        value = self._raw.get(key)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """One of the strings `allowed`."""
        value = self._raw.get(key)
        if not isinstance(value, str) or value not in allowed:
            self.refuse(key, " or ".join(f'"{name}"' for name in allowed))
        return value

    def integers(self, key: str, *, low: int, high: int) -> tuple[int, ...]:
        """A list of distinct integers, each in [low, high]."""
        values = self._raw.get(key)
        if not isinstance(values, list):
            self.refuse(key, "a list of integers")
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ModelError(
                    f"config.json: {self.name(key)} holds {shown(value)}, expected integers from {low:,} to {high:,}"
                )
        if len(set(values)) != len(values):
            self.refuse(key, "every number once")
        return tuple(values)

    def is_list(self, key: str) -> bool:
        """Whether the key holds a list."""
        return isinstance(self._raw.get(key), list)

    def equal(self, key: str, expected: str | int | bool) -> None:
        """Refuse anything but `expected`; 1 is not true and 4.0 is not 4."""
        value = self._raw.get(key)
        if type(value) is not type(expected) or value != expected:
            self.refuse(key, shown(expected))

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._raw.get(key)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.refuse(key, "a list of strings")
        return tuple(values)

    def section(self, key: str) -> ConfigFields:
        """The mapping under `key`."""
        value = self._raw.get(key)
        if not isinstance(value, Mapping):
            self.refuse(key, "an object")
        return ConfigFields(value, f"{self.name(key)}.")

    def key_names(self) -> tuple[str, ...]:
        """The keys of this level, in file order."""
        return tuple(self._raw)


def shown(value: object) -> str:
    """`value` as a message shows it: JSON's spelling of the constants, long things cut."""
    constants = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return constants[value]
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:
        return "an integer of more than 60 digits"  # str() of a huge one would raise
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"

"""Options that several commands take, and how they become settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from waste.errors import InputError

if TYPE_CHECKING:
    from waste.settings import Settings

TOKEN_BYTES = 1000
"""Objects of a token that is generated, kept and printed."""
ALTERNATIVE_BYTES = 1000
"""Objects of one alternative to a token, kept and printed."""
MOST_ALTERNATIVES = 1024
HELD_BYTES = 1 << 20

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model's folder; `demo` is the one that ships with waste.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="A shipped preset or a YAML file [default: auto].")
]
RamOption = Annotated[
    str | None, typer.Option("--ram", metavar="SIZE", help="The memory ceiling, such as 8GiB, or auto.")
]
TrunkOption = Annotated[
    str | None, typer.Option("--trunk", metavar="SIZE", help="Memory for the trunk, pinned prefix and ring, or auto.")
]
ExpertsOption = Annotated[
    str | None, typer.Option("--experts", metavar="SIZE", help="Memory for the expert cache, or auto.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its dotted key; may be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
IdsOption = Annotated[
    str | None, typer.Option("--ids", metavar="3,17,5", help="Token ids, taken as they are, instead of text.")
]
FileOption = Annotated[str | None, typer.Option("--file", metavar="FILE", help="Read the text from a UTF-8 file.")]


def resolve_settings(
    preset: str | None, ram: str | None, trunk: str | None, experts: str | None, assignments: list[str] | None
) -> Settings:
    """Settings from the options all such commands take; `--set` wins over the options, those over the preset.

    Raises InputError naming what is wrong.
    """
    from waste.presets import resolve

    overrides: dict[str, object] = {"ram": ram, "trunk": trunk, "experts": experts}
    overrides = {key: value for key, value in overrides.items() if value is not None}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"--set {assignment!r}: expected KEY=VALUE, such as context=8192")
        overrides[key.strip()] = value.strip()
    return resolve(preset, overrides=overrides)


def with_reserve(settings: Settings, size: int) -> Settings:
    """Settings whose plan leaves room for `size` bytes that a command holds while the engine is open.

    A little is in the plan already, as the interpreter's: so floors of usual commands are those that `plan` shows.
    """
    return replace(settings, reserve=settings.reserve + max(0, size - HELD_BYTES))


def held_bytes(source: str | list[int]) -> int:
    """Of a prompt's text; ids are in the plan already."""
    return sys.getsizeof(source) if isinstance(source, str) else 0


def parse_ids(text: str) -> list[int]:
    """Ids from "3,17,5", white space and a last comma allowed. Raises InputError naming what is no id."""
    ids: list[int] = []
    listed = text.strip().removesuffix(",")  # some systems' `seq -s,` ends with one
    if not listed:
        return ids
    for part in (word for given in listed.split(",") for word in given.split() or [""]):
        # Not int() alone, which takes "1_000", and takes time that grows with the square of the length.
        if not part.isascii() or not part.isdigit() or len(part) > 18:
            raise InputError(f"{part[:40]!r} is not a token id; expected ids such as 3,17,5")
        ids.append(int(part))
    return ids

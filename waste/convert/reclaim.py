"""Giving back the room of source shards as they are used up. Nothing is deleted unless everything about it is safe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from waste.convert.layout import ContainerLayout, Unit
from waste.convert.saved_source import SavedSource
from waste.errors import InputError

MODES = ("dry", "on")


def last_uses(layout: ContainerLayout) -> Mapping[str, tuple[int, ...]]:
    """By the name of a unit, the numbers of the source files that no later unit reads."""
    last: dict[int, str] = {}
    for unit in layout.units():
        for number in layout.files(unit):
            last[number] = unit.name
    by_unit: dict[str, list[int]] = {}
    for number, name in sorted(last.items()):
        by_unit.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in by_unit.items()}


def room_needed(layout: ContainerLayout, shards: Mapping[int, int], done: Iterable[str]) -> int:
    """The most bytes that are ever needed at once to finish, shards (number to size) being deleted on the way."""
    finished = set(done)
    uses = last_uses(layout)
    used = most = 0
    for unit in layout.units():
        if unit.name not in finished:
            used += layout.unit_bytes(unit)
            most = max(most, used)
        used -= sum(shards.get(number, 0) for number in uses.get(unit.name, ()))
    return most


def refuse_unsafe(source: SavedSource, out: Path, layout: ContainerLayout, *, has_tokenizer: bool) -> None:
    """Raise InputError naming the first thing for which no shard may be deleted."""
    folder = source.folder
    if layout.options.layers is not None:
        raise _refusal(f"--layers converts a part of {folder}")
    if not has_tokenizer:
        raise _refusal(f"{folder} has no tiktoken.model, and {out} would have no tokenizer")
    if folder.is_symlink():
        raise _refusal(f"{folder} is a symbolic link")
    if not _is_writable(folder):
        raise _refusal(f"{folder} is read-only")
    for shard in source.shards:
        _refuse_unsafe_file(folder / shard.name)


def _refuse_unsafe_file(path: Path) -> None:
    if path.is_symlink():
        raise _refusal(f"{path} is a symbolic link, and deleting it would not give back any room")
    if not path.exists():
        return
    found = path.stat()
    if found.st_nlink > 1:
        raise _refusal(f"{path} has {found.st_nlink} names, so others use it")
    if not _is_writable(path):
        raise _refusal(f"{path} is read-only")


def _is_writable(path: Path) -> bool:
    """Not only for root, who may write to everything, but as its owner marked it."""
    return os.access(path, os.W_OK) and bool(path.stat().st_mode & 0o222)


def _refusal(reason: str) -> InputError:
    return InputError(f"--reclaim: {reason}; nothing was written. Leave --reclaim out to keep the source")


def names(unit: Unit, uses: Mapping[str, tuple[int, ...]], source: SavedSource) -> list[str]:
    """Files that may go when this unit is durable."""
    return [source.shards[number].name for number in uses.get(unit.name, ())]

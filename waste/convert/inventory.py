"""What lies in a container's folder before a conversion: what is not listed here is neither taken up nor removed."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from waste.convert.small_files import COPIED, SPECIALS_NAME, TOKENIZER_NAME
from waste.errors import InputError
from waste.io.container import CODEBOOKS_NAME, TRUNK_NAME
from waste.io.files import file_error
from waste.io.manifest import MANIFEST_NAME
from waste.io.names import legible

UNFINISHED = "UNFINISHED"
"""The folder inside that is there from the first to the last moment; no manifest is there before the last."""
PLAN_NAME = "plan.json"
LEDGER_NAME = "ledger.jsonl"
LOCK_NAME = "lock"
PART = ".part"
"""What a file's name ends with until all of it is on the device."""
_NUMBER = r"-L(?:0|[1-9][0-9]{0,4})\.bin"
_BANK = re.compile(r"experts" + _NUMBER)
_BOOKS = re.compile(r"codebooks" + _NUMBER)
_WHOLE = (MANIFEST_NAME, TRUNK_NAME, CODEBOOKS_NAME, TOKENIZER_NAME, SPECIALS_NAME, *COPIED)
_MARKS = (PLAN_NAME, LEDGER_NAME, LOCK_NAME, TRUNK_NAME)
_NASCENT = frozenset((LOCK_NAME, PLAN_NAME + PART))
"""What is there of a conversion that was stopped before its plan was written."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Regular files that containers and conversions consist of, by name, sorted: `files` in OUT, `marks` in UNFINISHED.

    has_folder: whether UNFINISHED is there.
    """

    files: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    has_folder: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether a conversion may begin here and nothing has to go."""
        return not self.files and _NASCENT.issuperset(self.marks)

    def strangers(self, files: Collection[str], marks: Collection[str]) -> list[str]:
        """What is neither among these, nor such a file before it was whole."""
        found = [name for name in self.files if name.removesuffix(PART) not in files]
        return found + [f"{UNFINISHED}/{name}" for name in self.marks if name.removesuffix(PART) not in marks]


def take_inventory(out: Path) -> Inventory:
    """What there is in the folder `out`; nothing if there is no such folder.

    Raises InputError naming the first thing that is no regular file of a container or of a conversion into one.
    """
    if not os.path.lexists(out):
        return Inventory()
    if not out.is_dir():
        raise InputError(f"{out} is no folder; choose another name for the container")
    files, marks, has_folder = [], [], False
    for entry in _entries(out):
        if entry.name != UNFINISHED:
            _refuse_strange(entry, is_known=_is_of_container(entry.name))
            files.append(entry.name)
            continue
        if not entry.is_dir(follow_symlinks=False):
            raise InputError(f"{entry.path} is {_kind(entry)}, expected a folder; choose another folder")
        has_folder = True
        for mark in _entries(out / UNFINISHED):
            _refuse_strange(mark, is_known=_is_of_conversion(mark.name))
            marks.append(mark.name)
    return Inventory(tuple(files), tuple(marks), has_folder)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Sorted by name."""
    try:
        with os.scandir(folder) as found:
            yield from sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise file_error(folder, error) from error


def _refuse_strange(entry: os.DirEntry[str], *, is_known: bool) -> None:
    path = Path(entry.path)
    if not is_known:
        raise InputError(
            f"{path.parent} holds {legible(path.name)}, which is no part of a container; choose another folder"
        )
    if not entry.is_file(follow_symlinks=False):
        raise InputError(f"{path} is {_kind(entry)}, which no part of a container is; choose another folder")


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a symbolic link"
    if entry.is_dir():
        return "a folder"
    return "a file" if entry.is_file() else "no regular file"


def _is_of_container(name: str) -> bool:
    plain = name.removesuffix(PART)
    return plain in _WHOLE or _BANK.fullmatch(plain) is not None


def _is_of_conversion(name: str) -> bool:
    plain = name.removesuffix(PART)
    return plain in _MARKS or _BANK.fullmatch(plain) is not None or _BOOKS.fullmatch(plain) is not None

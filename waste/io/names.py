"""Names that strangers chose: of files, and of tensors that messages repeat."""

from __future__ import annotations

from waste.io.jsonfile import shown

MAX_NAME = 255
"""Characters of a name that a message repeats; published ones have up to 100."""
MAX_FILE_NAME = 200
"""Characters of a file's name: systems take 255 bytes, and unfinished files carry an addition."""
_SIGNS = '/\\:*?"<>|'


def is_plain(name: object) -> bool:
    """Whether it names a file of a folder itself on every system: no slash, no drive, no dots alone, all printable."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_FILE_NAME
        and name.isprintable()
        and not any(sign in name for sign in _SIGNS)
        and name not in (".", "..")
    )


def legible(name: str) -> str:
    """For a message: the name as it is where that is short and printable, else quoted and cut."""
    return name if name.isprintable() and len(name) <= MAX_NAME else shown(name)

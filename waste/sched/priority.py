"""How reads are ranked, and what they are counted as."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args


class Priority(IntEnum):
    """Who waits for a read; a lower number goes first."""

    DEMAND = 0  # the walk stands still until it has this
    RING = 1  # trunk tiles, ahead of the walk
    LOOKAHEAD = 2  # records that may be needed next
    BACKGROUND = 3  # warm-up, verification


Kind = Literal["trunk", "experts", "embedding", "other"]

KINDS: tuple[Kind, ...] = get_args(Kind)

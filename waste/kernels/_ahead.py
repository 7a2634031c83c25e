"""Asking for bytes of memory before they are needed.

A processor sees by itself that one long stream is read, but a matrix is read as four streams of a row each, which are
over after a kilobyte or two and go on elsewhere. Left alone, four rows of 2304 Q4G weights come at half the rate.
"""

from __future__ import annotations

from typing import Any

from ._jit import helper
from ._lanes import prefetch

LINE = 64
"""Bytes that memory gives at once."""
_AHEAD = 2048
"""Bytes of each row between what is asked for and what is used: with four rows, what comes in half a microsecond."""


@helper
def prefetch_rows(data: Any, row: Any, row_bytes: Any, begin: Any, size: Any) -> None:
    """While bytes `begin` to `begin + size` of four rows are used: the same of what lies ahead, in these or the next.

    `row`: where the first row begins. Sizes less than a line take turns at the rows.
    """
    ahead = row + begin + _AHEAD
    if begin + _AHEAD >= row_bytes:
        ahead += 3 * row_bytes
    if size < LINE:
        prefetch(data, ahead + begin // size % 4 * row_bytes)
    else:
        for i in range(4):
            for line in range(0, size, LINE):
                prefetch(data, ahead + i * row_bytes + line)

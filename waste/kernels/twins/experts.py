"""Several experts' MLPs by a format's own product; what the arguments are stands in `waste.kernels._experts`."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..kernel_set import Kernel
from .vectors import Floats, activate

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Multiply = Callable[[Bytes, Integers, int, int, int, Floats, Floats], None]
"""(bytes of a record, its places, matrix, columns, rows, x, y): y = x·Wᵀ for w1 (0), w3 (1) or w2 (2)."""

_TURN, _ENDED, _BAD = 0, 1, 3
_counting = threading.Lock()


def take_turn(turns: Integers) -> int:
    """The next expert that no thread has taken."""
    with _counting:
        turns[_TURN] += 1
        return int(turns[_TURN]) - 1


def end_turn(turns: Integers, *, is_bad: bool) -> None:
    with _counting:
        turns[_ENDED] += 1
        turns[_BAD] += is_bad


def find_in_expert(
    find_bad_scale: Kernel, data: Bytes, places: Integers, inner: int, outer: int, found: Integers
) -> bool:
    """Fill `found` but for the record; w1 and w3 have `inner` scales each, w2 has `outer`."""
    for matrix, count in enumerate((inner, inner, outer)):
        find_bad_scale(data, int(places[3 + matrix]), count, found, 3)
        if found[3] >= 0:
            found[1:3] = matrix, found[3]
            return True
    return False


def answer(
    multiply: Multiply, find_bad_scale: Kernel | None, records: Integers, x: Floats, tokens: Integers,
    gathered: Floats, gate: Floats, up: Floats, answers: Floats, kind: int, beta: float, linear_beta: float,
    turns: Integers, found: Integers, inner: int, outer: int,
) -> None:  # fmt: skip
    """A whole expert at each turn, until there are none left."""
    inputs, width = x.shape[1], gate.shape[1]
    found[0] = -1
    while (r := take_turn(turns)) < len(records):
        address, size, first, count = map(int, records[r, :4])
        data, places = bytes_at(address, size), records[r, 4:]
        is_bad = False
        try:
            is_bad = find_bad_scale is not None and find_in_expert(find_bad_scale, data, places, inner, outer, found)
            if is_bad:
                found[0] = r
                continue
            own = slice(first, first + count)
            seen = gather(x, tokens[own], gathered)
            multiply(data, places, 0, inputs, width, seen, gate[own])
            multiply(data, places, 1, inputs, width, seen, up[own])
            activate(gate[own], up[own], kind, beta, linear_beta, 0, width)
            multiply(data, places, 2, width, inputs, gate[own], answers[own])
        finally:
            # After an error, too: the others wait for it.
            end_turn(turns, is_bad=is_bad)
    while turns[_ENDED] < len(records):
        time.sleep(0)


def gather(x: Floats, tokens: Integers, gathered: Floats) -> Floats:
    """These rows of x; those that follow each other stay where they are."""
    if tokens[-1] - tokens[0] == tokens.size - 1:
        rows: Floats = x[tokens[0] : tokens[0] + tokens.size]
        return rows
    # Other modes make a copy first.
    return np.take(x, tokens, axis=0, out=gathered[: tokens.size], mode="clip")


def bytes_at(address: int, size: int) -> Bytes:
    """The memory at an address as an array, which the caller keeps alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

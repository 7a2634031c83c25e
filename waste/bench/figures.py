"""From runs to figures: medians with their spread, where the time of a token went, how much of it overlapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over several runs."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread | None:
    """None of no values."""
    return Spread(median(values), min(values), max(values)) if values else None


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which so much of them lies, in between linearly. At least one value; percent: 0 to 100."""
    ranked = sorted(values)
    at = (len(ranked) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (at - below)


@dataclass(frozen=True, slots=True)
class Split:
    """Where the seconds of a token went; io_wait, parts, loop and rest add up to wall.

    io_wait: the walk stood still for want of bytes. parts: in kernels, by part of the model, as if all threads had
    always worked side by side. loop: processor time of the event loop. rest: what is left, such as hand-offs and
    threads that waited for each other. What was computed during waits is counted in both, so rest may be below 0.
    """

    wall_s: float
    io_wait_s: float
    parts_s: Mapping[str, float]
    loop_s: float
    rest_s: float


def split_time(
    wall_s: float, *, io_wait_s: float, compute_s_by_part: Mapping[str, float], loop_s: float, threads: int, tokens: int
) -> Split:
    """Of one token, from seconds of `tokens` tokens. compute_s_by_part: added up over `threads` threads."""
    parts = {part: seconds / threads / tokens for part, seconds in compute_s_by_part.items()}
    wall, wait, loop = wall_s / tokens, io_wait_s / tokens, loop_s / tokens
    return Split(wall, wait, parts, loop, wall - wait - sum(parts.values()) - loop)


def overlap(
    wall_s: float, *, useful_bytes: int, disk_bytes_per_s: float | None, compute_s: float, threads: int
) -> float | None:
    """How many times as long it took as the slower of disk and kernels alone would have: 1 is perfect overlap.

    useful_bytes: what had to be read. disk_bytes_per_s: measured; None: unknown. compute_s: added up over threads.
    None where nothing had to be done, or nobody knows how long reading takes.
    """
    if useful_bytes > 0 and not disk_bytes_per_s:
        return None
    disk_s = useful_bytes / disk_bytes_per_s if disk_bytes_per_s else 0.0
    least_s = max(disk_s, compute_s / threads)
    return wall_s / least_s if least_s > 0 else None


def ratios(values: Sequence[float], first: Sequence[float]) -> Spread | None:
    """Each value over the one of the same round of the first variant: what drifts between rounds cancels out."""
    return spread_of([value / base for value, base in zip(values, first, strict=True)])

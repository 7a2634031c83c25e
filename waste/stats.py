"""What an engine has done so far, in one frozen object with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LayerRecall:
    """tokens: for which the layer's experts were guessed. by_rank: 0 to 1, the likeliest guess first."""

    tokens: int
    by_rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts since the engine was opened. Sizes are bytes, times seconds unless the name says otherwise.

    bytes_read: by kind, alignment included. reads: by the priority they were issued at. io_wait_s: the walk stood
    still for want of bytes. compute_s: in jobs of the compute threads, added up over threads, and by part of the model.
    loop_s: processor time of the event loop's thread, whatever else runs on it included; loop_us_per_read: of it, the
    scheduler's, rings' and caches' own, in microseconds for each read and each hit, which is a read saved.
    lookahead_wasted_bytes: read ahead and not asked for since. lookahead_recall: by layer, of how many tokens it was
    guessed, and what part of the guesses was right, by rank. direct_io: whether reads really go past the page cache.
    ram_budget_bytes: the ceiling that peak_rss_bytes is to stay under.
    """

    steps: int
    tokens: int
    bytes_read: Mapping[str, int]
    reads: Mapping[str, int]
    expert_hits: int
    expert_misses: int
    lookahead_issued: int
    lookahead_used: int
    lookahead_wasted_bytes: int
    lookahead_recall: Mapping[int, LayerRecall]
    io_wait_s: float
    compute_s: float
    compute_s_by_part: Mapping[str, float]
    loop_s: float
    loop_us_per_read: float
    peak_rss_bytes: int
    ram_budget_bytes: int
    direct_io: bool
    backend: str
    sessions_open: int

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

"""What an engine has done so far, in one frozen object with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts since the engine was opened. Sizes are bytes, times seconds unless the name says otherwise.

    bytes_read: by kind, alignment included. reads: by the priority they were issued at. io_wait_s: the walk stood
    still for want of bytes. compute_s: inside kernels, added up over threads. direct_io: whether reads really go
    past the page cache. ram_budget_bytes: the ceiling that peak_rss_bytes is to stay under.
    """

    steps: int
    tokens: int
    bytes_read: Mapping[str, int]
    reads: Mapping[str, int]
    expert_hits: int
    expert_misses: int
    lookahead_issued: int
    lookahead_used: int
    io_wait_s: float
    compute_s: float
    loop_us_per_read: float
    peak_rss_bytes: int
    ram_budget_bytes: int
    direct_io: bool
    backend: str
    sessions_open: int

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

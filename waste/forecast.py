"""What a plan means for speed: bytes a token by kind, hit rates, seconds at a disk's rate, and what more RAM buys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from waste.blueprint import Blueprint, draw
from waste.settings import GIB, Settings


@dataclass(frozen=True, slots=True)
class Forecast:
    """One token decoded alone, after the caches have filled. Bytes are read from disk.

    trunk_hit_rate: pinned ÷ total, exact. expert_hit_rate: cached ÷ all records, what any policy gets if every expert
    is equally likely at every token; real routing repeats itself and does better. cold_expert_bytes: with an empty
    cache.
    """

    trunk_bytes: int
    trunk_hit_rate: float
    expert_bytes: int
    expert_hit_rate: float
    cold_expert_bytes: int
    embedding_bytes: int

    @property
    def token_bytes(self) -> int:
        return self.trunk_bytes + self.expert_bytes + self.embedding_bytes

    @property
    def bytes_by_kind(self) -> Mapping[str, int]:
        return {"trunk": self.trunk_bytes, "experts": self.expert_bytes, "embedding": self.embedding_bytes}

    def seconds(self, disk_bytes_per_s: float) -> float:
        """Seconds a token if the disk is the limit."""
        return self.token_bytes / disk_bytes_per_s


def forecast(drawn: Blueprint) -> Forecast:
    """Pure arithmetic on the plan."""
    sizes = [sum(read.length for read in tile.reads) for tile in drawn.layout.placements]
    pinned, total = sum(sizes[: drawn.plan.pinned_tiles]), sum(sizes)
    demand = drawn.demand
    cold = demand.token_records * demand.record_bytes
    hit_rate = drawn.plan.expert_slots / demand.records if demand.records else 1.0
    return Forecast(
        trunk_bytes=total - pinned,
        trunk_hit_rate=pinned / total,
        expert_bytes=round(cold * (1 - hit_rate)),
        expert_hit_rate=hit_rate,
        cold_expert_bytes=cold,
        embedding_bytes=drawn.decoder.embedding.slot_bytes,
    )


def with_more_ram(drawn: Blueprint, settings: Settings, extra: int = GIB) -> Blueprint:
    """The same model under a larger budget; sizes wished for in settings stay as wished."""
    more = replace(settings, ram=drawn.plan.budget_bytes + extra)
    return draw(drawn.bundle, more, record_bytes=drawn.demand.record_bytes, is_elsewhere=True)

"""One run: a prompt of random ids, then tokens one by one, and what the engine counted meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from waste.stats import EngineStatistics

if TYPE_CHECKING:
    from waste.engine import Engine
    from waste.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Shape:
    """What every run is made of. prompt, tokens: how many ids are fed together, and one by one after them."""

    prompt: int
    tokens: int
    seed: int

    def ids(self, number: int, vocab_size: int) -> list[int]:
        """Of run `number`: the same each time, others than those of any other run, each id as likely as another.

        The model's own answers do not matter: noise repeats itself, and routing would not vary.
        """
        draw = random.Random(f"{self.seed}/{number}")
        return [draw.randrange(vocab_size) for _ in range(self.prompt + self.tokens)]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a stretch of work took, by the engine's statistics: names and units are theirs.

    lookahead_wasted_bytes: below 0 where what had seemed wasted before was used after all.
    """

    bytes_read: Mapping[str, int]
    reads: Mapping[str, int]
    expert_hits: int
    expert_misses: int
    lookahead_issued: int
    lookahead_used: int
    lookahead_wasted_bytes: int
    io_wait_s: float
    compute_s_by_part: Mapping[str, float]
    loop_s: float

    @property
    def useful_bytes(self) -> int:
        """Those read without what was read ahead for nothing."""
        return sum(self.bytes_read.values()) - max(0, self.lookahead_wasted_bytes)

    @property
    def compute_s(self) -> float:
        return sum(self.compute_s_by_part.values())


def spent_between(before: EngineStatistics, after: EngineStatistics) -> Spent:
    return Spent(
        bytes_read={kind: size - before.bytes_read[kind] for kind, size in after.bytes_read.items()},
        reads={priority: count - before.reads[priority] for priority, count in after.reads.items()},
        expert_hits=after.expert_hits - before.expert_hits,
        expert_misses=after.expert_misses - before.expert_misses,
        lookahead_issued=after.lookahead_issued - before.lookahead_issued,
        lookahead_used=after.lookahead_used - before.lookahead_used,
        lookahead_wasted_bytes=after.lookahead_wasted_bytes - before.lookahead_wasted_bytes,
        io_wait_s=after.io_wait_s - before.io_wait_s,
        # A part comes into being with its first job.
        compute_s_by_part={
            part: seconds - before.compute_s_by_part.get(part, 0.0) for part, seconds in after.compute_s_by_part.items()
        },
        loop_s=after.loop_s - before.loop_s,
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. token_s: wall seconds of each token that went alone. Peaks are of the process since the opening.

    threads: the compute threads that `decode.compute_s` is added up over.
    """

    number: int
    prompt_tokens: int
    prompt_s: float
    prompt: Spent
    token_s: tuple[float, ...]
    decode: Spent
    threads: int
    peak_rss_bytes: int
    ram_budget_bytes: int
    direct_io: bool

    @property
    def decode_s(self) -> float:
        return sum(self.token_s)

    @property
    def decode_tokens_per_s(self) -> float:
        return len(self.token_s) / self.decode_s


async def take_sample(
    engine: Engine, shape: Shape, number: int, *, told: Callable[[int], None], timeline: Timeline | None, name: str
) -> Sample:
    """Do run `number` in a session of its own; `told` the ids fed so far. Raises what `Engine.feed` does."""
    ids = shape.ids(number, engine.model.config.vocab_size)
    token_s = []
    async with engine.session() as session:
        start, began = engine.stats(), perf_counter()
        await engine.feed(session, ids[: shape.prompt])
        ended = perf_counter()
        prompt_s, middle = ended - began, engine.stats()
        if timeline is not None:
            timeline.note(f"{name}: prompt", began, ended)
        told(shape.prompt)
        first = perf_counter()
        for done, token in enumerate(ids[shape.prompt :], start=shape.prompt + 1):
            began = perf_counter()
            await engine.feed(session, [token])
            ended = perf_counter()
            token_s.append(ended - began)
            told(done)
        end = engine.stats()
        if timeline is not None:
            timeline.note(f"{name}: tokens", first, ended)
    return Sample(
        number=number,
        prompt_tokens=shape.prompt,
        prompt_s=prompt_s,
        prompt=spent_between(start, middle),
        token_s=tuple(token_s),
        decode=spent_between(middle, end),
        threads=engine.threads,
        peak_rss_bytes=end.peak_rss_bytes,
        ram_budget_bytes=end.ram_budget_bytes,
        direct_io=end.direct_io,
    )


def forget_peak() -> None:
    """Let the process's peak of resident memory begin anew, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

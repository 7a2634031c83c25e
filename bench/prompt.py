#!/usr/bin/env python3
"""One long prompt of random ids: tokens a second, what was read of it, the peak of memory against the budget.

bench/prompt.py MODEL --ram 3.4GiB [--tokens 512] [--seed 0] [--set key=value ...] [--json]. The model is opened for it
and nothing is warm. `records` is how many experts the chunks touched, each counted once a chunk: with `passes` 1.0 each
of them was read at most once. Exit status 1 if they were read more often, or if the peak is above the budget; 2 and 3
for arguments and budgets that cannot be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from typing import Any

from programs import count, pair, run

import waste

MIB = 1 << 20


async def measure(model: str, ram: str, tokens: int, seed: int, options: dict[str, str]) -> dict[str, Any]:
    async with waste.open(model, **{"sessions": 1, "ram": ram, **options}) as engine:
        vocab = engine.model.config.vocab_size
        ids = random.Random(seed).choices(range(vocab), k=tokens)
        async with engine.session() as session:
            started = time.perf_counter()
            await engine.feed(session, ids)
            seconds = time.perf_counter() - started
        stats, plan = engine.stats(), engine.plan
    touched = stats.expert_hits + stats.expert_misses
    return {
        "tokens": tokens,
        "steps": stats.steps,
        "expert_cache_bytes": plan.expert_slots * plan.record_bytes,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "bytes_read": dict(stats.bytes_read),
        "records": touched,
        "passes": stats.bytes_read["experts"] / (touched * plan.record_bytes),
        "compute_s": stats.compute_s,
        "compute_s_by_part": dict(stats.compute_s_by_part),
        "io_wait_s": stats.io_wait_s,
        "peak_rss_bytes": stats.peak_rss_bytes,
        "ram_budget_bytes": stats.ram_budget_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ram", required=True)
    parser.add_argument("--tokens", type=count, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=pair, action="append", default=[])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    row = asyncio.run(measure(given.model, given.ram, given.tokens, given.seed, dict(given.set)))
    if given.json:
        print(json.dumps(row))
    else:
        parts = sorted(row["compute_s_by_part"].items(), key=lambda part: -part[1])
        print(f"{row['tokens']:,} tokens, chunks: {row['steps']}; {row['seconds']:.1f} s, ", end="")
        print(f"{row['tokens_per_s']:.2f} tokens/s; experts' cache {row['expert_cache_bytes'] / 1e9:.2f} GB")
        print("read " + ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in row["bytes_read"].items()), end="")
        print(f"; {row['records']:,} records touched, {row['passes']:.2f} of them read")
        print(f"computed {row['compute_s']:.1f} thread seconds: ", end="")
        print(", ".join(f"{name} {part:.1f}" for name, part in parts), end="")
        print(f"; the walk stood still for reads {row['io_wait_s']:.1f} s")
        print(f"peak {row['peak_rss_bytes'] / MIB:,.0f} of {row['ram_budget_bytes'] / MIB:,.0f} MiB")
    sys.exit(1 if row["passes"] > 1 or row["peak_rss_bytes"] > row["ram_budget_bytes"] else 0)


if __name__ == "__main__":
    run(main)

#!/usr/bin/env python3
"""What a decoded token costs at many budgets: how much of the trunk is pinned, bytes read, peak memory, seconds.

bench/ladder.py MODEL [--budgets 1.6GiB,2GiB,4GiB,8GiB,16GiB,20GiB] [--tokens 1] [--disks 2GB,12.8GB]
[--set key=value ...] [--json]: each budget in a process of its own, which feeds random ids token by token; the first,
which also fills the pinned tiles, is not counted. Of a model over holes (`waste synth --sparse`) bytes and memory are
those of the real one, while holes are read faster than any disk; so `seconds` is what the rest takes, and for each of
`--disks` the greater of that and bytes ÷ rate is given: a simulated disk, reading while the rest computes.
Exit status 1 if a peak is above its budget or more RAM read more bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any

from programs import count, pair, run

import waste
from waste.settings import parse_size


async def decode(model: str, ram: int, tokens: int, settings: dict[str, Any]) -> dict[str, Any]:
    async with waste.open(model, ram=ram, **settings) as engine, engine.session() as session:
        rng = random.Random(1)
        ids = [rng.randrange(engine.model.config.vocab_size) for _ in range(tokens + 1)]
        await engine.feed(session, ids[:1])
        before, began = engine.stats(), time.perf_counter()
        for token in ids[1:]:
            await engine.feed(session, [token])
        seconds, after = (time.perf_counter() - began) / tokens, engine.stats()
        read = {kind: (size - before.bytes_read[kind]) / tokens for kind, size in after.bytes_read.items()}
        tiles = engine.plan.pinned_tiles
        return {
            "budget_bytes": ram,
            "pinned_bytes": engine.plan.parts["pinned"],
            "pinned_tiles": tiles,
            "expert_slots": engine.plan.expert_slots,
            "bytes_per_token": read,
            "peak_rss_bytes": after.peak_rss_bytes,
            "seconds": seconds,
        }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What must not be."""
    found = [
        f"at {row['budget_bytes']:,} the peak is {row['peak_rss_bytes']:,}"
        for row in rows
        if row["peak_rss_bytes"] > row["budget_bytes"]
    ]
    read = [sum(row["bytes_per_token"].values()) for row in rows]
    return [*found, *(["more RAM read more bytes"] if read != sorted(read, reverse=True) else [])]


def show(row: dict[str, Any]) -> str:
    read = row["bytes_per_token"]
    at = "   ".join(f"{seconds:6.1f} s at {disk}" for disk, seconds in row["seconds_at"].items())
    return (
        f"{row['budget_bytes'] / 2**30:5.2f} GiB   pinned {row['pinned_bytes'] / 1e9:6.2f} GB   "
        f"a token reads {read['trunk'] / 1e9:6.1f} GB trunk, {read['experts'] / 1e9:5.1f} GB experts   "
        f"peak {row['peak_rss_bytes'] / 2**30:5.2f} GiB   {row['seconds']:5.1f} s   {at}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--budgets", default="1.6GiB,2GiB,4GiB,8GiB,16GiB,20GiB")
    parser.add_argument("--tokens", type=count, default=1)
    parser.add_argument("--disks", default="2GB,12.8GB")
    parser.add_argument("--set", type=pair, action="append", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    settings: dict[str, Any] = dict(given.set)
    if given.one:
        print(json.dumps(asyncio.run(decode(given.model, given.one, given.tokens, settings))))
        return
    rows: list[dict[str, Any]] = []
    for budget in given.budgets.split(","):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(parse_size(budget))]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        total = sum(row["bytes_per_token"].values())
        row["seconds_at"] = {disk: max(row["seconds"], total / parse_size(disk)) for disk in given.disks.split(",")}
        rows.append(row)
        if not given.json:
            print(show(row), flush=True)
    wrong = faults(rows)
    if given.json:
        print(json.dumps({"rows": rows, "faults": wrong}))
    else:
        print("\n".join(wrong) or "all within budget, and more RAM read less")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    run(main)

#!/usr/bin/env python3
"""One model at many budgets: peak memory against the budget, bytes read, and whether the logits stay the same bits.

bench/budgets.py MODEL [--count 12 | --step BYTES] [--tokens 130 | --ids 3,17,5] [--top BYTES] [--cold]
[--set key=value ...] [--json]: runs `waste eval` in a process of its own at the model's floor, at even steps upward to
`--top` (default: what holds everything), and one byte below the floor, which must be refused. Exit status 1 if a peak
is above its budget, if the bits differ, or if more RAM made an `lru` cache read more.

The tokens are several chunks of a prompt: within one chunk everything is read once, whatever the budget. With --cold
each run compiles its kernels anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MIB = 1 << 20


def waste(*arguments: str, cache: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command; `cache` is the folder of its compiled kernels, where that is not the usual one."""
    env = os.environ if cache is None else {**os.environ, "WASTE_CACHE_DIR": cache}
    command = [sys.executable, "-m", "waste.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def plan(model: str, ram: str, options: list[str]) -> dict[str, Any]:
    done = waste("plan", model, "--ram", ram, "--json", *options)
    if done.returncode:
        sys.exit(done.stderr.strip())
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(model: str, ids: str, ram: int, options: list[str], *, is_cold: bool) -> dict[str, Any]:
    """One run: peak and bytes from the process's own report, and a digest of its logits."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        arguments = ("--ids", ids, "--ram", str(ram), "--logits-out", str(out), "--json", *options)
        done = waste("eval", model, *arguments, cache=f"{folder}/kernels" if is_cold else None)
        if done.returncode:
            sys.exit(f"at {ram:,} bytes: exit {done.returncode}: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        stats = report["stats"]
        return {
            "budget_bytes": ram,
            "peak_rss_bytes": stats["peak_rss_bytes"],
            "bytes_read": stats["bytes_read"],
            "seconds": report["seconds"],
            "logits": hashlib.sha256(out.read_bytes()).hexdigest()[:16],
        }


def faults(rows: list[dict[str, Any]], below_floor: int) -> list[str]:
    """What must not be."""
    found = [f"one byte below the floor exits {below_floor}, expected 3"] if below_floor != 3 else []
    for row in rows:
        if row["peak_rss_bytes"] > row["budget_bytes"]:
            found.append(f"at {row['budget_bytes']:,} the peak is {row['peak_rss_bytes']:,}")
    if len({row["logits"] for row in rows}) != 1:
        found.append("the logits differ")
    read = [sum(row["bytes_read"].values()) for row in rows]
    if read != sorted(read, reverse=True):
        found.append("more RAM read more bytes")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--step", type=int)
    parser.add_argument("--tokens", type=int, default=130)
    parser.add_argument("--ids")
    parser.add_argument("--top", type=int)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options = [word for pair in ["cache.policy=lru", "prefetch.policy=none", *given.set] for word in ("--set", pair)]
    whole = plan(given.model, "4096GiB", options)
    floor = whole["floor_bytes"]
    top = max(floor, given.top or sum(whole["parts"].values()))
    count = given.count if given.step is None else max(1, (top - floor) // given.step)
    budgets = [floor + (top - floor) * step // count for step in range(count + 1)]
    ids = given.ids or ",".join(str(1 + number % 250) for number in range(given.tokens))
    rows = []
    for budget in budgets:
        row = measure(given.model, ids, budget, options, is_cold=given.cold)
        rows.append(row)
        if not given.json:
            read = {kind: f"{size / 1e9:.2f}" for kind, size in row["bytes_read"].items()}
            print(
                f"budget {budget / MIB:9.1f} MiB   peak {row['peak_rss_bytes'] / MIB:9.1f} MiB   "
                f"read trunk {read['trunk']:>7} GB, experts {read['experts']:>7} GB   {row['seconds']:6.2f} s   "
                f"{row['logits']}",
                flush=True,
            )
    below = waste("run", given.model, "--ids", ids, "-n", "1", "--ram", str(floor - 1), *options).returncode
    wrong = faults(rows, below)
    if given.json:
        print(json.dumps({"floor_bytes": floor, "rows": rows, "faults": wrong}))
    else:
        print("\n".join(wrong) or f"floor {floor:,} bytes; below it refused; all within budget, same bits")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

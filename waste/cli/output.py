"""What commands print: streamed text, tables, sizes, JSON. Text goes to stdout, talk about it to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from waste.stats import EngineStatistics

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def write_text(text: str) -> None:
    """Part of a text, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: Mapping[str, object]) -> None:
    """One object on one line."""
    write_text(json.dumps(value) + "\n")


def format_bytes(size: int) -> str:
    """1536 is "1.5 KiB"."""
    value, unit = float(size), 0
    while value >= 1023.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def quote(text: str) -> str:
    """A token's text so that its edges and control characters can be seen."""
    return json.dumps(text, ensure_ascii=False)


def format_table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Rows as aligned columns, those numbered in `right` to the right; the same in a pipe as on a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def summarize(stats: EngineStatistics) -> str:
    """What an engine read, hit and used, for the end of a line."""
    read = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in stats.bytes_read.items() if size) or "nothing"
    asked = stats.expert_hits + stats.expert_misses
    hits = f"{stats.expert_hits:,} of {asked:,} experts" if asked else "no experts"
    return (
        f"read {read} | cache hits {hits} | "
        f"peak RSS {format_bytes(stats.peak_rss_bytes)} of {format_bytes(stats.ram_budget_bytes)}"
    )

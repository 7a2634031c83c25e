"""What `bench` measured as a table: a column for each variant, medians with the lowest and the highest behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from waste.bench.plot import split_names, split_seconds
from waste.cli.output import format_bytes, format_table

UNKNOWN = "unknown"
Variant = Mapping[str, Any]


def format_report(report: Mapping[str, Any]) -> str:
    """The table, and above it what was done."""
    variants: list[Variant] = report["variants"]
    compared = report["compare"]
    rows = [["", *(f"{compared}={variant['value']}" for variant in variants)]] if compared else []

    def add(name: str, figure: Callable[[Variant], str]) -> None:
        rows.append([name, *map(figure, variants)])

    add("prompt", lambda v: f"{_spread(v['prompt_tokens_per_s'], '.4g')} tok/s")
    add("tokens", lambda v: f"{_spread(v['decode_tokens_per_s'], '.4g')} tok/s")
    if compared:
        add("prompt, to the first", lambda v: f"× {_spread(v['prompt_ratio'], '.3f')}")
        add("tokens, to the first", lambda v: f"× {_spread(v['decode_ratio'], '.3f')}")
    add("a token takes", lambda v: f"{_ms(v['token_s']['p50'])} p50, {_ms(v['token_s']['p95'])} p95")
    splits = [split_seconds(variant["split_s"]) for variant in variants]
    add("on average", lambda v: _ms(v["split_s"]["wall_s"]))
    for name in split_names(splits):
        cells = (
            _share(split.get(name, 0.0), v["split_s"]["wall_s"]) for split, v in zip(splits, variants, strict=True)
        )
        is_less = any(split.get(name, 0.0) < 0 for split in splits)
        rows.append([f"  {name}{', less what ran in waits' if is_less else ''}", *cells])
    add("a token reads", lambda v: format_bytes(round(sum(v["bytes_per_token"].values()))))
    for kind in (kind for kind in variants[0]["bytes_per_token"] if any(v["bytes_per_token"][kind] for v in variants)):
        add(f"  {kind}", partial(_bytes_a_token, kind))
    add("  of use", lambda v: format_bytes(round(v["useful_bytes_per_token"])))
    add("expert hits", _hits)
    if any(variant["lookahead_issued"] for variant in variants):
        add("read ahead", lambda v: f"{v['lookahead_issued']:,} experts, {v['lookahead_used']:,} of use")
    add("overlap, 1 is best", lambda v: _spread(v["overlap"], ".2f"))
    add("disk alone", lambda v: f"{_rate(v['disk_bytes_per_s'])} at {v['queue_depth']} reads at once")
    add("compute threads", lambda v: str(v["threads"]))
    add("peak RSS", lambda v: f"{format_bytes(v['peak_rss_bytes'])} of {format_bytes(v['ram_budget_bytes'])}")
    return _heading(report) + format_table(rows)


def _heading(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    if report["cold"]:
        cache = "each with the model opened anew and nothing cached; one more not counted"
    elif report["compare"]:
        cache = "each with the model opened anew and one more as warm-up"
    else:
        cache = "the cache warm from run to run, after one as warm-up"
    memory = machine["memory_bytes_per_s"]
    text = (
        f"{report['model']}: {report['runs']} runs of {report['prompt_tokens']} random ids together and "
        f"{report['tokens']} one by one (seed {report['seed']}), {cache}\n"
        f"memory is read at {f'{memory / 1e9:.1f} GB/s by all cores' if memory else UNKNOWN}\n"
    )
    if machine["disk_problem"] is not None:
        text += f"the disk could not be measured: {machine['disk_problem']}\n"
    if machine["disk_direct"] is False:
        text += "direct reads are refused here: the disk's rate is the page cache's\n"
    if machine["disk_sparse"]:
        text += "the files are mostly holes, which no disk reads: its rate and the overlap say nothing\n"
    return text


def _spread(figure: Mapping[str, float] | None, form: str) -> str:
    if figure is None:
        return UNKNOWN
    median, low, high = (format(figure[name], form) for name in ("median", "low", "high"))
    return median if low == high else f"{median} ({low} – {high})"


def _rate(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return UNKNOWN
    return f"{_spread({name: value / 1e9 for name, value in figure.items()}, '.2f')} GB/s"


def _bytes_a_token(kind: str, variant: Variant) -> str:
    return format_bytes(round(variant["bytes_per_token"][kind]))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _share(seconds: float, whole: float) -> str:
    return f"{seconds * 1e3:9.2f} ms {seconds / whole:5.0%}"


def _hits(variant: Variant) -> str:
    asked = variant["expert_hits"] + variant["expert_misses"]
    return f"{variant['expert_hit_rate']:.1%} of {asked:,}" if asked else "no experts"

"""What was measured as one object with stable keys, for `--json`, tables and plots alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from waste.bench.course import Found, Result
from waste.bench.figures import Split, Spread, overlap, percentile, ratios, split_time, spread_of
from waste.bench.sample import Sample, Shape, Spent


def make_report(
    found: Found, model: str, shape: Shape, *, runs: int, is_cold: bool, compared: str | None
) -> dict[str, Any]:
    """Bytes, seconds and tokens a second; of several runs `{"median", "low", "high"}`, None where nothing is known.

    compared: the key that variants differ in. Every variant has a counted run at least.
    """
    first = found.results[0]
    bandwidth, sweeps = found.bandwidth, [sweep for result in found.results for sweep in result.sweeps]
    return {
        "model": model,
        "prompt_tokens": shape.prompt,
        "tokens": shape.tokens,
        "runs": runs,
        "seed": shape.seed,
        "cold": is_cold,
        "compare": compared,
        "machine": {
            "memory_bytes_per_s": bandwidth.all_cores if bandwidth else None,
            "memory_one_core_bytes_per_s": bandwidth.one_core if bandwidth else None,
            "disk_direct": sweeps[0].is_direct if sweeps else None,
            "disk_sparse": sweeps[0].is_sparse if sweeps else None,
            "disk_problem": found.disk_problem,
        },
        "variants": [_variant(result, first) for result in found.results],
    }


def _variant(result: Result, first: Result) -> dict[str, Any]:
    samples, settings = result.samples, result.variant.settings
    rates = result.disk_rates
    rate = median(rates) if rates else None
    token_s = [seconds for sample in samples for seconds in sample.token_s]
    hits, misses = (sum(getattr(s.decode, name) for s in samples) for name in ("expert_hits", "expert_misses"))
    useful = sum(sample.decode.useful_bytes for sample in samples)
    return {
        "value": result.variant.value,
        "threads": samples[0].threads,
        "queue_depth": settings.io_queue_depth,
        "disk_bytes_per_s": _spread(rates),
        "prompt_tokens_per_s": _over(samples, _prompt_rate),
        "decode_tokens_per_s": _over(samples, lambda s: s.decode_tokens_per_s),
        "decode_ratio": _of(
            ratios([s.decode_tokens_per_s for s in samples], [s.decode_tokens_per_s for s in first.samples])
        ),
        "prompt_ratio": _of(ratios([s.prompt_s for s in first.samples], [s.prompt_s for s in samples])),
        "token_s": {"p50": percentile(token_s, 50), "p95": percentile(token_s, 95)},
        "split_s": asdict(_split(samples)),
        "bytes_per_token": {
            kind: sum(s.decode.bytes_read[kind] for s in samples) / len(token_s)
            for kind in samples[0].decode.bytes_read
        },
        "useful_bytes_per_token": useful / len(token_s),
        "expert_hits": hits,
        "expert_misses": misses,
        "expert_hit_rate": hits / (hits + misses) if hits + misses else None,
        "lookahead_issued": sum(s.decode.lookahead_issued for s in samples),
        "lookahead_used": sum(s.decode.lookahead_used for s in samples),
        "overlap": _spread([found for s in samples if (found := _overlap(s, rate)) is not None]),
        "peak_rss_bytes": max(s.peak_rss_bytes for s in samples),
        "ram_budget_bytes": samples[0].ram_budget_bytes,
        "direct_io": samples[0].direct_io,
        "samples": [_sample(s, rate) for s in samples],
    }


def _prompt_rate(sample: Sample) -> float:
    return sample.prompt_tokens / sample.prompt_s


def _split(samples: Sequence[Sample]) -> Split:
    """Of a token, on average over all counted runs: medians would not add up."""
    parts: dict[str, float] = {}
    for sample in samples:
        for part, seconds in sample.decode.compute_s_by_part.items():
            parts[part] = parts.get(part, 0.0) + seconds
    return split_time(
        sum(s.decode_s for s in samples),
        io_wait_s=sum(s.decode.io_wait_s for s in samples),
        compute_s_by_part=parts,
        loop_s=sum(s.decode.loop_s for s in samples),
        threads=samples[0].threads,
        tokens=sum(len(s.token_s) for s in samples),
    )


def _overlap(sample: Sample, rate: float | None) -> float | None:
    return overlap(
        sample.decode_s,
        useful_bytes=sample.decode.useful_bytes,
        disk_bytes_per_s=rate,
        compute_s=sample.decode.compute_s,
        threads=sample.threads,
    )


def _sample(sample: Sample, rate: float | None) -> dict[str, Any]:
    return {
        "run": sample.number,
        "prompt_s": sample.prompt_s,
        "prompt_tokens_per_s": _prompt_rate(sample),
        "decode_s": sample.decode_s,
        "decode_tokens_per_s": sample.decode_tokens_per_s,
        "overlap": _overlap(sample, rate),
        "peak_rss_bytes": sample.peak_rss_bytes,
        "token_s": list(sample.token_s),
        "prompt": _spent(sample.prompt),
        "decode": _spent(sample.decode),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {**asdict(spent), "useful_bytes": spent.useful_bytes}


def _over(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> dict[str, float] | None:
    return _spread([figure(sample) for sample in samples])


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return _of(spread_of(values))


def _of(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)

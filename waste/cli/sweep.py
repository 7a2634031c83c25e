"""`waste plan --sweep`: bytes a token under every split of the RAM between trunk and expert cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waste.sweep import Split


def as_objects(splits: Sequence[Split], rate: float | None) -> list[dict[str, Any]]:
    """For `--json`; rate: bytes a second, None where it is not known."""
    return [
        {
            "trunk_bytes": split.trunk_bytes,
            "expert_bytes": split.expert_bytes,
            "trunk_hit_rate": split.forecast.trunk_hit_rate,
            "expert_hit_rate": split.forecast.expert_hit_rate,
            "bytes_per_token": split.forecast.token_bytes,
            "seconds_per_token": None if rate is None else split.forecast.seconds(rate),
        }
        for split in splits
    ]


def as_text(splits: Sequence[Split], rate: float | None) -> str:
    """A line a split, the best one marked."""
    from waste.cli.output import format_bytes, format_table

    best = min(splits, key=lambda split: split.forecast.token_bytes)
    header = ["trunk", "experts", "trunk hits", "expert hits", "a token reads", ""]
    if rate is not None:
        header[-1] = f"s at {rate / 1e9:.2f} GB/s"
    rows = [[*header, ""]]
    for split in splits:
        cost = split.forecast
        rows.append(
            [
                format_bytes(split.trunk_bytes),
                format_bytes(split.expert_bytes),
                f"{cost.trunk_hit_rate:.1%}",
                f"{cost.expert_hit_rate:.1%}",
                format_bytes(cost.token_bytes),
                "" if rate is None else f"{cost.seconds(rate):.3g}",
                "least" if split is best else "",
            ]
        )
    return format_table(rows, right=(0, 1, 2, 3, 4, 5))


def as_picture(splits: Sequence[Split], title: str) -> bytes:
    """A PNG: bytes a token over the trunk's part of the RAM. Raises UnsupportedError without matplotlib."""
    import io

    from waste.bench.plot import require_matplotlib

    require_matplotlib()
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    trunk = [split.trunk_bytes / 1e9 for split in splits]
    below = [split.forecast.trunk_bytes / 1e9 for split in splits]
    above = [split.forecast.token_bytes / 1e9 for split in splits]
    axes.fill_between(trunk, below, label="trunk", alpha=0.5)
    axes.fill_between(trunk, below, above, label="experts", alpha=0.5)
    axes.plot(trunk, above, marker=".", color="black")
    axes.set(xlabel="GB for the trunk, the rest for experts", ylabel="GB a token reads", ylim=(0, None), title=title)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()

"""A report as a picture: where the time of a token goes, and how long each one took."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any

from waste.errors import UnsupportedError

_LAST = ("event loop", "rest")
_COLOURS = [f"C{number}" for number in range(10)] + ["gold", "navy", "silver", "black", "tan", "teal"]


def require_matplotlib() -> None:
    """Raises UnsupportedError if it is not installed; does not load it."""
    try:
        found = importlib.util.find_spec("matplotlib")
    except ValueError:  # of a module that is being kept out
        found = None
    if found is None:
        raise UnsupportedError("plots need matplotlib; run `pip install 'waste[plot]'`")


def draw(report: Mapping[str, Any]) -> bytes:
    """A PNG of what `make_report` returned. Raises UnsupportedError without matplotlib."""
    require_matplotlib()
    # Not pyplot, which looks for a display.
    from matplotlib.figure import Figure

    variants = report["variants"]
    figure: Any = Figure(figsize=(11, 4 + 0.4 * len(variants)), layout="constrained")
    bars, times = figure.subplots(1, 2)
    _draw_split(bars, report)
    for variant in variants:
        seconds = [each * 1e3 for sample in variant["samples"] for each in sample["token_s"]]
        times.plot(range(1, len(seconds) + 1), seconds, marker=".", label=_label(report, variant))
    times.set(xlabel="token, run after run", ylabel="ms", ylim=(0, None), title="time of each token")
    times.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def _draw_split(axes: Any, report: Mapping[str, Any]) -> None:
    """A bar for each variant; what is below 0, time counted twice, goes to the left."""
    variants = report["variants"]
    labels = [_label(report, variant) for variant in variants]
    splits = [split_seconds(variant["split_s"]) for variant in variants]
    names = split_names(splits)
    ends = [0.0] * len(variants)
    colours = dict(zip(names, _COLOURS, strict=False))
    for name in names:
        widths = [split.get(name, 0.0) * 1e3 for split in splits]
        begins = [end if width >= 0 else 0.0 for end, width in zip(ends, widths, strict=True)]
        axes.barh(range(len(variants)), widths, left=begins, label=name, color=colours.get(name))
        ends = [end + max(0.0, width) for end, width in zip(ends, widths, strict=True)]
    axes.set_yticks(range(len(variants)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="ms", title=f"a token of {report['model']}")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize="small")


def split_seconds(split: Mapping[str, Any]) -> dict[str, float]:
    """The parts of a report's `split_s` by their names for people; they add up to its wall time."""
    return {
        "waiting for bytes": split["io_wait_s"],
        **split["parts_s"],
        **dict(zip(_LAST, (split["loop_s"], split["rest_s"]), strict=True)),
    }


def split_names(splits: Sequence[Mapping[str, float]]) -> list[str]:
    """The names in any of them, in the order of each."""
    return [*dict.fromkeys(name for split in splits for name in split if name not in _LAST), *_LAST]


def _label(report: Mapping[str, Any], variant: Mapping[str, Any]) -> str:
    return "now" if report["compare"] is None else f"{report['compare']}={variant['value']}"

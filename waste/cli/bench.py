"""`waste bench`: how fast a model runs here, where the time goes, and what a setting changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from waste.cli.options import (
    ExpertsOption,
    JsonOption,
    ModelArgument,
    PresetOption,
    RamOption,
    SetOption,
    TrunkOption,
    resolve_settings,
    with_reserve,
)
from waste.cli.tracing import TimelineOption, traced, traced_bytes, write_whole
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.bench.course import Variant
    from waste.settings import Settings

PROMPT, TOKENS, RUNS = 32, 16, 3


# Longer than a function should be: Typer wants every option here.
def bench(
    model: ModelArgument,
    prompt: Annotated[int, typer.Option("--prompt", min=1, metavar="N", help="Ids fed together.")] = PROMPT,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, metavar="N", help="Ids fed one by one.")] = TOKENS,
    runs: Annotated[int, typer.Option("--runs", min=1, metavar="N", help="Runs that count.")] = RUNS,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed feeds the same ids.")] = 0,
    cold: Annotated[
        bool, typer.Option("--cold", help="Open the model anew for every run: no expert is cached.")
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="KEY=A,B", help="Run with each of these values of a setting, in turns."),
    ] = None,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE.png", help="Draw it; takes matplotlib.")] = None,
    timeline: TimelineOption = None,
    preset: PresetOption = None,
    ram: RamOption = None,
    trunk: TrunkOption = None,
    experts: ExpertsOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Measure tokens a second, bytes, cache hits, where a token's time goes, and what of it overlaps.

    A run feeds --prompt random ids together, then --tokens more one by one, whatever the model would have said:
    noise repeats itself, and routing would not vary. Nothing is sampled. Each run has other ids; a seed always has
    the same. A first run warms up and is not counted; from run to run the model stays open and its cache warm.

    --compare opens the model once for each value and run, in turns, and warms up each time. With --cold every run
    opens the model, and the first one of each value is not counted. Memory and disk are measured in between.
    """

    def work() -> None:
        from waste.bench.course import measure
        from waste.bench.plot import draw, require_matplotlib
        from waste.bench.report import make_report
        from waste.bench.sample import Shape
        from waste.cli.bench_table import format_report
        from waste.cli.launch import run_to_end
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.model.bundle import load_bundle

        if plot is not None:
            require_matplotlib()
        shape = Shape(prompt, tokens, seed)
        key, values = parse_comparison(compare)

        def resolve(more: list[str]) -> Settings:
            settings = resolve_settings(preset, ram, trunk, experts, [*(assignments or ()), *more])
            return with_reserve(settings, traced_bytes(timeline))

        variants = _variants(key, values, resolve)
        paths = load_bundle(model).source.paths
        with traced(timeline) as recorded, ProgressDisplay() as progress:
            course = measure(
                model, paths, variants, shape, runs=runs, is_cold=cold, timeline=recorded, progress=progress
            )
            found = run_to_end(course, on_interrupt=progress.clear)
        report = make_report(found, model, shape, runs=runs, is_cold=cold, compared=key)
        if plot is not None:
            write_whole(plot, iter([draw(report)]))
        if as_json:
            print_json(report)
        else:
            write_text(format_report(report))

    return work


def parse_comparison(text: str | None) -> tuple[str | None, list[str]]:
    """The key and its values from "key=a,b"; None and nothing without a text. Raises InputError."""
    if text is None:
        return None, []
    key, _, listed = text.partition("=")
    values = [value.strip() for value in listed.split(",")]
    if not key.strip() or len(values) < 2 or not all(values):
        raise InputError(f"--compare {text!r}: expected KEY=A,B with two values at least, such as io.queue_depth=4,8")
    return key.strip(), values


def _variants(key: str | None, values: list[str], resolve: Callable[[list[str]], Settings]) -> list[Variant]:
    """Every value's settings, all of which exist. Raises InputError."""
    from waste.bench.course import Variant
    from waste.opening import check_names

    variants = [Variant(value, resolve([f"{key}={value}"])) for value in values] or [Variant(None, resolve([]))]
    for variant in variants:
        check_names(variant.settings)
    return variants

"""The course of a measurement: which settings are opened when, what runs in them, and the machine measured between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from waste.bench.sample import Sample, Shape, forget_peak, take_sample
from waste.disk import Sweep, measure_depths
from waste.doctor import facts
from waste.doctor.bandwidth import Bandwidth, measure_bandwidth
from waste.errors import ContextLengthError, WasteError
from waste.process import usable_cores
from waste.settings import Settings

if TYPE_CHECKING:
    from waste.timeline import Timeline

T = TypeVar("T")
Progress = Callable[[str, int, int], None]

DISK_S = 0.3
MEMORY_S = 0.3
WARM_UP = 0
"""The number of the run that is not counted; those that are have 1 and up."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings to measure. value: of the key that is compared; None if nothing is."""

    value: str | None
    settings: Settings


@dataclass(frozen=True, slots=True)
class Opening:
    """An engine to be opened with the settings of `variant`, by its place, and the runs to do in it, in this order."""

    variant: int
    runs: tuple[int, ...]


@dataclass(slots=True)
class Result:
    """Of one variant: its counted runs, by number, and the sweeps of the disk taken around them, at its queue depth."""

    variant: Variant
    samples: list[Sample] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)

    @property
    def disk_rates(self) -> list[float]:
        """Bytes a second."""
        return [rate.bytes_per_s for sweep in self.sweeps for rate in sweep.rates]


@dataclass(frozen=True, slots=True)
class Found:
    """Everything measured. bandwidth: of memory, None where unknown. disk_problem: why a rate of it is missing."""

    results: Sequence[Result]
    bandwidth: Bandwidth | None
    disk_problem: str | None


def plan_openings(variants: int, runs: int, *, is_cold: bool) -> list[Opening]:
    """One variant is opened once, several in turns, round by round, as never two engines fit the budget at once.

    A run that is not counted warms up every opening; where runs are to be cold, each variant has one such opening.
    """
    if is_cold:
        return [Opening(variant, (run,)) for run in range(WARM_UP, runs + 1) for variant in range(variants)]
    if variants == 1:
        return [Opening(0, (WARM_UP, *range(1, runs + 1)))]
    return [Opening(variant, (WARM_UP, run)) for run in range(1, runs + 1) for variant in range(variants)]


async def measure(
    model: str | Path,
    paths: Sequence[Path],
    variants: Sequence[Variant],
    shape: Shape,
    *,
    runs: int,
    is_cold: bool,
    timeline: Timeline | None,
    progress: Progress,
) -> Found:
    """Do it all; paths: the model's files, to measure their disk.

    Memory is measured before, and the disk around each opening, while no engine takes any.

    Raises ContextLengthError before anything is opened, and what opening an engine and walking raise.
    """
    for variant in variants:
        check_context(shape, variant.settings)
    rams = [variant.settings.ram or facts.memory(Path("/")).auto for variant in variants]
    progress("measuring the memory", 0, 1)
    bandwidth = await _aside(
        lambda check: measure_bandwidth(usable_cores(), room_bytes=min(rams), seconds=MEMORY_S, check=check)
    )
    results = [Result(variant) for variant in variants]
    problem = None
    for opening in plan_openings(len(variants), runs, is_cold=is_cold):
        result = results[opening.variant]
        problem = await _sweep(paths, result, progress) or problem
        forget_peak()
        await _run(model, result, opening, shape, timeline, progress)
        problem = await _sweep(paths, result, progress) or problem
    return Found(results, bandwidth, problem)


def check_context(shape: Shape, settings: Settings) -> None:
    """Raises ContextLengthError if a run does not fit."""
    needed = shape.prompt + shape.tokens
    if needed > settings.context:
        raise ContextLengthError(
            f"{shape.prompt} tokens and {shape.tokens} after them do not fit a context of {settings.context}; "
            f"measure fewer or give --set context={needed}"
        )


async def _run(
    model: str | Path, result: Result, opening: Opening, shape: Shape, timeline: Timeline | None, progress: Progress
) -> None:
    from waste.engine import Engine

    settings, value = result.variant.settings, result.variant.value
    engine = Engine(model, settings, progress=progress)
    engine.watch(timeline)
    async with engine:
        for number in opening.runs:
            what = "warm-up" if number == WARM_UP else f"run {number}"
            name = what if value is None else f"{value}, {what}"

            def told(done: int, name: str = name) -> None:
                progress(f"{name}: tokens", done, shape.prompt + shape.tokens)

            told(0)
            sample = await take_sample(engine, shape, number, told=told, timeline=timeline, name=name)
            if number != WARM_UP:
                result.samples.append(sample)


async def _sweep(paths: Sequence[Path], result: Result, progress: Progress) -> str | None:
    """Measure the disk; a problem is no reason to stop, but to be told."""
    depth = result.variant.settings.io_queue_depth
    progress("measuring the disk", 0, 1)
    try:
        sweep = await _aside(lambda check: measure_depths(paths, depths=(depth,), seconds=DISK_S, check=check))
    except WasteError as error:
        return str(error)
    result.sweeps.append(sweep)
    return None if sweep.rates else "the files are empty"


class _CalledOffError(Exception):
    """Ends a measurement that nobody waits for any more."""


async def _aside(work: Callable[[Callable[[], None]], T]) -> T:
    """`work(check)` on a thread; once the caller is cancelled, `check()` raises."""
    is_off = threading.Event()

    def check() -> None:
        if is_off.is_set():
            raise _CalledOffError

    try:
        return await asyncio.to_thread(work, check)
    except asyncio.CancelledError:
        is_off.set()
        raise

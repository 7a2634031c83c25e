"""What opening a model would build, worked out before anything is: its tables, its walk, and a plan of the memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from waste.errors import BudgetError, ContextLengthError
from waste.footprint import COMFORT, COMPILER_BYTES, StepSizes, make_demand, step_ladder
from waste.io.files import FileSet
from waste.model.bundle import ModelBundle
from waste.model.decoder import Decoder
from waste.model.layout import TrunkLayout, lay_out
from waste.model.state import StateShape
from waste.process import physical_memory_bytes, usable_cores
from waste.sched.plan import Plan, floor_bytes, make_plan
from waste.settings import DEFAULT_CONTEXT, GIB, Settings

DEFAULT_RAM = 8 * GIB  # where the system does not say how much there is
COMPUTE_THREADS = 16


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Nothing here holds memory worth counting, a file or a thread."""

    bundle: ModelBundle
    decoder: Decoder
    layout: TrunkLayout
    sizes: StepSizes
    shape: StateShape
    plan: Plan
    threads: int


def draw(bundle: ModelBundle, settings: Settings) -> Blueprint:
    """Plan a model under settings.

    Raises BudgetError with the shortfall, ContextLengthError for a context the model was not made for.
    """
    config = bundle.config
    settings = replace(settings, context=_context(settings.context, config.max_context))
    align = FileSet.alignment
    threads = settings.compute_threads or min(usable_cores(), COMPUTE_THREADS)
    decoder = Decoder(config, bundle.source, align)
    layout = lay_out(decoder.uses(), bundle.source.tensors, tile_bytes=max(1, settings.trunk_tile), align=align)
    budget = settings.ram or (physical_memory_bytes() or DEFAULT_RAM) // 8 * 7
    ladder = step_ladder(settings, config.vocab_size)
    least = make_demand(bundle, decoder, layout, settings, ladder[-1], threads)
    floor = max(floor_bytes(least), COMPILER_BYTES)
    if budget < floor:
        raise BudgetError(
            f"the budget of {budget:,} bytes is {floor - budget:,} below the floor of {floor:,} for {bundle.path} "
            f"at a context of {settings.context}; raise --ram, or lower the context"
        )
    sizes, demand = ladder[-1], least
    for candidate in ladder[:-1]:
        wider = make_demand(bundle, decoder, layout, settings, candidate, threads)
        if sum(wider.fixed.values()) - sum(least.fixed.values()) <= (budget - floor) // COMFORT:
            sizes, demand = candidate, wider
            break
    plan = make_plan(demand, budget=budget, floor=floor, trunk=settings.trunk, experts=settings.experts)
    return Blueprint(bundle, decoder, layout, sizes, StateShape.of(config, settings.context), plan, threads)


def _context(asked: int, most: int | None) -> int:
    """Positions of a session: a small model is not refused for a preset's usual context."""
    if most is None or asked <= most:
        return asked
    if asked > DEFAULT_CONTEXT:
        raise ContextLengthError(f"context is {asked}, the model was made for at most {most}; lower the setting")
    return most

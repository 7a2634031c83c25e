"""What opening a model would build, worked out before anything is: its tables, its walk, and a plan of the memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from waste.errors import BudgetError, ContextLengthError
from waste.footprint import COMPILER_BYTES, MOST_SESSIONS, StepSizes, make_demand, record_slot_bytes, step_sizes
from waste.io.files import FileSet
from waste.machine import usable_memory_bytes
from waste.model.bundle import ModelBundle
from waste.model.decoder import Decoder
from waste.model.layout import TrunkLayout, lay_out
from waste.model.state import StateShape
from waste.process import usable_cores
from waste.sched.plan import Demand, Plan, floor_bytes, make_plan
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
    demand: Demand
    plan: Plan
    threads: int


def draw(bundle: ModelBundle, settings: Settings, *, record_bytes: int | None = None) -> Blueprint:
    """Plan a model under settings; `record_bytes` is the model's `record_slot_bytes`, where it is known already.

    Raises BudgetError with the shortfall, ContextLengthError for a context the model was not made for.
    """
    config = bundle.config
    settings = replace(settings, context=_context(settings.context, config.max_context))
    align = FileSet.alignment
    threads = settings.compute_threads or min(usable_cores(), COMPUTE_THREADS)
    decoder = Decoder(config, bundle.source, align)
    layout = lay_out(decoder.uses(), bundle.source.tensors, tile_bytes=max(1, settings.trunk_tile), align=align)
    budget = usable_memory_bytes(if_unknown=DEFAULT_RAM) // 8 * 7 if settings.ram is None else settings.ram
    slot_bytes = record_slot_bytes(bundle.source, align) if record_bytes is None else record_bytes

    def plan_for(sessions: int) -> tuple[StepSizes, Demand]:
        sizes = step_sizes(settings, config.vocab_size, sessions=sessions)
        demand = make_demand(
            bundle,
            decoder,
            layout,
            context=settings.context,
            sizes=sizes,
            threads=threads,
            record_bytes=slot_bytes,
        )
        return sizes, demand

    sizes, demand = plan_for(settings.sessions or 1)
    floor = max(floor_bytes(demand), COMPILER_BYTES)
    if budget < floor:
        raise BudgetError(
            f"the budget of {budget:,} bytes is {floor - budget:,} below the floor of {floor:,} for {bundle.path} "
            f"at a context of {settings.context}; raise --ram, or lower context, prefill.chunk or sessions"
        )
    plan = make_plan(demand, budget=budget, floor=floor, trunk=settings.trunk, experts=settings.experts)
    if settings.sessions is None:
        # More sessions may be open if their memory is left over: nobody's bytes are read more often for them.
        for sessions in range(MOST_SESSIONS, 1, -1):
            wider, more = plan_for(sessions)
            if sum(more.fixed.values()) - sum(demand.fixed.values()) > budget - plan.total_bytes:
                continue
            if floor_bytes(more) > budget:
                continue
            roomier = make_plan(more, budget=budget, floor=floor, trunk=settings.trunk, experts=settings.experts)
            if roomier.split == plan.split:
                sizes, demand, plan = wider, more, roomier
                break
    return Blueprint(bundle, decoder, layout, sizes, StateShape.of(config, settings.context), demand, plan, threads)


def _context(asked: int, most: int | None) -> int:
    """Positions of a session: a small model is not refused for a preset's usual context."""
    if most is None or asked <= most:
        return asked
    if asked > DEFAULT_CONTEXT:
        raise ContextLengthError(f"context is {asked}, the model was made for at most {most}; lower the setting")
    return most

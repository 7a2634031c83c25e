"""What opening a model would build, worked out before anything is: its tables, its walk, and a plan of the memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from waste.errors import BudgetError, ContextLengthError
from waste.footprint import (
    CHUNK_SHARE,
    INTERPRETER_BYTES,
    LEAST_CHUNK,
    MOST_CHUNK,
    MOST_SESSIONS,
    StepSizes,
    compiling_bytes,
    make_demand,
    record_slot_bytes,
    step_sizes,
)
from waste.io.files import FileSet
from waste.machine import ADDRESS_SPACE, MemoryLimit, address_space_bytes, memory_limit
from waste.model.bundle import ModelBundle
from waste.model.decoder import Decoder
from waste.model.layout import TrunkLayout, lay_out
from waste.model.state import StateShape
from waste.process import usable_cores
from waste.sched.plan import Demand, Plan, floor_bytes, make_plan
from waste.settings import DEFAULT_CONTEXT, DEFAULT_QUEUE_DEPTH, GIB, Settings

DEFAULT_RAM = 8 * GIB  # where the system does not say how much there is
COMPUTE_THREADS = 16


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Nothing here holds memory worth counting, a file or a thread.

    idle_bytes: of the budget, for longer prompt chunks and not enough for the next longer one.
    """

    bundle: ModelBundle
    decoder: Decoder
    layout: TrunkLayout
    sizes: StepSizes
    shape: StateShape
    demand: Demand
    plan: Plan
    threads: int
    idle_bytes: int


def draw(
    bundle: ModelBundle, settings: Settings, *, record_bytes: int | None = None, is_elsewhere: bool = False
) -> Blueprint:
    """Plan a model under settings; `record_bytes` is the model's `record_slot_bytes`, where it is known already.

    is_elsewhere: for another machine than this one, or for a question only: what this process may map is no matter.

    Raises BudgetError with the shortfall, ContextLengthError for a context the model was not made for, InputError for
    a backend that does not exist.
    """
    config = bundle.config
    settings = replace(settings, context=_context(settings.context, config.max_context))
    align = FileSet.alignment
    threads = settings.compute_threads or min(usable_cores(), COMPUTE_THREADS)
    decoder = Decoder(config, bundle.source, align)
    layout = lay_out(decoder.uses(), bundle.source.tensors, tile_bytes=settings.trunk_tile, align=align)
    limit = None if settings.ram is not None else memory_limit(threads=threads + settings.io_queue_depth)
    budget = _budget(settings, limit)
    slot_bytes = record_slot_bytes(bundle.source, align) if record_bytes is None else record_bytes

    def plan_for(sessions: int, chunk: int) -> tuple[StepSizes, Demand]:
        sizes = step_sizes(settings, config.vocab_size, sessions=sessions, chunk=chunk)
        demand = make_demand(bundle, decoder, layout, settings, sizes=sizes, threads=threads, record_bytes=slot_bytes)
        return sizes, demand

    sizes, demand = plan_for(settings.sessions or 1, LEAST_CHUNK)
    floor = max(floor_bytes(demand), compiling_bytes(demand.fixed, settings))
    if budget < floor:
        raise BudgetError(_below_floor(bundle, settings, demand, budget=budget, floor=floor, limit=limit))
    idle = 0
    if settings.prefill_chunk is None:
        share = sum(demand.fixed.values()) + int((budget - floor) * CHUNK_SHARE)
        sizes, demand = _longest_chunk(partial(plan_for, settings.sessions or 1), share, settings.context)
        idle = 0 if sizes.chunk == min(MOST_CHUNK, settings.context) else share - sum(demand.fixed.values())
    split = partial(make_plan, floor=floor, trunk=settings.trunk, experts=settings.experts)
    plan = split(demand, budget=budget - idle)
    if settings.sessions is None:
        spare = budget - idle - plan.total_bytes
        for sessions in range(MOST_SESSIONS, 1, -1):
            wider, more = plan_for(sessions, sizes.chunk)
            if (
                _costs_nobody(demand, more, spare)
                and (roomier := split(more, budget=budget - idle)).split == plan.split
            ):
                sizes, demand, plan = wider, more, roomier
                break
    plan = replace(plan, budget_bytes=budget)
    if not is_elsewhere:
        _check_address_space(plan, threads=threads + settings.io_queue_depth)
    shape = StateShape.of(config, settings.context)
    return Blueprint(bundle, decoder, layout, sizes, shape, demand, plan, threads, idle)


def _costs_nobody(demand: Demand, more: Demand, spare: int) -> bool:
    """Whether more sessions may be open: their memory is left over, so nobody's bytes are read more often for them."""
    return sum(more.fixed.values()) - sum(demand.fixed.values()) <= spare


def _longest_chunk(
    plan_for: Callable[[int], tuple[StepSizes, Demand]], most_bytes: int, context: int
) -> tuple[StepSizes, Demand]:
    """The longest chunk, a multiple of the least or the whole context, whose fixed bytes are at most so many."""
    steps = -(-min(MOST_CHUNK, context) // LEAST_CHUNK)
    fits = bisect_right(
        range(2, steps + 1), most_bytes, key=lambda count: sum(plan_for(count * LEAST_CHUNK)[1].fixed.values())
    )
    return plan_for((fits + 1) * LEAST_CHUNK)


def _budget(settings: Settings, limit: MemoryLimit | None) -> int:
    """Bytes as set, else the share of what the machine has."""
    if settings.ram is not None:
        return settings.ram
    return int((DEFAULT_RAM if limit is None else limit.size) * settings.ram_share)


def _below_floor(
    bundle: ModelBundle, settings: Settings, demand: Demand, *, budget: int, floor: int, limit: MemoryLimit | None
) -> str:
    """What is missing, why, and what would help: not what would not."""
    given = f"the budget of {budget:,} bytes"
    raising = "raise --ram"
    if settings.ram is None and limit is not None:
        given = f"{limit.what} leaves a budget of {budget:,} bytes, which"
        raising = "raise that limit" if limit.what == ADDRESS_SPACE else "name a larger --ram, or use a larger machine"
    below = f"{given} is {floor - budget:,} below the floor of {floor:,} for {bundle.path}"
    compiling = compiling_bytes(demand.fixed, settings)
    if budget < compiling:
        others = "" if floor == compiling else f", the model then {floor:,}"
        what = "compiling its kernels, should the cache lack them, takes"
        return f"{below}: {what} {compiling:,}{others}; {raising}"
    lower = ["context", "prefill.chunk", "trunk.tile"]
    lower += ["sessions"] if (settings.sessions or 1) > 1 else []
    lower += ["io.queue_depth"] if settings.io_queue_depth > DEFAULT_QUEUE_DEPTH else []
    lower += ["reserve"] if settings.reserve else []
    return f"{below} at a context of {settings.context}; {raising}, or lower {', '.join(lower[:-1])} or {lower[-1]}"


def _check_address_space(plan: Plan, *, threads: int) -> None:
    """Raises BudgetError if this process may not map what was planned: the system would refuse it half way."""
    limit = address_space_bytes(threads=threads)
    needed = plan.total_bytes - INTERPRETER_BYTES
    if limit is not None and needed > limit.size:
        raise BudgetError(
            f"{limit.what} leaves {limit.size:,} bytes to allocate, and a budget of {plan.budget_bytes:,} allocates "
            f"{needed:,}; raise that limit or give a smaller --ram"
        )


def _context(asked: int, most: int | None) -> int:
    """Positions of a session: a small model is not refused for a preset's usual context."""
    if most is None or asked <= most:
        return asked
    if asked > DEFAULT_CONTEXT:
        raise ContextLengthError(f"context is {asked}, the model was made for at most {most}; lower the setting")
    return most

"""Opening a model: read its tables, compile kernels, plan the memory, allocate it, start threads and reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import TypeVar, cast, get_args

from waste.blueprint import COMPUTE_THREADS, Blueprint, draw
from waste.errors import InputError
from waste.footprint import COMPILER_BYTES, INTERPRETER_BYTES, RECORD_GAP, StepSizes
from waste.generate import Generator
from waste.io import backends
from waste.io.arena import Arena
from waste.io.extents import Placement
from waste.io.files import DirectMode, FileSet
from waste.io.record_places import RecordPlaces
from waste.kernels import KERNEL_SETS, KernelSet, load_kernels, prepare
from waste.kernels.workers import Stage, Workers
from waste.model.bundle import ModelBundle, load_bundle
from waste.model.codebooks import CodebookTables
from waste.model.compute import OTHER, Compute
from waste.model.decoder import StepMemory
from waste.model.experts import RecordUse
from waste.model.lookahead import Lookahead
from waste.model.routine import Routine
from waste.model.scratch import Scratch
from waste.model.state import SessionState, SparePool
from waste.process import major_faults, usable_cores
from waste.sched import policies, prefetch
from waste.sched.cache import ExpertCache
from waste.sched.plan import Plan
from waste.sched.queue import ReadQueue
from waste.sched.ring import TrunkRing
from waste.sched.scheduler import ReadScheduler
from waste.settings import MIB, Settings
from waste.stats import EngineStatistics, LayerRecall
from waste.step_loop import StepLoop
from waste.timeline import Timeline

Progress = Callable[[str, int, int], None]
T = TypeVar("T")

BYTES_IN_FLIGHT = 256 * MIB


@dataclass(frozen=True, slots=True)
class Opened:
    """Everything an open engine has. What must be closed is on the exit stack it was opened with."""

    drawn: Blueprint
    loop: StepLoop
    generator: Generator
    memory: StepMemory
    scheduler: ReadScheduler
    workers: Workers
    files: FileSet
    backend: str
    opening_loop_s: float
    """Processor seconds the loop's thread had used when the model was open."""

    faults_before: int

    @property
    def major_faults(self) -> int:
        """Pages of this process that the disk had to bring since everything was allocated."""
        return major_faults() - self.faults_before

    @property
    def bundle(self) -> ModelBundle:
        return self.drawn.bundle

    @property
    def sizes(self) -> StepSizes:
        return self.drawn.sizes

    @property
    def plan(self) -> Plan:
        return self.drawn.plan

    def watch(self, timeline: Timeline | None) -> None:
        """Have everything recorded from now on; None: nothing any more."""
        self.workers.watch = None if timeline is None else timeline.job
        self.scheduler.watch = timeline
        self.drawn.decoder.watch = None if timeline is None else timeline.walk

    def new_state(self) -> SessionState:
        """Memory for one more session."""
        return SessionState(self.drawn.shape)

    def statistics(self, *, peak_rss_bytes: int, sessions_open: int) -> EngineStatistics:
        reads = self.scheduler.statistics()
        experts = self.memory.experts.statistics()
        parts = {part: seconds for part, seconds in self.workers.statistics().busy_s_by_family.items() if part != OTHER}
        return EngineStatistics(
            steps=self.loop.steps,
            tokens=self.loop.tokens,
            bytes_read={str(kind): size for kind, size in reads.bytes_read.items()},
            reads={priority.name.lower(): count for priority, count in reads.reads.items()},
            expert_hits=experts.hits,
            expert_misses=experts.misses + experts.joined,
            lookahead_issued=experts.lookahead_issued,
            lookahead_used=experts.lookahead_used,
            lookahead_wasted_bytes=experts.lookahead_bytes - experts.lookahead_used_bytes,
            lookahead_recall=self._recall(),
            io_wait_s=reads.io_wait_s,
            compute_s=sum(parts.values()),
            compute_s_by_part=parts,
            loop_s=thread_time() - self.opening_loop_s,
            loop_us_per_read=reads.loop_s * 1e6 / max(1, reads.completed + experts.hits),
            peak_rss_bytes=peak_rss_bytes,
            ram_budget_bytes=self.plan.budget_bytes,
            direct_io=self.files.direct_obtained,
            backend=self.backend,
            sessions_open=sessions_open,
        )

    def _recall(self) -> dict[int, LayerRecall]:
        if self.memory.lookahead is None:
            return {}
        return {
            layer: LayerRecall(found.tokens, tuple(hits / found.tokens for hits in found.hits))
            for layer, found in self.memory.lookahead.recall().items()
        }


async def open_model(
    stack: AsyncExitStack, path: str | Path, settings: Settings, progress: Progress, timeline: Timeline | None
) -> Opened:
    """Open; what `stack` is given to close closes in the right order, also when this fails half way.

    timeline: records the opening's own reads and jobs, too.

    Raises InputError, ModelError, UnsupportedError, BudgetError or ReadError.
    """
    _check_what_nothing_makes(settings)
    workers = Workers(settings.compute_threads or min(usable_cores(), COMPUTE_THREADS))
    stack.callback(workers.close)
    if timeline is not None:
        workers.watch = timeline.job
    compute = Compute(workers)
    drawn = await _on_worker(compute, lambda _: draw(load_bundle(path), settings))
    kernels = await _on_worker(compute, lambda check: _prepare_kernels(settings, drawn, progress, check))
    backend = backends.create(settings.io_backend, queue_depth=settings.io_queue_depth, faults=settings.io_faults)
    files = FileSet(drawn.bundle.source.paths, direct=_direct_mode(settings.io_direct))
    queue = ReadQueue(queue_depth=settings.io_queue_depth, max_bytes_in_flight=BYTES_IN_FLIGHT)
    scheduler = ReadScheduler(backend, queue)
    scheduler.watch = timeline
    stack.push_async_callback(scheduler.close)
    await scheduler.start(files)
    tables = CodebookTables(drawn.bundle.source, drawn.decoder.align, verify=settings.verify)
    stack.callback(tables.close)
    await tables.load(scheduler, compute)
    memory = _allocate(stack, settings, drawn, scheduler, compute, kernels, tables)
    sizes = drawn.sizes
    loop = StepLoop(drawn.decoder, memory, max_tokens=sizes.tokens, max_logit_rows=sizes.logit_rows)
    group = await stack.enter_async_context(asyncio.TaskGroup())
    loop.start(group)
    generator = Generator(loop, compute, kernels, drawn.bundle.tokenizer, sizes.chunk)
    opened = Opened(
        drawn=drawn,
        loop=loop,
        generator=generator,
        memory=memory,
        scheduler=scheduler,
        workers=workers,
        files=files,
        backend=backends.resolve(settings.io_backend),
        opening_loop_s=thread_time(),
        faults_before=major_faults(),
    )
    opened.watch(timeline)
    return opened


def check_names(settings: Settings) -> None:
    """Raises InputError for a backend, policy, direct mode, kernel set or fault that does not exist; opens nothing."""
    _check_what_nothing_makes(settings)
    backends.create(settings.io_backend, queue_depth=1, faults=settings.io_faults)
    policies.create(settings.cache_policy)
    _direct_mode(settings.io_direct)


def _check_what_nothing_makes(settings: Settings) -> None:
    """The names and numbers that opening would otherwise notice late, or not at all."""
    if settings.compute_kernels not in KERNEL_SETS:
        raise InputError(f"compute.kernels is {settings.compute_kernels!r}; expected one of {', '.join(KERNEL_SETS)}")
    prefetch.create(settings.prefetch_policy, width=settings.prefetch_width)
    if settings.prefetch_depth != 1:
        raise InputError(
            f"prefetch.depth is {settings.prefetch_depth}; only the next layer, 1, can be looked at so far"
        )


async def _on_worker(compute: Compute, work: Callable[[Callable[[], None]], T]) -> T:
    """`work(check)` on a compute thread; `check()` raises once the caller was cancelled."""
    results: list[T] = []
    is_cancelled = False

    def check() -> None:
        if is_cancelled:
            raise asyncio.CancelledError

    job = compute.start([Stage(OTHER, [lambda worker: results.append(work(check))])])
    try:
        await job.ended()
    except asyncio.CancelledError:
        is_cancelled = True
        raise
    finally:
        await compute.finish(job)
    return results[0]


def compiling_children(budget_bytes: int) -> int:
    """How many processes may compile at once: one a core, as far as a budget holds them beside this one; at least one.

    Nothing of the model is allocated while they run.
    """
    return max(1, min(usable_cores(), (budget_bytes - INTERPRETER_BYTES) // COMPILER_BYTES))


def _prepare_kernels(settings: Settings, drawn: Blueprint, progress: Progress, check: Callable[[], None]) -> KernelSet:
    """The kernels for the formats that the model is stored in."""
    name = settings.compute_kernels
    kernel_set = load_kernels(name).only(drawn.bundle.weight_formats())
    total = len(list(kernel_set.kernels()))

    def report(phase: str, done: int) -> None:
        check()
        progress(phase, done, total)

    prepare(kernel_set, report, children=compiling_children(drawn.plan.budget_bytes))
    return kernel_set


def _allocate(
    stack: AsyncExitStack,
    settings: Settings,
    drawn: Blueprint,
    scheduler: ReadScheduler,
    compute: Compute,
    kernels: KernelSet,
    tables: CodebookTables,
) -> StepMemory:
    """Everything the plan counted but the sessions' own memory."""
    source, layout, plan, sizes = drawn.bundle.source, drawn.layout, drawn.plan, drawn.sizes
    align, embedding = drawn.decoder.align, drawn.decoder.embedding

    places = RecordPlaces(source, align=align, max_gap=RECORD_GAP)

    def place_record(key: Hashable) -> Placement:
        assert isinstance(key, tuple)
        return places(*key)

    ring = TrunkRing(scheduler, layout.placements, pinned=plan.pinned_tiles, slots=plan.ring_slots)
    stack.callback(ring.close)
    experts = ExpertCache(
        scheduler,
        slots=plan.expert_slots,
        slot_bytes=plan.record_bytes,
        policy=policies.create(settings.cache_policy),
        place=place_record,
    )
    stack.callback(experts.close)
    ahead = prefetch.create(settings.prefetch_policy, width=settings.prefetch_width)
    moe = drawn.bundle.config.moe
    embeddings = ExpertCache(
        scheduler,
        slots=sizes.embedding_slots,
        slot_bytes=embedding.slot_bytes,
        policy=policies.create("lru"),
        place=embedding.place,
        kind="embedding",
    )
    stack.callback(embeddings.close)
    scratch = Scratch(Arena(1, plan.parts["scratch"]))
    stack.callback(scratch.close)
    spares = SparePool(drawn.shape, sizes.spares)
    stack.callback(spares.close)
    routine = Routine()
    stack.callback(routine.close)
    return StepMemory(
        layout=layout,
        ring=ring,
        experts=experts,
        embeddings=embeddings,
        spares=spares,
        scratch=scratch,
        records=RecordUse(tables.by_bank, settings.verify),
        compute=compute,
        kernels=kernels,
        add_wait=scheduler.add_wait,
        lookahead=Lookahead(ahead, experts, moe.top_k) if ahead.wants_guesses and moe is not None else None,
        routine=routine,
    )


def _direct_mode(value: str) -> DirectMode:
    for mode in get_args(DirectMode):
        if value == mode:
            return cast(DirectMode, mode)
    raise InputError(f"io.direct is {value!r}; expected one of {', '.join(get_args(DirectMode))}")

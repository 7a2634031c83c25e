"""`waste eval`: one forward pass over given tokens, and everything about it that can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.options import (
    ALTERNATIVE_BYTES,
    MOST_ALTERNATIVES,
    ExpertsOption,
    FileOption,
    IdsOption,
    JsonOption,
    ModelArgument,
    PresetOption,
    RamOption,
    SetOption,
    TrunkOption,
    held_bytes,
    resolve_settings,
    with_reserve,
)
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.cli.progress import ProgressDisplay
    from waste.cli.recorder import Recorder
    from waste.engine import Engine, Prompt
    from waste.settings import Settings


def eval_(
    model: ModelArgument,
    ids: IdsOption = None,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="The text.")] = None,
    file: FileOption = None,
    logits_out: Annotated[
        Path | None, typer.Option("--logits-out", metavar="FILE.npy", help="Logits, float32 [tokens, vocab].")
    ] = None,
    routing_out: Annotated[
        Path | None,
        typer.Option("--routing-out", metavar="FILE.jsonl", help="Chosen experts, a line per token and MoE layer."),
    ] = None,
    hidden_out: Annotated[
        Path | None,
        typer.Option("--hidden-out", metavar="FILE.npy", help="States after each layer, float32 [layers, tokens, H]."),
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, max=MOST_ALTERNATIVES, metavar="K", help="Likeliest tokens to show.")
    ] = 5,
    preset: PresetOption = None,
    ram: RamOption = None,
    trunk: TrunkOption = None,
    experts: ExpertsOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Feed tokens to a model and show what it predicts after each.

    The tokens are --ids, or those of --text, --file or standard input. Shown are the last 20 positions; files get
    them all, and appear when they are whole. Layers and tokens are counted from 0.
    """

    def work() -> None:
        from waste.cli.launch import run_to_end
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.cli.recorder import Recorder
        from waste.cli.source import read_source
        from waste.engine import Engine

        settings = _steady(resolve_settings(preset, ram, trunk, experts, assignments), routing_out, hidden_out)
        source = read_source(text, file=file, ids=ids, context=settings.context)
        if not source:
            raise InputError("there are no tokens to evaluate; give at least one")
        held = held_bytes(source) + _report_bytes(model, settings, top_k, routing_out, hidden_out)
        outputs = Recorder(logits=logits_out, routing=routing_out, hidden=hidden_out, top_k=top_k)
        with ProgressDisplay() as progress, outputs as recorder:

            def interrupt() -> None:
                progress.clear()
                recorder.discard()

            engine = Engine(model, with_reserve(settings, held), progress=progress)
            walked, seconds = run_to_end(_forward(engine, source, recorder, progress), on_interrupt=interrupt)
        if as_json:
            print_json(_as_object(engine, walked, recorder, seconds))
        else:
            write_text(_as_text(engine, walked, recorder, seconds))

    return work


def _steady(settings: Settings, *outputs: Path | None) -> Settings:
    """What a step brings is held until it is written; how much that is must not depend on the plan."""
    from waste.footprint import LEAST_CHUNK

    if not any(outputs):
        return settings
    return replace(settings, prefill_chunk=settings.prefill_chunk or LEAST_CHUNK)


def _report_bytes(model: str, settings: Settings, top_k: int, routing: Path | None, hidden: Path | None) -> int:
    """What the recorder holds: the likeliest tokens, and of a step what is to be written of it."""
    from waste.cli.recorder import SHOWN

    shown = SHOWN * top_k * ALTERNATIVE_BYTES
    if routing is None and hidden is None:
        return shown
    from waste.model.bundle import load_bundle

    config = load_bundle(model).config
    tokens = min(_steady(settings, routing, hidden).prefill_chunk or 1, settings.context)
    choices = 12 * config.moe.top_k if config.moe is not None else 0
    states = 4 * config.hidden_size if hidden is not None else 0
    return shown + config.num_hidden_layers * tokens * (choices + states)


async def _forward(
    engine: Engine, source: Prompt, recorder: Recorder, progress: ProgressDisplay
) -> tuple[list[int], float]:
    """The ids that were walked, and the seconds that the walk itself took."""
    async with engine:
        ids = await asyncio.to_thread(engine.encode, source, room=engine.context)
        recorder.begin(engine.model.config, len(ids))
        progress.count_bytes(lambda: sum(engine.stats().bytes_read.values()))
        progress("tokens", 0, len(ids))
        seconds, done = 0.0, 0
        async with aclosing(engine.logits(ids, tap=recorder)) as rows:
            began = perf_counter()
            async for row in rows:
                seconds += perf_counter() - began
                await recorder.add_row(row)
                done += 1
                progress("tokens", done, len(ids))
                began = perf_counter()
        return ids, seconds


def _as_object(engine: Engine, ids: list[int], recorder: Recorder, seconds: float) -> dict[str, Any]:
    tokenizer = engine.model.tokenizer
    return {
        "model": str(engine.model.path),
        "tokens": len(ids),
        "ids": ids,
        "seconds": seconds,
        "top": [
            {
                "position": prediction.position,
                "id": ids[prediction.position],
                "top": [
                    {
                        "id": token,
                        "text": "" if tokenizer is None else tokenizer.decode([token]),
                        "logit": logit,
                        "logprob": logprob,
                    }
                    for token, logit, logprob in prediction.top
                ],
            }
            for prediction in recorder.predictions
        ],
        "stats": engine.stats().as_dict(),
    }


def _as_text(engine: Engine, ids: list[int], recorder: Recorder, seconds: float) -> str:
    from waste.cli.output import format_table, quote, summarize

    tokenizer = engine.model.tokenizer

    def name(token: int) -> str:
        return str(token) if tokenizer is None else quote(tokenizer.decode([token]))

    rows = [["position", "token", "likeliest next tokens and their logits"]]
    for prediction in recorder.predictions:
        likeliest = "  ".join(f"{name(token)} {logit:.3f}" for token, logit, _ in prediction.top)
        rows.append([str(prediction.position), name(ids[prediction.position]), likeliest])
    return f"{format_table(rows, right=(0,))}{len(ids)} tokens in {seconds:.2f} s | {summarize(engine.stats())}\n"

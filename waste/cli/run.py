"""`waste run`: a prompt's continuation, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from waste.cli.options import (
    ALTERNATIVE_BYTES,
    TOKEN_BYTES,
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
from waste.cli.tracing import TimelineOption, traced, traced_bytes
from waste.errors import InputError, WasteError

if TYPE_CHECKING:
    from waste.cli.progress import ProgressDisplay
    from waste.cli.transcript import Transcript
    from waste.engine import Engine, Prompt
    from waste.generate import Generation

DEFAULT_TOKENS = 128


# Longer than a function should be: Typer wants every option here.
def run(
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to continue.")] = None,
    file: FileOption = None,
    ids: IdsOption = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, metavar="N", help="Stop after so many tokens.")
    ] = DEFAULT_TOKENS,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", help="0 takes the likeliest token, 1 draws as the model says."),
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="K", help="Draw from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option("--top-p", metavar="P", help="Draw from the likeliest tokens that make up P.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The same seed draws the same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", metavar="N", help="Report the N likeliest tokens at each step.")
    ] = None,
    timeline: TimelineOption = None,
    preset: PresetOption = None,
    ram: RamOption = None,
    trunk: TrunkOption = None,
    experts: ExpertsOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Continue a prompt.

    The prompt is PROMPT, --file, --ids or standard input, where a final line break is dropped. Its continuation goes
    to stdout as it is generated, without the prompt; a summary and progress go to stderr. A model without a tokenizer
    takes --ids and prints ids. Text goes on until -n, an end token, --stop or the end of the context.
    """

    def work() -> None:
        from waste.cli.launch import run_to_end
        from waste.cli.progress import ProgressDisplay
        from waste.cli.source import read_prompt
        from waste.cli.transcript import Transcript
        from waste.engine import Engine
        from waste.model.sampling import SamplingParams

        sampling = SamplingParams(temperature, top_k, top_p, seed, logprobs)
        settings = resolve_settings(preset, ram, trunk, experts, assignments)
        source = read_prompt(prompt, file=file, ids=ids, context=settings.context)
        if not source:
            # The engine says so too, but only once it is open.
            raise InputError("the prompt is empty; give at least one token")
        report = min(max_tokens, settings.context) * (TOKEN_BYTES + ALTERNATIVE_BYTES * (logprobs or 0))
        settings = with_reserve(settings, held_bytes(source) + report + traced_bytes(timeline))
        transcript = Transcript(as_json=as_json)
        with traced(timeline) as recorded, ProgressDisplay() as progress:

            def interrupt() -> None:
                progress.clear()
                transcript.interrupt()

            engine = Engine(model, settings, progress=progress)
            engine.watch(recorded)
            ask = partial(engine.generate, sampling=sampling, max_tokens=max_tokens, stop=stop or [])
            run_to_end(_stream(engine, ask, source, transcript, progress), on_interrupt=interrupt)

    return work


async def _stream(
    engine: Engine,
    ask: Callable[..., Generation],
    source: Prompt,
    transcript: Transcript,
    progress: ProgressDisplay,
) -> None:
    """Show what `ask`, the engine's `generate`, makes of the prompt."""
    async with engine:
        # Not on the loop: a long text takes its time.
        ids = await asyncio.to_thread(engine.encode, source, room=engine.context)
        transcript.begin(engine, ids)
        progress.count_bytes(lambda: sum(engine.stats().bytes_read.values()))
        progress("prompt tokens", 0, len(ids))
        try:
            async with aclosing(ask(ids, progress=partial(progress, "prompt tokens"))) as tokens:
                async for token in tokens:
                    progress.clear()
                    transcript.add(token)
        except WasteError:
            transcript.break_off()
            raise
        transcript.finish()

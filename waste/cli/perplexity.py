"""`waste perplexity`: how well a model predicts a text."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
)
from waste.errors import InputError, ModelError

if TYPE_CHECKING:
    from waste.cli.progress import ProgressDisplay
    from waste.engine import Engine
    from waste.perplexity import Evaluation, Ids

    Documents = Sequence[Ids]

MAX_IDS_BYTES = 8 << 20
"""Two million ids; parsed before the engine is open, they stay below what any plan counts for the interpreter."""


def perplexity(
    model: ModelArgument,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A UTF-8 text, scored as one document.")] = None,
    ids_file: Annotated[
        str | None, typer.Option("--ids-file", metavar="F.json", help="A list of documents, each a list of ids.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Score the first N documents [default: all].")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=2, metavar="N", help="Cut each document after N tokens.")
    ] = None,
    preset: PresetOption = None,
    ram: RamOption = None,
    trunk: TrunkOption = None,
    experts: ExpertsOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Say how well a model predicts a text: loss in nats a token, and perplexity.

    FILE gets the BOS token in front; ids are taken as they are, each document scored alone from its first token on.
    Documents longer than the context are cut into windows of it, those of less than two tokens left out.
    """

    def work() -> None:
        from waste.cli.launch import run_to_end
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.engine import Engine
        from waste.perplexity import Evaluation, choose_documents

        settings = resolve_settings(preset, ram, trunk, experts, assignments)
        source = _read(file, ids_file)
        choose = partial(choose_documents, limit=limit, max_tokens=max_tokens)
        if not isinstance(source, str):
            source = choose(source)
        with ProgressDisplay() as progress:
            engine = Engine(model, settings, progress=progress)
            evaluation = Evaluation(engine, partial(progress, "predictions"))

            def interrupt() -> None:
                progress.clear()
                if evaluation.scores:
                    print(f"interrupted; so far {_as_line(_as_object(evaluation))}", file=sys.stderr)

            run_to_end(_score(engine, source, choose, evaluation, progress), on_interrupt=interrupt)
        found = {"model": str(engine.model.path), **_as_object(evaluation), "stats": engine.stats().as_dict()}
        if as_json:
            print_json(found)
        else:
            write_text(_as_text(engine, found))

    return work


def _read(file: str | None, ids_file: str | None) -> str | Documents:
    """The text or the documents, whichever was given. Raises InputError."""
    from waste.cli.source import read_source

    if (file is None) == (ids_file is None):
        found = "both are given" if file is not None else "neither is given"
        raise InputError(f"what to predict is a text in FILE or ids in --ids-file; {found}, give one of them")
    if ids_file is not None:
        return read_documents(Path(ids_file))
    text = read_source(None, file=file)
    assert isinstance(text, str)
    return text


def read_documents(path: Path) -> Documents:
    """The documents of an ids file, int32; how large an id may be is the model's to say.

    Raises InputError naming the file and what is wrong with it.
    """
    import numpy as np

    from waste.io.jsonfile import read_json, shown

    try:
        content = read_json(path, max_bytes=MAX_IDS_BYTES, unique_keys=False)
    except ModelError as error:
        raise InputError(str(error)) from None
    if not isinstance(content, list):
        raise InputError(f"{path} holds {shown(content)}, expected a list of documents")
    documents = []
    for number, document in enumerate(content):
        if not isinstance(document, list):
            raise InputError(f"{path}: document {number} is {shown(document)}, expected a list of ids")
        for position, token in enumerate(document):
            if type(token) is not int or not 0 <= token < 1 << 31:
                raise InputError(f"{path}: document {number} has {shown(token)} at position {position}, expected an id")
        documents.append(np.array(document, np.int32))
    return documents


async def _score(
    engine: Engine,
    source: str | Documents,
    choose: Callable[[Documents], Documents],
    evaluation: Evaluation,
    progress: ProgressDisplay,
) -> None:
    async with engine:
        documents = source
        if isinstance(documents, str):
            if engine.model.tokenizer is None:
                raise InputError(f"{engine.model.path} has no tokenizer; give ids with --ids-file instead of a text")
            # Not on the loop: a long text takes its time.
            documents = choose([await asyncio.to_thread(engine.encode, documents)])
        progress.count_bytes(lambda: sum(engine.stats().bytes_read.values()))
        await evaluation.run(documents)


def _as_object(evaluation: Evaluation) -> dict[str, Any]:
    from waste.perplexity import total

    score = total(evaluation.scores)
    return {
        "documents": len(evaluation.scores),
        "predictions": score.predictions,
        "nats": score.nats,
        "loss": score.loss,
        "perplexity": score.perplexity if math.isfinite(score.perplexity) else None,
        "seconds": evaluation.seconds,
        "scores": [{"predictions": each.predictions, "nats": each.nats} for each in evaluation.scores],
    }


def _as_line(found: dict[str, Any]) -> str:
    # As infinite as the model is wrong: no number of JSON or float64.
    size = "beyond 1e307" if found["perplexity"] is None else f"{found['perplexity']:.4f}"
    plural = "" if found["documents"] == 1 else "s"
    return (
        f"loss {found['loss']:.5f} nats a token, perplexity {size}: "
        f"{found['predictions']:,} predictions in {found['documents']:,} document{plural}"
    )


def _as_text(engine: Engine, found: dict[str, Any]) -> str:
    from waste.cli.output import summarize

    return f"{_as_line(found)}\n{found['seconds']:.2f} s | {summarize(engine.stats())}\n"

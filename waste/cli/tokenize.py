"""`waste tokenize` and `waste detokenize`: text to ids and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from waste.cli.options import FileOption, JsonOption, ModelArgument, parse_ids
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.model.tokenizer import Tokenizer


def tokenize(
    model: ModelArgument,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text.")] = None,
    file: FileOption = None,
    special: Annotated[
        bool, typer.Option("--special", help="Let names of special tokens become these, as in a chat's own markup.")
    ] = False,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Print a text's token ids, as --ids takes them.

    The text is TEXT, --file or standard input, to the last byte. No BOS is put in front, as `run` and `eval` would.
    """

    def work() -> None:
        from waste.cli.output import print_json, write_text
        from waste.cli.source import read_source

        content = read_source(text, file=file)
        assert isinstance(content, str)
        tokenizer = _load(model)
        ids = tokenizer.encode_special(content) if special else tokenizer.encode(content)
        if as_json:
            print_json({"ids": ids, "texts": [tokenizer.decode([token]) for token in ids], "count": len(ids)})
        else:
            write_text(",".join(map(str, ids)) + "\n")

    return work


def detokenize(
    model: ModelArgument,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="IDS...", help="Token ids, with spaces or commas between.")
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Print the text of token ids, given as arguments or through a pipe.

    The bytes are exactly the tokens'; a terminal gets a line break at the end.
    """

    def work() -> None:
        from waste.cli.output import print_json
        from waste.cli.source import read_piped

        wanted = parse_ids(" ".join(ids) if ids else read_piped())
        tokenizer = _load(model)
        content = b"".join(map(tokenizer.token_bytes, wanted))
        if as_json:
            print_json({"text": content.decode(errors="replace"), "ids": wanted})
            return
        sys.stdout.buffer.write(content + (b"\n" if sys.stdout.isatty() else b""))
        sys.stdout.flush()

    return work


def _load(model: str) -> Tokenizer:
    """The model's tokenizer; its weights are looked at as little as can be."""
    from waste.model.bundle import load_bundle

    bundle = load_bundle(model)
    if bundle.tokenizer is None:
        raise InputError(f"{bundle.path} has no tokenizer")
    return bundle.tokenizer

"""`waste fetch`: a model from a hub."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waste.cli.options import JsonOption
from waste.errors import InputError

if TYPE_CHECKING:
    from waste.convert.fetch import Fetched


def fetch(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="The repository on the hub, such as owner/name.")],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="The folder to put the model in, or one to go on with.")],
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="R", help="A branch, tag or commit [default: main].")
    ] = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Fetch a checkpoint or a container from a Hugging Face hub, only what is needed to run it.

    Only files in the repository's root folder are looked at. Sizes and hashes are compared with the hub's, also of what
    DEST holds; what differs is fetched and replaced. A fetch that was interrupted goes on where it stopped when the
    same command is given again, after reading all that is there to compare it; until the end DEST holds a folder called
    FETCHING. HF_ENDPOINT and HF_TOKEN are respected.
    """

    def work() -> None:
        import logging

        from waste.cli.interrupt import INTERRUPTION
        from waste.cli.output import print_json, write_text
        from waste.cli.progress import ProgressDisplay
        from waste.convert.fetch import Fetcher, open_hub
        from waste.convert.jobs import StoppedError

        if not dest:
            raise InputError("DEST is empty; expected a folder's name, such as . for this one")
        hub = open_hub(repo, revision)
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # advice about tokens would tear the bar
        with ProgressDisplay() as progress:
            fetcher = Fetcher(hub, Path(dest).expanduser())
            fetcher.progress = progress
            try:
                with INTERRUPTION.calls(fetcher.stop):
                    done = fetcher.run()
            except StoppedError:
                progress.clear()
                print("waste: interrupted; the same command goes on where this one stopped", file=sys.stderr)
                raise KeyboardInterrupt from None
        found = _describe(done, repo, dest)
        if as_json:
            print_json(found)
        else:
            write_text(_as_text(found))

    return work


def _describe(done: Fetched, repo: str, dest: str) -> dict[str, Any]:
    return {
        "repo": repo,
        "commit": done.commit,
        "dest": dest,
        "kind": done.kind,
        "files": done.files,
        "bytes": done.total_bytes,
        "received_bytes": done.received_bytes,
        "seconds": round(done.seconds, 3),
    }


def _as_text(found: dict[str, Any]) -> str:
    from waste.cli.output import format_bytes

    return (
        f"{found['dest']}: {found['kind']}, {found['files']} files, {format_bytes(found['bytes'])}, all as the hub "
        f"lists them; {format_bytes(found['received_bytes'])} received in {found['seconds']:,.1f} s\n"
    )

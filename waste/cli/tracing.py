"""`--timeline FILE`: what an engine did, written when the command ends, however it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waste.timeline import Timeline

TimelineOption = Annotated[
    str | None,
    typer.Option("--timeline", metavar="FILE", help="Write a trace of reads, threads and layers, for Perfetto."),
]


@contextmanager
def traced(path: str | None) -> Iterator[Timeline | None]:
    """A timeline to record into, None without a path. Afterwards the file is there, if the model has begun to work.

    An error or an interrupt inside is no reason not to write. Raises InputError for a file that cannot be written,
    before anything has been done for it, and WasteError if it then cannot be.
    """
    if path is None:
        yield None
        return
    from waste.cli.array_files import OutputFile
    from waste.timeline import Timeline

    OutputFile(Path(path)).discard()
    timeline = Timeline()
    try:
        yield timeline
    finally:
        if timeline.has_steps:
            write_whole(path, timeline.pieces())
        if timeline.dropped:
            print(
                f"waste: {path} has the first {timeline.events:,} events; {timeline.dropped:,} more were left out",
                file=sys.stderr,
            )


def write_whole(path: str, pieces: Iterator[bytes]) -> None:
    """A file that appears when it is whole, or not at all. Raises InputError or WasteError."""
    from waste.cli.array_files import OutputFile

    file = OutputFile(Path(path))
    try:
        for piece in pieces:
            file.write(piece)
        file.finish()
    finally:
        file.discard()


def traced_bytes(path: str | None) -> int:
    """What is recorded may take so much memory, for which a plan has to leave room."""
    if path is None:
        return 0
    from waste.timeline import MOST_BYTES

    return MOST_BYTES

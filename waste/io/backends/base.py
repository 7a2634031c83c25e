"""What a read backend is: it takes reads, and says when each has returned. It decides nothing about order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from waste.errors import ReadError
from waste.io.files import FileSet


@dataclass(frozen=True, slots=True)
class ReadOp:
    """One read for the device.

    token: the caller's number for it, unique among the reads in flight.
    file, offset, length: what to read; `file` indexes the `FileSet`.
    need: how many bytes from `offset` must arrive; the rest up to `length` may lie past the end of the file.
    buffer: writable, exactly `length` bytes. Where direct reads are wanted, offset, length and the buffer's
        address are multiples of the `FileSet`'s alignment.

    Raises ValueError if the numbers do not fit each other.
    """

    token: int
    file: int
    offset: int
    length: int
    need: int
    buffer: memoryview

    def __post_init__(self) -> None:
        if not 0 < self.need <= self.length or self.offset < 0 or self.buffer.nbytes != self.length:
            raise ValueError(
                f"a read of {self.length} bytes at {self.offset} cannot need {self.need} bytes "
                f"in a buffer of {self.buffer.nbytes}"
            )


@dataclass(frozen=True, slots=True)
class Completion:
    """A read has returned: all the bytes it needs are in its buffer, or `error` says why not."""

    token: int
    error: ReadError | None


Deliver = Callable[[list[Completion]], None]


@dataclass(frozen=True, slots=True)
class BackendStatistics:
    """Counts since `start`. `bytes_read` is what the device returned, blocks past the wanted bytes included."""

    submitted: int
    completed: int
    failed: int
    bytes_read: int
    peak_in_flight: int
    wakeups: int
    direct_obtained: bool

    @property
    def in_flight(self) -> int:
        """Reads submitted and not yet delivered."""
        return self.submitted - self.completed


class Backend(Protocol):
    """Carries out reads for one event loop. Every read submitted is delivered exactly once."""

    async def start(self, files: FileSet, deliver: Deliver) -> None:
        """Open `files` and get ready. The backend owns `files` from here on and closes them.

        `deliver` is called on this event loop's thread, with everything that has returned since the last time.

        Raises ModelError or ReadError if a file cannot be opened, UnsupportedError if direct reads are
        demanded and refused, BudgetError if the system refuses the threads.
        """
        ...

    def submit(self, ops: Sequence[ReadOp]) -> None:
        """Hand reads to the device. Never blocks; call it on the event loop's thread.

        Raises ClosedError before `start` and after `close`, ValueError if an op's file does not exist; then
        none of the reads is begun.
        """
        ...

    async def close(self) -> None:
        """Wait for the reads the device has begun, end every thread, then close the files.

        Reads not begun are delivered with an error. May be called twice, and after a failed `start`.
        If this call is cancelled, the closing still happens as soon as the device returns.
        """
        ...

    def statistics(self) -> BackendStatistics: ...


@runtime_checkable
class TakesFaults(Protocol):
    """A backend that is no real disk, and can be told what to do wrong."""

    def set_faults(self, text: str) -> None:
        """Before `start`. Raises InputError naming the part of `text` that is malformed."""
        ...

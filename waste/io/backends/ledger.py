"""The books of a read backend: what was submitted, what has returned, and its delivery in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from waste.io.backends.base import BackendStatistics, Completion, Deliver, ReadOp
from waste.io.files import FileSet


class Ledger:
    """Kept on the event loop's thread, except for `add`, which any thread may call."""

    def __init__(self) -> None:
        self._returned: deque[tuple[Completion, int]] = deque()
        self._submitted = self._completed = self._failed = 0
        self._bytes_read = self._peak_in_flight = self._wakeups = 0

    @property
    def returned(self) -> int:
        """Reads that have returned and wait to be delivered."""
        return len(self._returned)

    def submit(self, ops: Sequence[ReadOp], files: FileSet) -> None:
        """Count reads as in flight. Raises ValueError, and counts none, if a file does not exist."""
        for op in ops:
            if not 0 <= op.file < len(files.paths):
                raise ValueError(f"file {op.file} of {len(files.paths)}")
        self._submitted += len(ops)
        self._peak_in_flight = max(self._peak_in_flight, self._submitted - self._completed)

    def add(self, completion: Completion, bytes_read: int) -> None:
        """A read has returned; `deliver` will hand it over."""
        self._returned.append((completion, bytes_read))

    def deliver(self, deliver: Deliver) -> None:
        """Hand over everything that has returned, in one call or, if there is nothing, in none."""
        completions: list[Completion] = []
        while self._returned:
            completion, bytes_read = self._returned.popleft()
            completions.append(completion)
            self._bytes_read += bytes_read
            self._failed += completion.error is not None
        if completions:
            self._completed += len(completions)
            self._wakeups += 1
            deliver(completions)

    def statistics(self, *, direct_obtained: bool) -> BackendStatistics:
        """See `BackendStatistics`."""
        return BackendStatistics(
            submitted=self._submitted,
            completed=self._completed,
            failed=self._failed,
            bytes_read=self._bytes_read,
            peak_in_flight=self._peak_in_flight,
            wakeups=self._wakeups,
            direct_obtained=direct_obtained,
        )

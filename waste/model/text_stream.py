"""Text as it comes out of a model: whole characters only, and an end at the first stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from waste.errors import InputError


class Utf8Stream:
    """Bytes in any portions to text. The portions' texts add up to the whole decoded at once.

    A character that is not complete yet waits; bytes that can be no UTF-8 become U+FFFD as soon as that is certain.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        """The characters that `data` completes."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What still waited, as U+FFFD. The stream may be used again afterwards."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Finds the first stop string in text that comes in any portions, and lets pass what lies before it.

    The first to be complete counts; of several that end at the same character, the longest. So the result does not
    depend on the portions. Text that may yet turn out to be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise InputError(f"stop is {stops!r}, expected a list of strings that are not empty")
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """What may be shown now; nothing any more once a stop string was found (`matched`)."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        kept = self._held_length(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _held_length(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class TextStream:
    """Token bytes to text that can be shown at once: whole characters, up to the first stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._characters = Utf8Stream()
        self._stops = StopStrings(stops)

    @property
    def matched(self) -> str | None:
        """The stop string that was found, or None. Nothing comes out after it."""
        return self._stops.matched

    def push(self, data: bytes) -> str:
        """The text that `data` makes certain."""
        return self._stops.push(self._characters.push(data))

    def finish(self) -> str:
        """The text that still waited for more."""
        return self._stops.push(self._characters.finish()) + self._stops.finish()

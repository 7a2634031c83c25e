"""Streamed text adds up to the whole, never splits a character, and ends at the first stop string."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waste.errors import InputError
from waste.model.text_stream import StopStrings, TextStream, Utf8Stream

# Few letters, so that stop strings occur, overlap and almost occur.
TEXT = st.text("abé😀", max_size=24)
STOPS = st.lists(st.text("abé😀", min_size=1, max_size=5), max_size=4)
BYTES = st.one_of(st.binary(max_size=24), TEXT.map(str.encode))
CUTS = st.lists(st.integers(0, 100), max_size=12)


def portions(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at these positions (modulo its length), empty portions included."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Text before the first stop string to be complete, and that string: read character by character."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(data=BYTES, cuts=CUTS)
def test_portions_add_up(data: bytes, cuts: list[int]) -> None:
    stream = Utf8Stream()
    shown = [stream.push(portion) for portion in portions(data, cuts)]
    assert "".join(shown) + stream.finish() == data.decode(errors="replace")


@given(text=TEXT, cuts=CUTS)
def test_no_character_is_split(text: str, cuts: list[int]) -> None:
    stream = Utf8Stream()
    received = 0
    shown = ""
    for portion in portions(text.encode(), cuts):
        received += len(portion)
        shown += stream.push(portion)
        # Exactly the characters that are complete by now: none is split, none waits without need.
        assert shown == text.encode()[:received].decode(errors="ignore")
    assert stream.finish() == ""


def test_invalid_bytes_end_as_replacement_characters() -> None:
    stream = Utf8Stream()
    assert [stream.push(bytes([byte])) for byte in b"\xf0\x9fA\xffB"] == ["", "", "�A", "�", "B"]
    assert stream.push(b"\xe2\x82") == ""
    assert stream.finish() == "�"
    assert stream.finish() == ""


@given(text=TEXT, stops=STOPS, cuts=CUTS)
def test_stops_do_not_depend_on_the_portions(text: str, stops: list[str], cuts: list[int]) -> None:
    stream = TextStream(stops)
    shown = ""
    expected, stop = first_stop(text, stops)
    for portion in portions(text.encode(), cuts):
        shown += stream.push(portion)
        assert expected.startswith(shown)
    assert shown + stream.finish() == expected
    assert stream.matched == stop


@given(text=TEXT, stops=STOPS)
def test_nothing_is_held_without_need(text: str, stops: list[str]) -> None:
    stream = StopStrings(stops)
    shown = ""
    for end, character in enumerate(text, start=1):
        shown += stream.push(character)
        if stream.matched is None:
            held = text[len(shown) : end]
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_across_three_portions() -> None:
    stream = StopStrings(["\n\nQ:"])
    assert [stream.push(text) for text in ("Yes.", "\n", "\nQ", ": more")] == ["Yes.", "", "", ""]
    assert stream.matched == "\n\nQ:"
    assert stream.push("anything") == ""
    assert stream.finish() == ""


def test_what_was_held_is_released_when_it_was_no_stop() -> None:
    stream = StopStrings(["\n\nQ:"])
    assert [stream.push(text) for text in ("a\n", "\n", "b\n")] == ["a", "", "\n\nb"]
    assert stream.finish() == "\n"
    assert stream.matched is None


def test_an_unfinished_character_is_released_at_the_end() -> None:
    stream = TextStream(["x�y", "�"])
    assert stream.push("x€".encode()[:-1]) == ""
    assert stream.finish() == "x"
    assert stream.matched == "�"


@pytest.mark.parametrize("stops", [[""], ["a", ""], "end", [3]])
def test_stops_that_make_no_sense(stops: list[str]) -> None:
    with pytest.raises(InputError, match=r"stop is .*expected a list of strings"):
        StopStrings(stops)

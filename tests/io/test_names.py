"""Which names are files of a folder itself, and how any name is shown."""

from __future__ import annotations

import pytest

from waste.io.names import is_plain, legible


@pytest.mark.parametrize(
    "name", ["a", "a.json", "model-00001-of-00002.safetensors", ".hidden", "with blank", "ä" * 200]
)
def test_plain_names(name: str) -> None:
    assert is_plain(name)
    assert legible(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "a\\b", "C:a", "a\0", "a\n", "\x1b[0m", "\ud800", "\u202e", "x" * 201, 3, None]
)
def test_names_that_are_not_plain(name: object) -> None:
    assert not is_plain(name)


def test_what_a_terminal_would_obey_is_quoted() -> None:
    assert legible("a\x1b[31m") == r"'a\x1b[31m'"
    assert len(legible("x" * 5000)) < 130
    legible("\ud800").encode()

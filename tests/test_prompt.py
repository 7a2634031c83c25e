"""Text in pieces gives the tokens of the whole, and text that cannot fit is refused before its tokens are made."""

from __future__ import annotations

import random
import tracemalloc

import pytest

import waste.prompt
from waste.errors import ContextLengthError
from waste.model import tokenizer as tokenizers
from waste.model.bundle import load_bundle
from waste.model.tokenizer import Tokenizer
from waste.prompt import encode_within, longest_token_bytes, pieces

PARTS = (
    "a", "Bc", " ", "  ", "\n", "\r\n", "\t", "\x1c", "\x1f", "\x85", "\xa0", "\x0b", "!", "-", "'s", "'ll", "12", "é",
    "漢", "\u2028", "\u3000", "\n  ", "\ud83d\ude00", "\ud800", "x" * 30, "x" * 70, " " * 70, "\n" * 50,
)  # fmt: skip


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    found = load_bundle("demo").tokenizer
    assert found is not None
    return found


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waste.prompt, "PIECE_CHARACTERS", 40)
    for module in (waste.prompt, tokenizers):
        monkeypatch.setattr(module, "MAX_RUN_CHARACTERS", 60)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_give_the_tokens_of_the_whole(demo: Tokenizer) -> None:
    draw = random.Random(7)
    for _ in range(3000):
        text = "".join(draw.choice(PARTS) for _ in range(draw.randrange(80)))
        assert encode_within(demo, text, room=1 << 20, context=1 << 20) == demo.encode(text)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("part", ["word ", "line\n", "a\n  b\n  ", "1\t2\t", "漢", "x", " ", "\n"])
def test_pieces_are_small_and_all_of_it(part: str) -> None:
    text = part * 500
    found = list(pieces(text))
    assert "".join(found) == text
    assert max(map(len, found)) <= 60


def test_what_fits_exactly_is_taken(demo: Tokenizer) -> None:
    text = "In the beginning God created the heaven and the earth. " * 500
    ids = demo.encode(text)
    assert encode_within(demo, text, room=len(ids), context=1 << 20) == ids
    with pytest.raises(ContextLengthError, match=r"tokens or more.*context of 4096.*positions left"):
        encode_within(demo, text, room=len(ids) - 1, context=4096)


@pytest.mark.parametrize("text", ["word " * 4_000_000, "x" * 20_000_000, "é " * 5_000_000])
def test_what_cannot_fit_is_never_tokenized(demo: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "encode", None)
    tracemalloc.start()
    try:
        with pytest.raises(ContextLengthError):
            encode_within(demo, text, room=4096, context=4096)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_what_might_fit_is_tokenized_no_further_than_it_does(demo: Tokenizer) -> None:
    text = "q " * 8192  # as many bytes as long tokens would bring into the context
    assert len(text) // longest_token_bytes(demo) < 4096
    encoded: list[str] = []
    real = demo.encode

    class Counting:
        vocab_size, token_bytes = demo.vocab_size, demo.token_bytes

        def encode(self, piece: str) -> list[int]:
            encoded.append(piece)
            return real(piece)

    with pytest.raises(ContextLengthError):
        encode_within(Counting(), text * 2, room=4096, context=4096)  # type: ignore[arg-type]
    assert len(encoded) == 1

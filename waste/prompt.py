"""Text to ids without more memory than the ids of one context: refused by its length alone, or piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterator

from waste.errors import ContextLengthError
from waste.model.tokenizer import MAX_RUN_CHARACTERS, Tokenizer

PIECE_CHARACTERS = 16_384
# Where no token of the tokenizer's expression reaches across, whatever comes before and after: in front of white
# space that ends a word, and behind the last line break of white space. Its white space does not include U+001C to
# U+001F, Python's does.
_BOUNDARY = re.compile(r"(?<=\S)(?=[^\S\r\n\x1c-\x1f])|(?<=[\r\n])(?=[^\S\r\n\x1c-\x1f]*\S)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RUN = re.compile(r"[^\S\x1c-\x1f]+|[\S\x1c-\x1f]+")


def encode_within(tokenizer: Tokenizer, text: str, *, room: int, context: int) -> list[int]:
    """The ids of `text`, as the tokenizer gives them all at once. room: how many of the context's positions are free.

    Raises ContextLengthError for more than `room` of them, without having made many more.
    """
    if _SURROGATE.search(text):
        # As the tokenizer would: only then characters can be counted.
        text = text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")
    # At least so many, if each were the longest there is.
    fewest = -(-_utf8_bytes(text) // longest_token_bytes(tokenizer))
    ids: list[int] = []
    if fewest <= room:
        for piece in pieces(text):
            ids += tokenizer.encode(piece)
            if len(ids) > room:
                break
    if max(fewest, len(ids)) > room:
        raise ContextLengthError(
            f"the text of {len(text):,} characters has {max(fewest, len(ids)):,} tokens or more, and of a context of "
            f"{context} there are {max(0, room)} positions left; shorten the prompt or raise the setting `context`"
        )
    return ids


def longest_token_bytes(tokenizer: Tokenizer) -> int:
    """Of all tokens that text can become."""
    return max((len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)), default=1)


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces that give its tokens when each is encoded alone; longer ones only where words are."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS:
        end = _cut(text, begin)
        yield text[begin:end]
        begin = end
    if begin < len(text):
        yield text[begin:]


def _cut(text: str, begin: int) -> int:
    """Where the piece from `begin` on may end."""
    cuts = [found.start() for found in _BOUNDARY.finditer(text, begin + 1, begin + PIECE_CHARACTERS)]
    if cuts:
        return cuts[-1]
    # A long run of white space, or of anything else: the tokenizer itself cuts those after so many characters.
    for run in _RUN.finditer(text, begin):
        if run.end() - run.start() > MAX_RUN_CHARACTERS:
            return run.start() + MAX_RUN_CHARACTERS
        if run.end() - begin > PIECE_CHARACTERS:
            found = _BOUNDARY.search(text, max(begin + 1, run.start()), run.end() + MAX_RUN_CHARACTERS)
            if found is not None:
                return found.start()
    return len(text)


def _utf8_bytes(text: str) -> int:
    """Bytes of the text in UTF-8, a piece at a time."""
    if text.isascii():
        return len(text)
    parts = (text[begin : begin + PIECE_CHARACTERS] for begin in range(0, len(text), PIECE_CHARACTERS))
    return sum(len(part.encode()) for part in parts)

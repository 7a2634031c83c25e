"""Text to ids and back: byte-pair encoding as the Kimi models use it, with special ids kept apart from content.

Text that a person typed never becomes a special id, whatever it spells. Structure (a chat format's own markup) is
encoded separately, with specials allowed. Segments are encoded one by one and joined as ids: joining the texts first
would give other tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import tiktoken

from waste.errors import InputError, ModelError
from waste.io.jsonfile import read_json
from waste.model.ranks import read_ranks

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
CONTAINER_RANKS_FILE = "tokenizer.model"
CONTAINER_SPECIALS_FILE = "specials.json"
MAX_CONFIG_BYTES = 16 << 20
# The released vocabularies reserve this many ids after the last rank; the last two lie beyond the embedding.
RESERVED_IDS = 258
# The regular expression behind the encoder gives up (it panics) on a run of a million spaces, and takes a time that
# grows faster than a run's length. The released tokenizer cuts runs of white space, or of anything else, after this
# many characters, so cutting there gives its tokens; text without such runs is not touched.
MAX_RUN_CHARACTERS = 25_000

_LETTERS_BUT_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LETTERS_BUT_UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS_BUT_LOWER}*{_LETTERS_BUT_UPPER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS_BUT_LOWER}+{_LETTERS_BUT_UPPER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# Runs as the encoder's expression sees them: unlike Python's, its white space does not include U+001C to U+001F.
_RUN = re.compile(r"[^\S\x1c-\x1f]+|[\S\x1c-\x1f]+")


class Tokenizer:
    """A vocabulary: ordinary tokens 0 to `ranks` - 1, special tokens from there on. Every id has a text.

    `specials` names some of the special ids, the rest are `<|reserved_token_ID|>`. Only ids below `vocab_size` are
    ever produced; `decode` also knows the reserved ids beyond it.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        specials: Mapping[int, str],
        *,
        vocab_size: int,
        bos_id: int | None = None,
        eos_id: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self.eos_id = eos_id
        self._tokens = tokens
        self._first_special = len(tokens)
        last = max(vocab_size, len(tokens) + RESERVED_IDS)
        names = {i: specials.get(i, f"<|reserved_token_{i}|>") for i in range(len(tokens), last)}
        self._special_bytes = {i: name.encode() for i, name in names.items()}
        self._special_ids = {name: i for i, name in names.items() if i < vocab_size}
        longest_first = sorted(map(re.escape, self._special_ids), key=len, reverse=True)
        self._special_names = re.compile(f"({'|'.join(longest_first)})") if longest_first else None
        # The encoder never hears of the special tokens, so content cannot become one.
        self._encoding = tiktoken.Encoding(
            "waste",
            pat_str=PATTERN,
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={},
        )

    def encode(self, text: str) -> list[int]:
        """Ids of content. No special id is ever among them; a lone surrogate counts as U+FFFD."""
        ids: list[int] = []
        for piece in _pieces(_well_formed(text)):
            ids += self._encoding.encode_ordinary(piece)
        return ids

    def encode_special(self, text: str) -> list[int]:
        """Ids of structure: the name of a special token becomes its id, what lies between is encoded as content."""
        if self._special_names is None:
            return self.encode(text)
        ids: list[int] = []
        for part in self._special_names.split(text):
            special = self._special_ids.get(part)
            ids += self.encode(part) if special is None else [special]
        return ids

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of (text, is structure) segments, each encoded alone."""
        ids: list[int] = []
        for text, is_structure in segments:
            ids += self.encode_special(text) if is_structure else self.encode(text)
        return ids

    def special_id(self, name: str) -> int | None:
        """The id of the special token called `name`, or None."""
        return self._special_ids.get(name)

    def is_special(self, token_id: int) -> bool:
        """Whether this id is structure rather than content."""
        return token_id in self._special_bytes

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, its name in UTF-8 for a special one. Raises `InputError` for an unknown id."""
        if 0 <= token_id < self._first_special:
            return self._tokens[token_id]
        if token_id in self._special_bytes:
            return self._special_bytes[token_id]
        raise InputError(
            f"token id {token_id} is unknown, expected 0 to {self._first_special + len(self._special_bytes) - 1}"
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens as their names; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


def load_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer of a model folder, or None where it has none (ids in, ids out).

    Raises `ModelError` (`DamagedError` for a damaged file) naming file and line.
    """
    path = folder / RANKS_FILE
    config_path = folder / CONFIG_FILE
    if not path.exists():
        return None
    tokens = read_ranks(path, max_tokens=vocab_size)
    config = _read_config(config_path)
    specials = _named_specials(config, config_path, len(tokens), max(vocab_size, len(tokens) + RESERVED_IDS))
    ids = {name: i for i, name in specials.items()}
    return Tokenizer(
        tokens,
        specials,
        vocab_size=vocab_size,
        bos_id=_role_id(config, config_path, "bos_token", ids, vocab_size),
        eos_id=_role_id(config, config_path, "eos_token", ids, vocab_size),
    )


def load_container_tokenizer(
    folder: Path, vocab_size: int, *, bos_id: int | None, eos_id: int | None
) -> Tokenizer | None:
    """The tokenizer of a `.waste` container, or None where it has none; its roles come from the model's config.

    Raises as `load_tokenizer`.
    """
    path, specials_path = folder / CONTAINER_RANKS_FILE, folder / CONTAINER_SPECIALS_FILE
    if not path.exists():
        return None
    tokens = read_ranks(path, max_tokens=vocab_size)
    first, end = len(tokens), max(vocab_size, len(tokens) + RESERVED_IDS)
    entries = read_json(specials_path, max_bytes=MAX_CONFIG_BYTES, unique_keys=True) if specials_path.exists() else []
    if not isinstance(entries, list):
        raise ModelError(f"{specials_path} holds a {type(entries).__name__}, expected a list")
    specials: dict[int, str] = {}
    for position, entry in enumerate(entries):
        token_id, text = (entry.get("id"), entry.get("text")) if isinstance(entry, dict) else (None, None)
        if type(token_id) is not int or not first <= token_id < end or token_id in specials:
            raise ModelError(f"{specials_path}: [{position}].id is not a special id of its own, {first} to {end - 1}")
        if not isinstance(text, str) or not text:
            raise ModelError(f"{specials_path}: [{position}].text is missing, expected the token's text")
        specials[token_id] = text
    _check_clashes(specials, specials_path, "id ", first, end)
    return Tokenizer(tokens, specials, vocab_size=vocab_size, bos_id=bos_id, eos_id=eos_id)


def _pieces(text: str) -> Iterator[str]:
    """`text` cut inside every run of white space or of anything else that is too long for the encoder."""
    if len(text) <= MAX_RUN_CHARACTERS:
        if text:
            yield text
        return
    start = 0
    for run in _RUN.finditer(text):
        for cut in range(run.start() + MAX_RUN_CHARACTERS, run.end(), MAX_RUN_CHARACTERS):
            yield text[start:cut]
            start = cut
    yield text[start:]


def _well_formed(text: str) -> str:
    """Surrogate pairs joined and lone surrogates replaced: they have no UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")


def _read_config(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    config = read_json(path, max_bytes=MAX_CONFIG_BYTES, unique_keys=True)
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds a {type(config).__name__}, expected an object")
    return config


def _named_specials(config: Mapping[str, object], path: Path, first: int, end: int) -> dict[int, str]:
    """`added_tokens_decoder`, checked: ids from `first` to `end` - 1, and no name used twice."""
    entries = config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise ModelError(f"{path}: added_tokens_decoder is not an object")
    specials: dict[int, str] = {}
    for key, entry in entries.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content:
            raise ModelError(f"{path}: added_tokens_decoder.{key} has no content, expected the token's text")
        if not (key.isascii() and key.isdigit() and len(key) < 10 and first <= int(key) < end):
            raise ModelError(
                f"{path}: added_tokens_decoder.{key} ({content!r}) is not a special id: "
                f"{RANKS_FILE} has {first:,} tokens, so those are {first} to {end - 1}"
            )
        specials[int(key)] = content
    _check_clashes(specials, path, "added_tokens_decoder.", first, end)
    return specials


def _check_clashes(specials: Mapping[int, str], path: Path, what: str, first: int, end: int) -> None:
    holders = {f"<|reserved_token_{i}|>": i for i in range(first, end) if i not in specials}
    for token_id, name in specials.items():
        if name in holders:
            raise ModelError(
                f"{path}: {what}{token_id} is named {name!r}, and so is {holders[name]}; "
                "expected every special token under a name of its own"
            )
        holders[name] = token_id


def _role_id(config: Mapping[str, object], path: Path, key: str, ids: Mapping[str, int], vocab_size: int) -> int | None:
    """The id of `bos_token` or `eos_token`, given as a name or as an object with its `content`."""
    value = config.get(key)
    name = value.get("content") if isinstance(value, dict) else value
    if name is None:
        return None
    token_id = ids.get(name) if isinstance(name, str) else None
    if token_id is None or token_id >= vocab_size:
        raise ModelError(f"{path}: {key} is {name!r}, expected a name from added_tokens_decoder")
    return token_id

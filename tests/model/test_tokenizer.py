"""Text to ids and back, and every way in which a tokenizer's files can be wrong."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.configs import DEMO
from waste.errors import DamagedError, InputError, ModelError
from waste.model.tokenizer import MAX_RUN_CHARACTERS, PATTERN, Tokenizer, load_tokenizer

VOCAB = 2048
BYTES = [bytes([value]) for value in range(256)]


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    tokenizer = load_tokenizer(DEMO, VOCAB)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def plain() -> tiktoken.Encoding:
    """The demo's vocabulary in tiktoken alone, read independently."""
    ranks = {}
    for line in (DEMO / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding("plain", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"[BOS]": 1792})


def write(folder: Path, tokens: list[bytes], config: object = None) -> Path:
    """A model folder with these tokens in rank order."""
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "prompt"), [("genesis", "In the beginning"), ("bug", ":bug: n."), ("pass", "And it came to pass")]
)
def test_the_demo_prompts_have_their_ids(demo: Tokenizer, name: str, prompt: str) -> None:
    with np.load(DEMO / "golden.npz") as golden:
        ids, greedy = golden[f"{name}_ids"].tolist(), golden[f"{name}_greedy"].tolist()
    assert demo.bos_id == 1792
    assert demo.eos_id == 1793
    assert [demo.bos_id, *demo.encode(prompt)] == ids
    expected = json.loads((DEMO / "eval.json").read_text(encoding="utf-8"))["greedy"][prompt]
    assert (prompt + demo.decode(greedy)).startswith(expected)


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_content_comes_back_and_holds_no_special(demo: Tokenizer, plain: tiktoken.Encoding, text: str) -> None:
    ids = demo.encode(text)
    assert demo.decode(ids) == text
    assert not any(map(demo.is_special, ids))
    assert ids == plain.encode_ordinary(text)


@pytest.mark.parametrize(
    "text", ["[BOS]", "<|open|>", "a<|end_of_msg|>b", "<|reserved_token_2000|>", "<|media_pad|><|media_end|>"]
)
def test_specials_typed_by_a_person_are_text(demo: Tokenizer, text: str) -> None:
    assert not any(map(demo.is_special, demo.encode(text)))
    assert demo.decode(demo.encode(text)) == text
    structure = demo.encode_special(text)
    assert any(map(demo.is_special, structure))
    assert demo.decode(structure) == text


def test_structure_between_content(demo: Tokenizer) -> None:
    assert demo.encode_special("") == []
    assert demo.encode_special("<|open|><|sep|>") == [1795, 1797]
    assert demo.encode_special("<|open|>user<|sep|>") == [1795, *demo.encode("user"), 1797]


def test_segments_are_encoded_alone(demo: Tokenizer) -> None:
    segments = [
        ("<|open|>", True),
        ("peo", False),
        ("ple", False),
        ("<|sep|>", True),
        ("", False),
        ("<|sep|>", False),
    ]
    ids = demo.encode_segments(segments)
    assert ids == [1795, *demo.encode("peo"), *demo.encode("ple"), 1797, *demo.encode("<|sep|>")]
    assert demo.encode("peo") + demo.encode("ple") != demo.encode("people")


def test_every_id_has_a_text(demo: Tokenizer) -> None:
    for token_id in range(VOCAB):
        assert demo.token_bytes(token_id)
    assert demo.token_bytes(1794) == b"<|end_of_msg|>"
    assert demo.token_bytes(1803) == b"<|reserved_token_1803|>"
    assert demo.token_bytes(2049) == b"<|reserved_token_2049|>"
    assert [demo.is_special(i) for i in (-1, 0, 1791, 1792, 2047, 2049, 2050)] == [0, 0, 0, 1, 1, 1, 0]
    assert demo.decode(range(256)) == bytes(range(256)).decode(errors="replace")


@pytest.mark.parametrize("token_id", [-1, 2050, 10**9])
def test_an_unknown_id(demo: Tokenizer, token_id: int) -> None:
    with pytest.raises(InputError, match=rf"token id {token_id} is unknown, expected 0 to 2049"):
        demo.decode([token_id])


def test_ids_beyond_the_embedding_are_never_produced(demo: Tokenizer) -> None:
    assert demo.special_id("<|reserved_token_2047|>") == 2047
    assert demo.special_id("<|reserved_token_2048|>") is None
    assert max(demo.encode_special("<|reserved_token_2048|>")) < 1792


def test_lone_surrogates_are_replaced(demo: Tokenizer) -> None:
    assert demo.decode(demo.encode("a\ud800b")) == "a�b"
    assert demo.decode(demo.encode("\ud83d\ude00")) == "😀"


@pytest.mark.parametrize("text", [" ", "a", "A", "-", "\n", " \n", "\x1c-", "中", "1", "ก", "Aa"])
def test_endless_runs_take_seconds_at_most(demo: Tokenizer, text: str) -> None:
    text = text * (2_000_000 // len(text.encode()))
    start = time.perf_counter()
    ids = demo.encode(text)
    assert time.perf_counter() - start < 10
    assert demo.decode(ids) == text


def test_runs_up_to_the_limit_are_not_cut(demo: Tokenizer, plain: tiktoken.Encoding) -> None:
    text = ("-" * (MAX_RUN_CHARACTERS - 1) + " " * MAX_RUN_CHARACTERS + "word, ") * 3
    assert demo.encode(text) == plain.encode_ordinary(text)
    longer = "In the beginning\n" + "-" * (MAX_RUN_CHARACTERS + 2)
    cut = len(longer) - 2
    assert demo.encode(longer) == plain.encode_ordinary(longer[:cut]) + plain.encode_ordinary(longer[cut:])


def test_separators_are_no_white_space(demo: Tokenizer, plain: tiktoken.Encoding) -> None:
    """As the encoder's expression has it, so they cannot hide an endless run from the cut."""
    text = "\x1c" + "-" * MAX_RUN_CHARACTERS * 2
    cuts = (text[i : i + MAX_RUN_CHARACTERS] for i in range(0, len(text), MAX_RUN_CHARACTERS))
    assert demo.encode(text) == [token_id for piece in cuts for token_id in plain.encode_ordinary(piece)]


def test_long_text_is_encoded_as_a_whole(demo: Tokenizer, plain: tiktoken.Encoding) -> None:
    text = "And it came to pass, when the people were come to the city, it's 12345 …\n" * 10_000
    assert demo.encode(text) == plain.encode_ordinary(text)


def test_a_model_without_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path, 300) is None


def test_a_vocabulary_without_config_reserves_all_specials(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, BYTES), 512)
    assert tokenizer is not None
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert tokenizer.encode_special("a<|reserved_token_300|>") == [97, 300]


def test_no_special_ids_below_vocab_size(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, BYTES), 256)
    assert tokenizer is not None
    assert tokenizer.encode_special("<|reserved_token_256|>") == list(b"<|reserved_token_256|>")


def test_an_embedding_larger_than_the_reserve(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, BYTES), 1000)
    assert tokenizer is not None
    assert tokenizer.decode([999]) == "<|reserved_token_999|>"


def test_ranks_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, [*BYTES, b"ab"])
    lines = (tmp_path / "tiktoken.model").read_bytes().splitlines()
    (tmp_path / "tiktoken.model").write_bytes(b"\r\n".join(reversed(lines)) + b"\n\n")
    tokenizer = load_tokenizer(tmp_path, 512)
    assert tokenizer is not None
    assert tokenizer.encode("ab") == [256]


def line(token: bytes, rank: object) -> bytes:
    return base64.b64encode(token) + f" {rank}\n".encode()


GOOD = b"".join(line(token, rank) for rank, token in enumerate(BYTES))
DAMAGED = {
    "LFS stub": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-LFS pointer"),
    "not base64": (GOOD + b"a*b= 256\n", r"line 257: .*is not base64"),
    "bad padding": (GOOD + b"YWI 256\n", r"line 257: .*is not base64"),
    "no rank": (GOOD + b"YWI=\n", "line 257: found 1 fields"),
    "three fields": (GOOD + b"YWI= 256 1\n", "line 257: found 3 fields"),
    "negative rank": (GOOD + line(b"ab", -1), r"line 257: rank b'-1' is not a number"),
    "rank of many digits": (GOOD + line(b"ab", "1" * 5000), r"line 257: rank .* is not a number"),
    "rank in other digits": (GOOD + line(b"ab", "²"), r"line 257: rank .* is not a number"),
    "duplicate rank": (GOOD + line(b"ab", 7), "line 257: rank 7 was given to line 8 before"),
    "duplicate token": (GOOD + line(b"a", 256), "line 257: the same token as line 98"),
    "hole": (GOOD + line(b"ab", 258), "line 257: rank 258, but no line has rank 256"),
    "truncated": (GOOD[:-6], "line 256"),
    "missing byte": (GOOD.replace(line(b"z", 122), line(b"zz", 122)), "no token for byte 122"),
    "empty": (b"", "no token for byte 0"),
    "binary": (b"\x00\xff\x80 \x01" * 8, "line 1: "),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_ranks(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(DamagedError, match=rf"tiktoken\.model.*{message}"):
        load_tokenizer(tmp_path, 1000)


def test_more_tokens_than_the_model_has(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiktoken\.model has 256 tokens, but the model's vocab_size is 255"):
        load_tokenizer(write(tmp_path, BYTES), 255)


def test_a_file_of_absurd_size(tmp_path: Path) -> None:
    with (tmp_path / "tiktoken.model").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedError, match=r"tiktoken\.model has 1,099,511,627,776 bytes"):
        load_tokenizer(tmp_path, 1000)


def added(**entries: object) -> dict[str, object]:
    return {"added_tokens_decoder": {key[1:]: value for key, value in entries.items()}}


CONFIGS = {
    "an ordinary id": (added(_97={"content": "x"}), r"added_tokens_decoder\.97 .*256 to 513"),
    "an id beyond": (added(_514={"content": "x"}), r"added_tokens_decoder\.514 "),
    "an id of many digits": (added(**{"_" + "9" * 5000: {"content": "x"}}), "is not a special id"),
    "no number": (added(_x={"content": "x"}), r"added_tokens_decoder\.x "),
    "no content": (added(_256={}), r"added_tokens_decoder\.256 has no content"),
    "empty content": (added(_256={"content": ""}), r"added_tokens_decoder\.256 has no content"),
    "a name twice": (added(_256={"content": "x"}, _257={"content": "x"}), r"\.257 is named 'x', and so is 256"),
    "a reserved name": (added(_256={"content": "<|reserved_token_300|>"}), r"\.256 is named .*and so is 300"),
    "not an object": ({"added_tokens_decoder": []}, "added_tokens_decoder is not an object"),
    "unknown BOS": ({"bos_token": "[BOS]"}, r"bos_token is '\[BOS\]', expected a name"),
    "BOS is a number": ({"bos_token": 5}, "bos_token is 5, expected a name"),
    "a list": ([], "holds a list, expected an object"),
}


@pytest.mark.parametrize(("config", "message"), CONFIGS.values(), ids=CONFIGS)
def test_contradictory_tokenizer_config(tmp_path: Path, config: object, message: str) -> None:
    with pytest.raises(ModelError, match=rf"tokenizer_config\.json.*{message}"):
        load_tokenizer(write(tmp_path, BYTES, config), 512)


def test_a_tokenizer_config_that_is_not_json(tmp_path: Path) -> None:
    write(tmp_path, BYTES)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(DamagedError, match=r"tokenizer_config\.json is not JSON"):
        load_tokenizer(tmp_path, 512)


def test_roles_may_be_objects(tmp_path: Path) -> None:
    config = added(_256={"content": "<s>"}, _257={"content": "</s>"}) | {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
    }
    tokenizer = load_tokenizer(write(tmp_path, BYTES, config), 512)
    assert tokenizer is not None
    assert (tokenizer.bos_id, tokenizer.eos_id) == (256, 257)

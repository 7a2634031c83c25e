"""Headers from strangers: everything a file can claim and must not be believed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.io.checkpoints import (
    GOLDEN,
    LFS_STUB,
    copy_golden,
    read_header_json,
    with_header,
    write_shard,
)
from waste.errors import DamagedError, ModelError, UnsupportedError, WasteError
from waste.io.safetensors import read_header

SHARD = "model-00001-of-00003.safetensors"
NAME = "language_model.model.layers.0.input_layernorm.weight"  # BF16 [160], 320 bytes


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return copy_golden("tiny-k3", tmp_path) / SHARD


def test_a_good_header_is_read_as_it_is(shard: Path) -> None:
    tensors = read_header(shard)
    header = read_header_json(shard)
    del header["__metadata__"]
    assert {tensor.name for tensor in tensors} == header.keys()
    assert tensors == sorted(tensors, key=lambda tensor: tensor.begin)
    found = next(tensor for tensor in tensors if tensor.name == NAME)
    assert (found.dtype, found.shape, found.end - found.begin) == ("BF16", (160,), 320)
    assert tensors[-1].end == shard.stat().st_size


def truncated(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def prefixed(head: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(head + path.read_bytes()[len(head) :])


def content(raw: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(raw) and None  # type: ignore[func-returns-value]


def header(raw: bytes) -> Callable[[Path], None]:
    return lambda path: with_header(path, raw)


def entry(**changes: object) -> Callable[[Path], None]:
    """Change fields of one tensor's entry; None removes a field."""

    def apply(path: Path) -> None:
        parsed = read_header_json(path)
        made = {**parsed[NAME], **changes}  # type: ignore[dict-item]
        parsed[NAME] = {key: value for key, value in made.items() if value is not None}
        with_header(path, json.dumps(parsed).encode())

    return apply


def replaced(value: object) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with_header(path, json.dumps({**read_header_json(path), NAME: value}).encode())

    return apply


CORRUPTIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty file": (content(b""), "has 0 bytes"),
    "seven bytes": (content(b"1234567"), "has 7 bytes"),
    "LFS stub": (content(LFS_STUB), "git lfs pull"),
    "header length 2^60": (prefixed((1 << 60).to_bytes(8, "little")), "claims a header"),
    "header length 2^64-1": (prefixed(b"\xff" * 8), "claims a header"),
    "header beyond the file": (truncated(20_000), "claims a header"),
    "data cut by one byte": (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated"),
    "data cut entirely": (truncated(29_912), "truncated"),
    "zero header": (prefixed(bytes(8)), "is empty"),
    "not JSON": (header(b"{]" + b" " * 6), "not JSON"),
    "not UTF-8": (header(b'{"\xff\xfe": 1}'), "UTF-8"),
    "UTF-16": (header('{"a": 1}'.encode("utf-16")), "UTF-8"),
    "a list": (header(b"[1, 2]"), "expected an object"),
    "deep nesting": (header(b"[" * 100_000), "absurd depth"),
    "deep entry": (header(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "absurd depth"),
    "number of 10,000 digits": (header(b'{"a": ' + b"9" * 10_000 + b"}"), "absurd numbers"),
    "a name twice": (header(b'{"a": {"dtype": "U8"}, "a": {"dtype": "U8"}}'), "'a' twice"),
    "metadata of the wrong kind": (header(b'{"__metadata__": 3}'), "__metadata__"),
    "entry is null": (replaced(None), "expected an object"),
    "entry is a list": (replaced([]), "expected an object"),
    "no dtype": (entry(dtype=None), "dtype"),
    "dtype is a number": (entry(dtype=16), "dtype 16"),
    "no shape": (entry(shape=None), "shape"),
    "shape is a number": (entry(shape=160), "shape"),
    "shape holds a bool": (entry(shape=[160, True]), "shape"),
    "shape holds a float": (entry(shape=[160.0]), "shape"),
    "shape holds a string": (entry(shape=["160"]), "shape"),
    "negative shape": (entry(shape=[-160]), "shape"),
    "two negatives": (entry(shape=[-16, -10]), "shape"),
    "shape above 63 bits": (entry(shape=[0, 1 << 63]), "shape"),
    "product beyond 64 bits": (entry(shape=[1 << 62, 1 << 62, 1 << 62]), "bytes cannot be"),
    "product wraps to the size": (entry(shape=[160 + (1 << 62), 4]), "bytes cannot be"),
    "a thousand dimensions": (entry(shape=[1] * 1000), "shape"),
    "shape against bytes": (entry(shape=[161]), "bytes cannot be"),
    "dtype against bytes": (entry(dtype="F32"), "bytes cannot be"),
    "no offsets": (entry(data_offsets=None), "data_offsets"),
    "one offset": (entry(data_offsets=[0]), "data_offsets"),
    "three offsets": (entry(data_offsets=[0, 1, 2]), "data_offsets"),
    "offsets of bools": (entry(data_offsets=[False, True]), "data_offsets"),
    "negative offset": (entry(data_offsets=[-320, 0]), "data_offsets"),
    "offsets swapped": (entry(data_offsets=[2720, 2400]), "before it begins"),
    "beyond the file": (entry(data_offsets=[1 << 40, (1 << 40) + 320]), "truncated"),
    "infinite offset": (header(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1e999]}}'), "data_offsets"),
    "overlap by one": (entry(data_offsets=[2401, 2721]), "overlap"),
    "nested": (entry(data_offsets=[3000, 3320]), "overlap"),
    "the same bytes twice": (entry(data_offsets=[2080, 2400]), "overlap"),
}


@pytest.mark.parametrize(("corrupt", "says"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_corruptions_are_refused_by_name(shard: Path, corrupt: Callable[[Path], None], says: str) -> None:
    corrupt(shard)
    with pytest.raises(DamagedError) as caught:
        read_header(shard)
    message = str(caught.value)
    assert says in message
    assert SHARD in message
    assert "\n" not in message
    assert len(message) < 600


def test_an_unknown_dtype_is_named(shard: Path) -> None:
    entry(dtype="Q3_K")(shard)
    with pytest.raises(UnsupportedError, match=r"input_layernorm.*'Q3_K'"):
        read_header(shard)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("F8_E4M3", [3, 5], 15), ("I64", [3], 24), ("BOOL", [7], 7), ("F4", [6], 3), ("C64", [], 8), ("U8", [0, 9], 0)],
)
def test_every_storage_type_has_its_size(tmp_path: Path, dtype: str, shape: list[int], size: int) -> None:
    write_shard(tmp_path / "a.safetensors", {"a": (dtype, shape, size), "b": ("U8", [1], 1)})
    first = next(tensor for tensor in read_header(tmp_path / "a.safetensors") if tensor.name == "a")
    assert (first.dtype, first.shape, first.end - first.begin) == (dtype, tuple(shape), size)


def test_half_a_byte_is_no_size(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", {"a": ("F4", [3], 2)})
    with pytest.raises(DamagedError, match="bytes cannot be"):
        read_header(tmp_path / "a.safetensors")


def test_unclaimed_bytes_are_tolerated(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", {"a": ("U8", [4], 4)})
    with (tmp_path / "a.safetensors").open("ab") as stream:
        stream.write(b"padding")
    assert [tensor.shape for tensor in read_header(tmp_path / "a.safetensors")] == [(4,)]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.safetensors"):
        read_header(tmp_path / "gone.safetensors")
    with pytest.raises(ModelError, match="not a regular file"):
        read_header(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelError, match="not a regular file"):
            read_header(tmp_path / "pipe")


def small_header() -> bytes:
    """A good header of 2000 bytes in all, cut from a golden file."""
    raw = (GOLDEN / "tiny-groups" / "model-00001-of-00001.safetensors").read_bytes()[8:2000]
    raw = raw[: raw.rindex(b"},") + 1] + b"}"
    return (1992).to_bytes(8, "little") + raw.ljust(1992)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1999), st.integers(0, 255)), max_size=3))
@example([])
def test_flipped_bytes_never_escape_as_anything_else(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    """Any damage to a header is either one of our errors or still a header inside the file."""
    raw = bytearray(small_header())
    for position, value in flips:
        raw[position] = value
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    os.truncate(path, 2_000_000)
    try:
        tensors = read_header(path)
    except WasteError:
        assert flips, "the header is good until it is damaged"
        return
    assert all(0 <= tensor.begin <= tensor.end <= 2_000_000 for tensor in tensors)

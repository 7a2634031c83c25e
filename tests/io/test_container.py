"""Containers are read as strangers wrote them: every number is bounded, every refusal names file and key."""

from __future__ import annotations

import copy
import json
import math
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.io.checkpoints import GOLDEN
from tests.io.containers import (
    CONTAINERS,
    another,
    copy_container,
    edit_manifest,
    lossless,
    mutate,
    read_manifest_json,
)
from tests.model.configs import KIMI_K3
from waste.blueprint import draw
from waste.errors import DamagedError, ModelError, UnsupportedError, WasteError
from waste.io.container import Container
from waste.io.record import RecordHeader, check_payload
from waste.io.source import open_source
from waste.model.bundle import load_bundle
from waste.model.config import parse_config
from waste.model.tensors import tensor_shapes
from waste.settings import Settings

K3 = "nano-k3.waste"


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_golden_container_is_recognized(name: str) -> None:
    source = open_source(GOLDEN / name)
    assert isinstance(source, Container)
    manifest = read_manifest_json(GOLDEN / name)
    assert set(source.tensors) == {entry["name"] for entry in manifest["trunk"]}
    assert {number: bank.records for number, bank in source.banks.items()} == {
        int(key): layer["experts"] for key, layer in manifest["layers"].items()
    }
    for entry in manifest["trunk"]:
        info = source.tensors[entry["name"]]
        assert info.stored_bytes == entry["bytes"]
        assert (info.scales.offset if info.scales else None) == entry.get("scale_off")
        assert source.paths[info.extent.file].name == "trunk.bin"


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_record_is_where_its_header_says(name: str) -> None:
    source = open_source(GOLDEN / name)
    for number, bank in source.banks.items():
        assert bank.header is not None
        for index in range(bank.records):
            extents = source.record(number, index)
            raw = np.fromfile(source.paths[extents[0].file], np.uint8)
            begin = extents[0].offset
            checksum = bank.header.check(raw[begin : begin + 48], index)
            check_payload(raw[begin + 48 : begin + bank.header.end], checksum)
            assert extents[-1].end == begin + bank.header.end
        with pytest.raises(IndexError):
            source.record(number, bank.records)
    with pytest.raises(KeyError):
        source.record(0, 0)


def test_a_lossless_container_has_the_shapes_of_its_checkpoint(tmp_path: Path) -> None:
    source = open_source(lossless(GOLDEN / "tiny-k3", tmp_path / "model.waste"))
    checkpoint = open_source(GOLDEN / "tiny-k3")
    assert {name: (info.dtype, info.shape) for name, info in source.tensors.items()} == {
        name: (info.dtype, info.shape) for name, info in checkpoint.tensors.items()
    }
    assert source.banks[1].parts[1:] == checkpoint.banks[1].parts
    assert load_bundle(tmp_path / "model.waste").config == load_bundle(GOLDEN / "tiny-k3").config


def test_headers_are_compared_byte_by_byte() -> None:
    """Whatever is changed is refused, but for flags, reserved fields and the checksum, which nothing depends on."""
    header = RecordHeader(3, 4, 18, gate=48, up=9264, down=18480, scales=27696, end=28592)
    good = header.pack(5, 0x12345678)
    assert header.check(np.frombuffer(good, np.uint8), 5) == 0x12345678
    unused = {9, 14, 15, *range(36, 48)}
    for at in range(48):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128):
            raw = bytearray(good)
            raw[at] ^= flip
            mutated = np.frombuffer(bytes(raw), np.uint8)
            if at in unused:
                header.check(mutated, 5)
            else:
                with pytest.raises(DamagedError, match=r"the record's .* is .*, expected"):
                    header.check(mutated, 5)


def set_in(*path: Any) -> Callable[[dict[str, Any]], None]:
    """An edit: the last item becomes the value under the keys before it."""
    *keys, last, value = path

    def edit(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys:
            at = at[key]
        at[last] = value

    return edit


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    *keys, last = path

    def edit(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys:
            at = at[key]
        del at[last]

    return edit


HOSTILE: list[tuple[Callable[[dict[str, Any]], None], type[WasteError], str]] = [
    (drop("format_version"), UnsupportedError, r"format_version is missing, expected 0"),
    (set_in("format_version", 1), UnsupportedError, r"format_version is 1, expected 0"),
    (set_in("format_version", False), DamagedError, r"format_version is False, expected an integer"),
    (set_in("format_version", 0.0), DamagedError, r"format_version is 0.0"),
    (set_in("requires", ["mxfp4", "vq9"]), UnsupportedError, r"requires names 'vq9'; known are mxfp4, bf16"),
    (set_in("requires", "mxfp4"), DamagedError, r"requires is 'mxfp4', expected a list"),
    (set_in("tensor_prefix", None), DamagedError, r"tensor_prefix is None"),
    (set_in("tensor_prefix", "x" * 3000), DamagedError, r"tensor_prefix is 'x.{,200}x', expected a string"),
    (set_in("checksums", []), DamagedError, r"checksums is \[\], expected an object"),
    (set_in("checksums", {"codebooks": [1, -1]}), DamagedError, r"checksums\.codebooks is \[1, -1\], expected a list"),
    (set_in("checksums", {"codebooks": {}}), DamagedError, r"checksums\.codebooks is \{\}, expected a list"),
    (set_in("checksums", {"trunk": []}), DamagedError, r"checksums\.trunk\.? is \[\], expected an object"),
    (set_in("checksums", {"trunk": {"a": -1}}), DamagedError, r"checksums\.trunk\.a is -1, expected an integer"),
    (set_in("checksums", {"trunk": {"\x1b": ""}}), DamagedError, r"checksums\.trunk\.'\\x1b' is ''"),
    (set_in("checksums", {"files": []}), DamagedError, r"checksums\.files is \[\], expected an object"),
    (set_in("checksums", {"files": {"a.json": "00"}}), DamagedError, r"files\.a\.json is '00', expected a SHA"),
    (set_in("checksums", {"files": {"a.json": 7}}), DamagedError, r"checksums\.files\.a\.json is 7"),
    *(
        (set_in("checksums", {"files": {name: "0" * 64}}), DamagedError, rf"checksums\.files has the key {shown}")
        for name, shown in (
            ("a\0b", r"'a\\x00b'"),
            ("\ud800", r"'\\ud800'"),
            ("\x1b[31mred", r"'\\x1b\[31mred'"),
            ("x" * 5000, r"'x{50,60}\.\.\.x{50,60}'"),
            ("", "''"),
            ("..", r"'\.\.'"),
            ("/etc/passwd", "'/etc/passwd'"),
            ("sub/a.json", "'sub/a.json'"),
            ("C:a.json", "'C:a.json'"),
        )
    ),
    (set_in("trunk", 0, "name", "\x1b[31mred"), DamagedError, r"trunk\[0\]\.name is '\\x1b\[31mred'"),
    (set_in("layers", "1", "file", ".bashrc"), DamagedError, r"layers\.1\.file is '\.bashrc', expected the name"),
    (set_in("tensor_prefix", "model."), ModelError, r"embed_tokens\.weight is missing"),
    (set_in("config", []), DamagedError, r"config is \[\], expected an object"),
    (set_in("config", "_outer", 3), DamagedError, r"config\._outer is 3"),
    (drop("config", "hidden_size"), ModelError, r"manifest\.json: .*hidden_size is missing"),
    (set_in("config", "moe_intermediate_size", -8), DamagedError, r"config\.moe_intermediate_size is -8"),
    (set_in("config", "moe_intermediate_size", 4), UnsupportedError, r"multiple of 8"),
    (set_in("config", "moe_intermediate_size", 1 << 22), DamagedError, r"layers\.1\.bytes is 458,752, expected"),
    (set_in("config", "routed_expert_hidden_size", 10**30), DamagedError, r"routed_expert_hidden_size is 1000"),
    (drop("expert_quant"), DamagedError, r"expert_quant is None, expected an object"),
    (
        set_in("expert_quant", "fmt", "Q3G"),
        UnsupportedError,
        r"expert_quant\.fmt is 'Q3G', expected MXFP4 or VQ3R.*; Q3G is known and not",
    ),
    (set_in("expert_quant", "fmt", "VQ2R"), DamagedError, r"expert_quant\.stages is 3, expected 2"),
    (set_in("expert_quant", "entries", 255), DamagedError, r"entries is 255, expected 256"),
    (set_in("expert_quant", "vec_dim", 16), DamagedError, r"vec_dim is 16, expected 8"),
    (set_in("expert_quant", "index_bits", 6), DamagedError, r"index_bits is 6, expected 8"),
    (set_in("expert_quant", "index_block", 10**19), DamagedError, r"index_block is 1000000000"),
    (set_in("expert_quant", "index_block", 32), UnsupportedError, r"index_block is 32, expected 0 or 64"),
    (set_in("layers", []), DamagedError, r"layers is \[\], expected an object"),
    (set_in("layers", "01", {}), DamagedError, r"layers has the key '01'"),
    (set_in("layers", "70000", {}), DamagedError, r"layers has the key '70000'"),
    (drop("layers", "3"), ModelError, r"layers\.3\.block_sparse_moe\.experts are missing"),
    (set_in("layers", "1", "file", "../trunk.bin"), DamagedError, r"layers\.1\.file is '\.\./trunk\.bin'"),
    (set_in("layers", "1", "file", "/etc/passwd"), DamagedError, r"the name of a file in the container's folder"),
    (set_in("layers", "1", "file", "a\0b"), DamagedError, r"layers\.1\.file"),
    (set_in("layers", "1", "file", "x" * 3000), DamagedError, r"layers\.1\.file is 'x.{,200}x', expected a string"),
    (set_in("layers", "1", "file", "experts-L9.bin"), ModelError, r"experts-L9\.bin: No such file"),
    (set_in("layers", "1", "experts", 0), DamagedError, r"layers\.1\.experts is 0"),
    (set_in("layers", "1", "experts", True), DamagedError, r"layers\.1\.experts is True"),
    (set_in("layers", "1", "experts", 2**70), DamagedError, r"layers\.1\.experts"),
    (set_in("layers", "1", "bytes", 2**60), DamagedError, r"layers\.1\.bytes is .*, expected 458,752: 16 experts"),
    (set_in("layers", "1", "bytes", 458751), DamagedError, r"layers\.1\.bytes"),
    (
        set_in("layers", "1", "codebook_base", 46),
        DamagedError,
        r"codebooks\.bin has 222,048 bytes, expected .* 226,160",
    ),
    (set_in("layers", "1", "codebook_base", 65536), DamagedError, r"codebook_base is 65536"),
    (set_in("trunk", {}), DamagedError, r"trunk is \{\}, expected a list"),
    (set_in("trunk", 0, 7), DamagedError, r"trunk\[0\] is 7, expected an object"),
    (set_in("trunk", 0, "name", 7), DamagedError, r"trunk\[0\]\.name is 7"),
    (set_in("trunk", 0, "fmt", 7), UnsupportedError, r"trunk\[0\]\.fmt is 7, .*which is Q3G and not supported"),
    (set_in("trunk", 0, "fmt", 99), UnsupportedError, r"trunk\[0\]\.fmt is 99, expected one of 0 \(F32\)"),
    (set_in("trunk", 0, "fmt", 3), DamagedError, r"trunk\[0\]\.scale_off is 131072, expected 65,536"),
    (set_in("trunk", 0, "fmt", 0), DamagedError, r"trunk\[0\]\.bytes is 133120, expected 524,288"),
    (set_in("trunk", 0, "off", -1), DamagedError, r"trunk\[0\]\.off is -1"),
    (set_in("trunk", 0, "group", 64), DamagedError, r"trunk\[0\]\.group is 64, expected 128"),
    (set_in("trunk", 0, "scale_off", 131074), DamagedError, r"trunk\[0\]\.scale_off is 131074, expected 131,072"),
    (set_in("trunk", 0, "bytes", 133121), DamagedError, r"trunk\[0\]\.bytes is 133121, expected 133,120"),
    (set_in("trunk", 0, "shape", [512, 0]), DamagedError, r"trunk\[0\]\.shape is \[512, 0\]"),
    (set_in("trunk", 0, "shape", [2**61] * 8), UnsupportedError, r"at most two sizes for Q8G"),
    (set_in("trunk", 0, "shape", [256, 512]), ModelError, r"embed_tokens\.weight is \[256, 512\]"),
    (set_in("trunk", 1, "shape", [2**61] * 8), DamagedError, r"trunk\[1\]\.bytes"),
    (set_in("trunk", 1, "shape", [128, 2]), ModelError, r"input_layernorm\.weight is \[128, 2\]"),
    (set_in("trunk", 1, "off", 133124), DamagedError, r"trunk\.bin .* ends at 134,148, after .* begins at 134,144"),
    (set_in("trunk", 1, "off", 2**61), DamagedError, r"trunk\.bin has 2,756,000 bytes, and manifest\.json has"),
    (set_in("trunk", 1, "name", "lm_head.weight"), ModelError, r"input_layernorm\.weight is missing"),
    (lambda m: m["trunk"].append(m["trunk"][0]), DamagedError, r"trunk has '.*embed_tokens\.weight' twice"),
    (drop("trunk", 5), ModelError, r"is missing"),
]


@pytest.mark.parametrize(("edit", "error", "says"), HOSTILE)
def test_hostile_manifests_are_refused(
    edit: Callable[[dict[str, Any]], None], error: type[WasteError], says: str, tmp_path: Path
) -> None:
    folder = copy_container(K3, tmp_path)
    edit_manifest(folder, edit)
    with pytest.raises(error, match=says) as caught:
        load_bundle(folder)
    assert type(caught.value) is error
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"[1, 2", "is not JSON"),
        (b"[1, 2]", r"the content is \[1, 2\], expected an object"),
        (b'{"format_version": 0, "format_version": 0}', "names 'format_version' twice"),
        (b"[" * 100_000, "absurd depth|is not JSON"),
        (b'{"format_version": ' + b"9" * 10_000 + b"}", "absurd"),
        (b"\xff\xfe", "not UTF-8"),
        (b" " * ((4 << 20) + 1), "expected at most"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DamagedError, match=rf"manifest\.json.*({says})"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["trunk.bin", "codebooks.bin", "experts-L4.bin"])
def test_truncated_and_missing_files_are_named(name: str, tmp_path: Path) -> None:
    folder = copy_container(K3, tmp_path)
    data = (folder / name).read_bytes()
    for size in (len(data) - 1, len(data) // 2, 0):
        (folder / name).write_bytes(data[:size])
        with pytest.raises(DamagedError, match=rf"{name} has {size:,} bytes"):
            open_source(folder)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=rf"{name}: No such file"):
        open_source(folder)
    (folder / name).mkdir()
    with pytest.raises(ModelError, match=rf"{name} is not a regular file"):
        open_source(folder)


def test_shards_make_a_folder_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    with pytest.raises(ModelError, match=r"config\.json"):
        open_source(tmp_path)


def test_an_outer_config_is_merged_as_in_a_checkpoint() -> None:
    """Its quantization says how the checkpoint was stored, and is not looked at."""
    bundle = load_bundle(GOLDEN / "tiny-k3-vq4p.waste")
    assert bundle.config == load_bundle(GOLDEN / "tiny-k3").config
    assert bundle.weight_formats() == {"F32", "VQ4P"}


def test_a_container_brings_its_tokenizer(tmp_path: Path) -> None:
    folder = copy_container(K3, tmp_path)
    assert load_bundle(folder).tokenizer is None
    lines = [f"{_base64(bytes([value]))} {value}" for value in range(256)]
    (folder / "tokenizer.model").write_text("\n".join(lines))
    tokenizer = load_bundle(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.special_id("<|reserved_token_300|>") == 300
    (folder / "specials.json").write_text(json.dumps([{"id": 256, "text": "[BOS]"}, {"id": 258, "text": "[EOS]"}]))
    tokenizer = load_bundle(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode_special("a[EOS]") == [97, 258]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    for entries, says in (
        ({}, "holds a dict"),
        ([{"id": 255, "text": "a"}], r"\[0\]\.id is not a special id"),
        ([{"id": True, "text": "a"}], r"\[0\]\.id"),
        ([{"id": 256, "text": ""}], r"\[0\]\.text is missing"),
        ([{"id": 256, "text": "a"}, {"id": 257, "text": "a"}], "and so is 256"),
        ([3], r"\[0\]\.id"),
    ):
        (folder / "specials.json").write_text(json.dumps(entries))
        with pytest.raises(ModelError, match=rf"specials\.json.*{says}"):
            load_bundle(folder)


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


@pytest.mark.parametrize("name", [*CONTAINERS, "another"])
def test_mutated_manifests_never_surprise(name: str, tmp_path: Path) -> None:
    """An error of ours, or a model that can be planned, and never much memory."""
    folder = another(tmp_path / name) if name == "another" else copy_container(name, tmp_path)
    manifest = read_manifest_json(folder)
    rng = np.random.default_rng(1)
    refusals: list[str] = []
    tracemalloc.start()
    for _ in range(80):
        mutated = copy.deepcopy(manifest)
        mutate(mutated, rng)
        (folder / "manifest.json").write_text(json.dumps(mutated))
        tracemalloc.reset_peak()
        try:
            draw(load_bundle(folder), Settings(ram=1 << 30, context=64))
        except WasteError as error:
            refusals.append(str(error))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert len(refusals) > 40
    assert all(str(tmp_path) in text and len(text) < 2000 for text in refusals)


def test_flipped_bits_in_a_manifest_never_surprise(tmp_path: Path) -> None:
    folder = copy_container(K3, tmp_path)
    raw = (folder / "manifest.json").read_bytes()
    rng = np.random.default_rng(2)
    refusals: list[str] = []
    for _ in range(150):
        flipped = bytearray(raw)
        for at in rng.integers(len(raw), size=rng.integers(1, 4)):
            flipped[at] ^= 1 << rng.integers(8)
        (folder / "manifest.json").write_bytes(flipped)
        try:
            draw(load_bundle(folder), Settings(ram=1 << 30, context=64))
        except WasteError as error:
            refusals.append(str(error))
    assert len(refusals) > 75
    assert all(str(tmp_path) in text for text in refusals)


def k3_container(folder: Path, trunk_code: int) -> Path:
    """A whole Kimi K3 of nothing: sparse files of the sizes that its manifest gives."""
    folder.mkdir()
    text = {key: value for key, value in KIMI_K3["text_config"].items() if key != "quantization_config"}
    bits = {2: 8, 3: 4}
    entries, at = [], 0
    for name, shape in tensor_shapes(parse_config(KIMI_K3)).items():
        count = math.prod(shape)
        entry: dict[str, Any] = {"name": name, "fmt": 0, "off": at, "shape": list(shape), "bytes": 4 * count}
        if len(shape) == 2 and count >= 65536:
            code = 2 if "embed_tokens" in name or "lm_head" in name else trunk_code
            groups = shape[0] * -(-shape[1] // 128)
            size = groups * 128 * bits[code] // 8
            entry |= {"fmt": code, "group": 128, "scale_off": at + size, "bytes": size + 2 * groups}
        entries.append(entry)
        at += entry["bytes"]
    layers = range(text["first_k_dense_replace"], text["num_hidden_layers"])
    sizes = {"trunk.bin": at, "codebooks.bin": len(layers) * 9 * 4112}
    banks = {}
    for position, layer in enumerate(layers):
        size = 896 * 12_406_784
        banks[str(layer)] = {
            "file": f"experts-L{layer}.bin", "experts": 896, "bytes": size, "codebook_base": 9 * position
        }  # fmt: skip
        sizes[f"experts-L{layer}.bin"] = size
    for name, size in sizes.items():
        with (folder / name).open("wb") as stream:
            stream.truncate(size)
    quant = {"fmt": "VQ3R", "stages": 3, "vec_dim": 8, "entries": 256, "index_block": 64}
    manifest = {"format_version": 0, "tensor_prefix": "language_model.", "config": text, "expert_quant": quant}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "layers": banks, "trunk": entries}))
    return folder


@pytest.mark.parametrize(("trunk_code", "trunk_bytes"), [(2, 55.6e9), (3, 29.3e9)])
def test_a_whole_k3_opens_at_once_and_plans_under_two_gib(trunk_code: int, trunk_bytes: float, tmp_path: Path) -> None:
    folder = k3_container(tmp_path / "k3.waste", trunk_code)
    began = time.perf_counter()
    bundle = load_bundle(folder)
    assert time.perf_counter() - began < 5
    plan = draw(bundle, Settings(ram=8 << 30, context=4096)).plan
    assert plan.floor_bytes <= 2 << 30
    assert plan.record_bytes == 12_406_784
    trunk = sum(info.stored_bytes for name, info in bundle.source.tensors.items() if "embed_tokens" not in name)
    assert trunk == pytest.approx(trunk_bytes, rel=0.05)

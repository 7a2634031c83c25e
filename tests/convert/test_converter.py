"""What a conversion writes: decoded slowly it is the checkpoint, exactly or nearly, and our own reader opens it."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert.conversions import DEMO, TINY_K3, TINY_LINEAR, Original, contents, convert, relative_error
from tests.convert.slow_container import SlowContainer
from tests.model.configs import golden_config
from waste.convert.options import ConvertOptions, parse_options
from waste.convert.synth import SynthWriter
from waste.errors import DamagedError, InputError, WasteError
from waste.io.source import open_source
from waste.model.bundle import load_bundle
from waste.model.tensors import tensor_shapes


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of bf16 noise, some of its trunk large enough to be quantized, in rows of 160."""
    raw = golden_config("tiny-k3")
    del raw["quantization_config"]
    raw["text_config"]["intermediate_size"] = 1024
    folder = tmp_path_factory.mktemp("noise") / "m"
    SynthWriter(raw, seed=1, is_sparse=False).write(folder)
    return folder


LARGEST_ERROR = {"VQ3R": 0.2, "VQ2R": 0.36, "VQ4P": 0.22}


@pytest.mark.parametrize("source", [TINY_K3, DEMO], ids=["tiny-k3", "demo"])
def test_mxfp4_with_bf16_loses_nothing(tmp_path: Path, source: Path) -> None:
    done = convert(source, tmp_path / "c", experts="MXFP4", trunk="BF16", layers=None)
    assert done.layout.is_lossless
    original, found = Original(source), SlowContainer(tmp_path / "c")
    assert {entry["name"] for entry in found.manifest["trunk"]} == set(original.source.tensors)
    for name in original.source.tensors:
        assert np.array_equal(found.tensor(name), original.tensor(name)), name
    for layer, bank in original.source.banks.items():
        for index in range(0, bank.records, 5):
            pairs = zip(found.expert(layer, index), original.expert(layer, index), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)
    assert found.manifest["requires"] == ["mxfp4", "bf16"] if source == DEMO else ["mxfp4"]
    assert load_bundle(tmp_path / "c").config == load_bundle(source).config


@pytest.mark.parametrize("experts", LARGEST_ERROR)
@pytest.mark.parametrize("source", [TINY_K3, TINY_LINEAR], ids=["mxfp4", "bf16"])
def test_vector_formats_are_near(tmp_path: Path, experts: str, source: Path) -> None:
    convert(source, tmp_path / "c", experts=experts, sample=256)
    original, found = Original(source), SlowContainer(tmp_path / "c")
    count = original.source.banks[1].records
    decoded = [matrix for index in range(count) for matrix in found.expert(1, index)]
    expected = [matrix for index in range(count) for matrix in original.expert(1, index)]
    assert 0.01 < relative_error(decoded, expected) < LARGEST_ERROR[experts]
    assert load_bundle(tmp_path / "c").config.num_hidden_layers == 2


def test_bf16_experts_as_mxfp4_are_called_lossy(tmp_path: Path, noise: Path) -> None:
    done = convert(noise, tmp_path / "c", experts="MXFP4", trunk="BF16")
    assert not done.layout.is_lossless
    original, found = Original(noise), SlowContainer(tmp_path / "c")
    assert 0.05 < relative_error(found.expert(1, 3), original.expert(1, 3)) < 0.13


@pytest.mark.parametrize(("trunk", "least", "most"), [("Q8G", 0.003, 0.008), ("Q4G", 0.08, 0.14)])
def test_the_trunk_by_the_published_rules(tmp_path: Path, noise: Path, trunk: str, least: float, most: float) -> None:
    convert(noise, tmp_path / "c", experts="MXFP4", trunk=trunk, layers=1)
    original, found = Original(noise), SlowContainer(tmp_path / "c")
    formats = {}
    for entry in found.manifest["trunk"]:
        name, elements = entry["name"], int(np.prod(entry["shape"]))
        is_small = len(entry["shape"]) == 1 or elements < 65536
        expected = 0 if is_small else 2 if trunk == "Q8G" else 3
        assert entry["fmt"] == expected, name
        formats[name] = expected
        exact, decoded = original.tensor(name), found.tensor(name)
        if expected == 0:
            assert np.array_equal(decoded, exact)
        else:
            assert least < relative_error([decoded], [exact]) < most, name
        assert entry["off"] % 64 == 0
        assert ("group" in entry, "scale_off" in entry) == (expected in (2, 3),) * 2
    assert set(formats.values()) == {0, 3 if trunk == "Q4G" else 2}


def test_embedding_and_head_are_q8g(tmp_path: Path) -> None:
    convert(DEMO, tmp_path / "c", experts="MXFP4", trunk="Q4G", layers=1)
    original, found = Original(DEMO), SlowContainer(tmp_path / "c")
    for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
        assert found.entry(name)["fmt"] == 2
        assert 0.003 < relative_error([found.tensor(name)], [original.tensor(name)]) < 0.008


def test_the_manifest_says_what_the_files_are(tmp_path: Path) -> None:
    convert(DEMO, tmp_path / "c", experts="VQ4P", layers=3)
    found = SlowContainer(tmp_path / "c")
    manifest = found.manifest
    assert manifest["format_version"] == 0
    assert manifest["tensor_prefix"] == "language_model."
    assert manifest["config"]["_outer"]["model_type"] == "kimi_k3"
    assert manifest["expert_quant"] == {
        "fmt": "VQ4P", "stages": 4, "vec_dim": 8, "entries": 64, "index_block": 64, "index_bits": 6,
        "bits_per_weight": 3,
    }  # fmt: skip
    assert {key: bank["codebook_base"] for key, bank in manifest["layers"].items()} == {"1": 0, "2": 12}
    sums = manifest["checksums"]
    for entry in manifest["trunk"]:
        raw = found.trunk[entry["off"] : entry["off"] + entry["bytes"]]
        assert sums["trunk"][entry["name"]] == zlib.crc32(raw.tobytes())
    books = np.fromfile(tmp_path / "c" / "codebooks.bin", np.uint8).reshape(24, -1)
    assert sums["codebooks"] == [zlib.crc32(book.tobytes()) for book in books]
    assert sums["files"] == {
        name: hashlib.sha256((tmp_path / "c" / name).read_bytes()).hexdigest()
        for name in ("tokenizer.model", "specials.json")
    }
    walk = list(tensor_shapes(load_bundle(tmp_path / "c").config))
    assert [entry["name"] for entry in manifest["trunk"]] == walk
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "codebooks.bin", "experts-L1.bin", "experts-L2.bin", "manifest.json", "specials.json", "tokenizer.model",
        "trunk.bin",
    ]  # fmt: skip


def test_the_tokenizer_in_its_own_files(tmp_path: Path) -> None:
    convert(DEMO, tmp_path / "c", layers=1)
    specials = json.loads((tmp_path / "c" / "specials.json").read_text())
    assert specials[0] == {"id": 1792, "text": "[BOS]"}
    assert [entry["id"] for entry in specials] == sorted(entry["id"] for entry in specials)
    theirs, ours = load_bundle(DEMO).tokenizer, load_bundle(tmp_path / "c").tokenizer
    assert theirs is not None
    assert ours is not None
    text = "In the beginning <|open|> there was"
    assert ours.encode_special(text) == theirs.encode_special(text)


def test_the_same_bytes_however_many_jobs_but_not_for_another_seed(tmp_path: Path) -> None:
    for name, jobs, seed in (("a", 1, 0), ("b", 2, 0), ("c", 5, 0), ("d", 2, 1)):
        convert(DEMO, tmp_path / name, jobs=jobs, seed=seed, experts="VQ2R", trunk="Q4G")
    first = contents(tmp_path / "a")
    assert contents(tmp_path / "b") == first
    assert contents(tmp_path / "c") == first
    assert contents(tmp_path / "d")["codebooks.bin"] != first["codebooks.bin"]


def test_a_read_only_source(tmp_path: Path) -> None:
    shutil.copytree(TINY_K3, tmp_path / "source")
    for path in (tmp_path / "source", *(tmp_path / "source").iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    convert(tmp_path / "source", tmp_path / "c", experts="MXFP4")
    (tmp_path / "source").chmod(0o755)
    open_source(tmp_path / "c")


def test_what_stands_in_the_way_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "c"
    convert(TINY_K3, out, layers=1)
    before = contents(out)
    with pytest.raises(InputError, match="finished container"):
        convert(TINY_K3, out, layers=1)
    assert contents(out) == before
    convert(TINY_K3, out, layers=1, trunk="Q4G", is_forced=True)
    with pytest.raises(InputError, match="is a container"):
        convert(out, tmp_path / "d", layers=1)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        convert(TINY_K3, out, layers=1, is_forced=True)
    with pytest.raises(InputError, match="inside each other"):
        convert(TINY_K3, TINY_K3 / "c", layers=1)
    with pytest.raises(InputError, match="0 to 6"):
        convert(TINY_K3, tmp_path / "e", layers=8)
    assert not (tmp_path / "d").exists()
    assert not (tmp_path / "e").exists()


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000))
    with pytest.raises(InputError, match=r"needs .* 1,000 free"):
        convert(TINY_K3, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_weights_that_are_no_numbers_are_named(tmp_path: Path, noise: Path) -> None:
    shutil.copytree(noise, tmp_path / "source")
    source = open_source(tmp_path / "source")
    extent = source.record(1, 2)[1]
    with source.paths[extent.file].open("r+b") as file:
        file.seek(extent.offset)
        file.write(b"\xc0\x7f")
    for experts in ("VQ2R", "MXFP4"):
        with pytest.raises(DamagedError, match=r"layer 1, expert 2.*NaN"):
            convert(tmp_path / "source", tmp_path / experts, experts=experts, sample=1, seed=1)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"experts": "q4"}, "mxfp4, vq3r"), ({"trunk": "f16"}, "bf16, q8g, q4g"), ({"layers": "1-2"}, "0-N")],
)
def test_options_that_are_none(given: dict[str, Any], words: str) -> None:
    plain: dict[str, Any] = {"experts": "vq3r", "trunk": "q8g", "layers": None, "sample": 4, "seed": 0}
    assert parse_options(**plain) == ConvertOptions("VQ3R", "Q8G", None, 4, 0)
    assert parse_options(**plain | {"layers": "0-5"}).layers == 6
    with pytest.raises(InputError, match=words):
        parse_options(**plain | given)


def test_errors_keep_their_kind(tmp_path: Path) -> None:
    shutil.copytree(TINY_K3, tmp_path / "source")
    shard = sorted((tmp_path / "source").glob("*.safetensors"))[0]

    def cut(what: str, done: int, total: int) -> None:
        if what.startswith("experts"):
            shard.write_bytes(shard.read_bytes()[:4096])

    with pytest.raises(WasteError, match="ends at") as caught:
        convert(tmp_path / "source", tmp_path / "c", experts="MXFP4", progress=cut)
    assert caught.value.exit_code == 4

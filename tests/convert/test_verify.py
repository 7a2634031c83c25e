"""Verification finds every flipped byte that something protects, and says what nothing does."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import Call
from tests.cli.conftest import call  # noqa: F401  # the fixture
from tests.convert.conversions import DEMO, GOLDEN, TINY_K3, TINY_LINEAR, Original, convert, relative_error
from tests.convert.slow_container import SlowContainer
from tests.io.containers import edit_manifest
from waste.convert.jobs import Jobs
from waste.convert.verify import Report, Verifier
from waste.io.source import open_source


def verify(folder: Path) -> Report:
    with Jobs(2) as jobs:
        return Verifier(folder, jobs, lambda what, done, total: None).run()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "c"
    convert(DEMO, folder, trunk="Q4G")
    return folder


@pytest.mark.parametrize(
    ("file", "at", "words"),
    [
        ("trunk.bin", 5, "embed_tokens.weight"),
        ("trunk.bin", -1, "checksum"),
        ("codebooks.bin", 40, "codebooks of layer 1: codebook 0"),
        ("codebooks.bin", 0, "codebooks of layer 1: codebook 0"),
        ("experts-L1.bin", 100, "layer 1, expert 0"),
        ("experts-L1.bin", 4096 * 3 + 4, "layer 1, expert 3"),
        ("experts-L1.bin", 4096 * 3 + 36, "layer 1, expert 3"),
        ("tokenizer.model", 9, "tokenizer.model"),
        ("specials.json", 30, "specials.json"),
    ],
)
def test_a_flipped_byte_is_found(container: Path, tmp_path: Path, file: str, at: int, words: str) -> None:
    shutil.copytree(container, tmp_path / "c")
    path = tmp_path / "c" / file
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)
    damages = verify(tmp_path / "c").damages
    assert len(damages) == 1
    assert words in damages[0]


def test_a_whole_one_is_called_whole_and_gaps_are_named(container: Path) -> None:
    report = verify(container)
    assert report.damages == ()
    assert report.unprotected[0] == "manifest.json itself, the padding of records, and reserved fields of headers"
    assert all(line.endswith("bytes that belong to nothing") for line in report.unprotected[1:])
    assert report.read_bytes > 0.9 * (container / "trunk.bin").stat().st_size
    foreign = verify(GOLDEN / "tiny-k3-vq4p.waste")
    assert foreign.damages == ()
    assert "trunk.bin: none of the 184 tensors has a checksum" in foreign.unprotected
    assert "codebooks.bin: none of the 72 codebooks has a checksum" in foreign.unprotected
    assert "golden.npz: it is no part of the container" in foreign.unprotected


def edited(container: Path, to: Path, edit: Callable[[dict[str, Any]], object]) -> Report:
    """Of a copy with another manifest."""
    folder = Path(shutil.copytree(container, to / "c"))
    edit_manifest(folder, edit)
    return verify(folder)


NAME = "language_model.model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("edit", "gap"),
    [
        (lambda m: m.pop("checksums"), "trunk.bin: none of the "),
        (lambda m: m["checksums"].update(trunk={}), "trunk.bin: none of the "),
        (lambda m: m["checksums"]["trunk"].pop(NAME), f"trunk.bin: tensor {NAME} has no checksum"),
        (lambda m: m["checksums"].update(codebooks=[]), "codebooks.bin: none of the 6 codebooks has a checksum"),
        (lambda m: m["checksums"]["codebooks"].pop(), "codebooks.bin: codebook 5 has no checksum"),
        (lambda m: m["checksums"].update(files={}), "specials.json: it has no checksum"),
        (lambda m: m["checksums"]["files"].pop("tokenizer.model"), "tokenizer.model: it has no checksum"),
    ],
)
def test_what_lost_its_checksum_is_named(
    container: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], gap: str
) -> None:
    report = edited(container, tmp_path, edit)
    assert report.damages == ()
    assert any(line.startswith(gap) for line in report.unprotected), report.unprotected


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m["checksums"]["trunk"].update({"a.weight": 1}), "checksums.trunk names a.weight, which the trunk"),
        (lambda m: m["trunk"][5].update(name="other"), "checksums.trunk names language_model."),
        (lambda m: m["trunk"][5].update(name="other"), "config and tensors: "),
        (lambda m: m["checksums"]["codebooks"].append(7), "checksums.codebooks has 7 checksums for 6 codebooks"),
        (lambda m: m["checksums"]["files"].update({"big.bin": "0" * 64}), "checksums.files names big.bin, which is no"),
        (lambda m: m["checksums"]["files"].update({"vocab.json": "0" * 64}), "vocab.json: No such file"),
        (lambda m: m.update(trunk=[]), "config and tensors: language_model.model.embed_tokens.weight is missing"),
        (lambda m: m["config"].update(hidden_size=1 << 22), "config and tensors: "),
    ],
)
def test_contradictions_are_damage(
    container: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    damages = edited(container, tmp_path, edit).damages
    assert any(words in line for line in damages), damages


def test_bytes_and_codebooks_that_belong_to_nothing(container: Path, tmp_path: Path) -> None:
    shutil.copytree(container, tmp_path / "c")
    for name, count in (("trunk.bin", 1000), ("experts-L1.bin", 5), ("codebooks.bin", 2 * 4112)):
        with (tmp_path / "c" / name).open("ab") as file:
            file.write(bytes(count))
    (tmp_path / "c" / "experts-L9.bin").write_bytes(b"")
    lines = verify(tmp_path / "c").unprotected
    assert "experts-L1.bin: 5 bytes that belong to nothing" in lines
    assert any(line.startswith("trunk.bin: 1,") for line in lines)
    assert "codebooks.bin: 2 codebooks that no layer uses" in lines
    assert "experts-L9.bin: it is no part of the container" in lines


@pytest.mark.skipif(os.name == "nt", reason="pipes are made as POSIX does")
@pytest.mark.parametrize("size", [None, 6 << 30], ids=["a pipe", "six gigabytes"])
def test_small_files_are_opened_and_read_with_care(container: Path, tmp_path: Path, size: int | None) -> None:
    def make(manifest: dict[str, Any]) -> None:
        for name in ("vocab.json", "big.bin"):
            manifest["checksums"]["files"][name] = "0" * 64
            if size is None:
                os.mkfifo(tmp_path / "c" / name)
            else:
                with (tmp_path / "c" / name).open("wb") as file:
                    file.truncate(size)

    tracemalloc.start()
    damages = edited(container, tmp_path, make).damages
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    words = "not a regular file" if size is None else "has 6,442,450,944 bytes"
    assert len(damages) == 2
    assert "vocab.json" in damages[0]
    assert words in damages[0]
    assert "checksums.files names big.bin" in damages[1]


def write_shard(folder: Path, tensors: dict[str, tuple[str, list[int], int]]) -> Path:
    """A checkpoint of one shard of holes: dtype, shape and bytes of each tensor."""
    shutil.copytree(TINY_LINEAR, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + at)
    return folder


def test_an_expert_without_bounds_is_read_a_part_at_a_time(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no such module")
    prefix, size = "model.layers.1.block_sparse_moe.experts.0.", 1 << 29
    tensors = {f"{prefix}w{number}.weight": ("BF16", [size // 512, 256], size) for number in (1, 2, 3)}
    folder = write_shard(tmp_path / "m", tensors)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = verify(folder)
    assert report.read_bytes == 3 * size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
    assert report.damages[0].startswith("config and tensors: ")


def test_names_reach_a_terminal_in_quotes(tmp_path: Path) -> None:
    folder = write_shard(tmp_path / "m", {"\x1b[31mred": ("F32", [1 << 16], 1 << 18)})
    with Jobs(1) as jobs:
        verifier = Verifier(folder, jobs, lambda what, done, total: None)
        os.truncate(folder / "model.safetensors", 4096)
        damages = verifier.run().damages
    assert damages[0].startswith(r"'\x1b[31mred': ")
    assert not any("\x1b" in line for line in damages)


def test_checkpoints(tmp_path: Path) -> None:
    for folder in (TINY_K3, TINY_LINEAR):
        report = verify(folder)
        assert report.damages == ()
        assert "safetensors has no checksums" in report.unprotected[0]
    shutil.copytree(TINY_K3, tmp_path / "m")
    source = open_source(tmp_path / "m")
    parts = [part.name for part in source.banks[2].parts]
    extent = source.record(2, 7)[parts.index("w2.weight_scale")]
    with source.paths[extent.file].open("r+b") as file:
        file.seek(extent.offset + 3)
        file.write(b"\xff")
    (damage,) = verify(tmp_path / "m").damages
    assert damage.startswith("layer 2, expert 7: w2.weight_scale holds 255")


def test_the_command(call: Call, container: Path, tmp_path: Path) -> None:  # noqa: F811
    found = call("verify", str(container), "--against", "demo", "--json").json
    assert found["damages"] == []
    errors = {kind: entry["error"] for kind, entry in found["errors"].items()}
    original, slow = Original(DEMO), SlowContainer(container)
    for matrix, kind in enumerate(("experts, gate", "experts, up", "experts, down")):
        expected = relative_error(
            [slow.expert(1, index)[matrix] for index in range(64)],
            [original.expert(1, index)[matrix] for index in range(64)],
        )
        assert errors[kind] == pytest.approx(expected, rel=1e-3)
    assert 0.003 < errors["embedding"] < 0.008
    assert errors["router"] == errors["norms"] == errors["attention"] == 0
    text = call("verify", str(container), "--against", "demo")
    assert text.code == 0
    assert "nothing damaged" in text.out
    assert "experts, down" in text.out
    shutil.copytree(container, tmp_path / "c")
    raw = np.fromfile(tmp_path / "c" / "experts-L1.bin", np.uint8)
    raw[[200, 9000]] ^= 1
    raw.tofile(tmp_path / "c" / "experts-L1.bin")
    broken = call("verify", str(tmp_path / "c"))
    assert broken.code == 4
    assert broken.out.count("damaged: layer 1, expert") == 2
    assert broken.err.count("\n") == 1

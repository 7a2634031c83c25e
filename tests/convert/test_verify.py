"""Verification finds every flipped byte that something protects, and says what nothing does."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import Call
from tests.cli.conftest import call  # noqa: F401  # the fixture
from tests.convert.conversions import DEMO, GOLDEN, TINY_K3, TINY_LINEAR, Original, convert, relative_error
from tests.convert.slow_container import SlowContainer
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
    assert report.unprotected == ("manifest.json itself, the padding of records, and reserved fields of headers",)
    assert report.read_bytes > 0.9 * (container / "trunk.bin").stat().st_size
    foreign = verify(GOLDEN / "tiny-k3-vq4p.waste")
    assert foreign.damages == ()
    assert "written without their checksums" in foreign.unprotected[1]


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

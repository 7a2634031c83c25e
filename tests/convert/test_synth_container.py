"""Synthetic containers: what a conversion's readers and checks find good, noise that answers, holes that open."""

from __future__ import annotations

import shutil
import zlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert.slow_container import SlowContainer
from tests.convert.test_synth import digest
from tests.convert.test_verify import verify
from tests.engine.harness import Recorder, all_logits, open_model
from tests.model.configs import golden_config
from waste.convert import synth_container
from waste.convert.durable import write_at
from waste.convert.shapes import shape_config
from waste.convert.synth_container import ContainerWriter, zeros_checksum
from waste.errors import InputError, WasteError
from waste.model.bundle import load_bundle
from waste.model.config import parse_config
from waste.model.tensors import tensor_shapes

FORMATS = [("VQ3R", "Q8G"), ("VQ4P", "Q4G"), ("VQ2R", "BF16"), ("MXFP4", "Q8G"), ("MXFP4", "BF16")]
IDS = [3, 141, 59, 26, 53, 58, 97, 93]


def small(name: str = "tiny-k3") -> dict[str, Any]:
    """A golden model's config with a dense layer wide enough to be quantized, in rows of no whole groups."""
    raw = golden_config(name)
    raw.get("text_config", raw).update(intermediate_size=1024, moe_intermediate_size=64)
    return raw


def make(out: Path, raw: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a container at `out`; `changes` of the options."""
    writer(raw, **changes).write(out)
    return out


def writer(raw: dict[str, Any] | None = None, **changes: Any) -> ContainerWriter:
    options = {"experts": "VQ3R", "trunk": "Q8G", "seed": 1, "is_sparse": False, "jobs": 2, **changes}
    return ContainerWriter(small() if raw is None else raw, **options)


@pytest.mark.parametrize(("experts", "trunk"), FORMATS)
@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
async def test_noise_opens_verifies_and_answers(tmp_path: Path, name: str, experts: str, trunk: str) -> None:
    raw = small(name)
    out = make(tmp_path / "c", raw, experts=experts, trunk=trunk)
    assert load_bundle(out).config == parse_config(raw)
    report = verify(out)
    assert report.damages == ()
    assert not any("without" in line for line in report.unprotected)
    tap = Recorder()
    async with open_model(out, verify=True) as engine:
        logits = await all_logits(engine, IDS, tap)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
    assert len(set(logits.argmax(1).tolist())) > len(IDS) // 2
    assert 0.05 < np.abs(tap.all_hidden).mean() < 20
    for layer in np.sort(tap.all_ids, axis=-1):
        assert len({tuple(chosen) for chosen in layer.tolist()}) > len(IDS) // 2


@pytest.mark.parametrize(("experts", "trunk"), FORMATS)
def test_weights_have_zero_mean_and_rows_of_length_one(tmp_path: Path, experts: str, trunk: str) -> None:
    found = SlowContainer(make(tmp_path / "c", experts=experts, trunk=trunk))
    assert {entry["name"] for entry in found.manifest["trunk"]} == set(tensor_shapes(parse_config(small())))
    wide = "language_model.model.layers.0.mlp.gate_proj.weight"
    code = {"Q8G": 2, "Q4G": 3, "BF16": 17}[trunk]
    assert found.entry(wide)["fmt"] == code
    experts_found = [matrix for index in range(12) for matrix in found.expert(2, index)]
    for rows in (found.tensor(wide), *experts_found[:6]):
        assert np.sqrt((rows**2).sum(1).mean()) == pytest.approx(1, rel=0.3 if experts == "MXFP4" else 0.1)
        assert abs(rows.mean()) < 6 * rows.std() * rows.size**-0.5
    assert len({matrix.tobytes() for matrix in experts_found}) == len(experts_found)
    assert found.tensor("language_model.model.norm.weight").mean() == pytest.approx(1, abs=0.05)
    assert not found.tensor("language_model.model.layers.0.self_attn.A_log").any()


def test_what_fills_up_rows_is_zero(tmp_path: Path) -> None:
    for trunk, filling in (("Q8G", 0), ("Q4G", 0x88)):
        found = SlowContainer(make(tmp_path / trunk, trunk=trunk))
        entry = found.entry("language_model.model.layers.0.mlp.gate_proj.weight")
        stored = found.trunk[entry["off"] : entry["scale_off"]].reshape(1024, -1)
        used = stored.shape[1] * 160 // 256
        assert (stored[:, used:] == filling).all()
        assert (stored[:, :used] != filling).any()


def test_bytes_follow_from_the_options_however_many_threads(tmp_path: Path) -> None:
    made = [
        digest(make(tmp_path / str(number), seed=seed, jobs=jobs, is_sparse=is_sparse))
        for number, (seed, jobs, is_sparse) in enumerate([(3, 1, False), (3, 3, False), (4, 2, False), (3, 2, True)])
    ]
    assert made[0] == made[1]
    assert len(set(made)) == 3


@pytest.mark.parametrize(("experts", "trunk"), FORMATS)
async def test_holes_open_verify_and_walk(tmp_path: Path, experts: str, trunk: str) -> None:
    out = make(tmp_path / "c", experts=experts, trunk=trunk, is_sparse=True)
    assert verify(out).damages == ()
    async with open_model(out, verify=True) as engine:
        assert [token.id async for token in engine.generate(IDS, max_tokens=2)] == [0, 0]
    assert not SlowContainer(out).expert(1, 0)[0].any()


def test_holes_take_no_room(tmp_path: Path) -> None:
    made = writer(shape_config("kimi-linear", layers=4, experts=64), is_sparse=True)
    made.write(tmp_path / "c")
    files = [path.stat() for path in (tmp_path / "c").iterdir()]
    assert sum(file.st_size for file in files) >= made.total_bytes > 1e9
    assert sum(file.st_blocks * 512 for file in files) < made.disk_bytes + 1e6 < 3e6
    load_bundle(tmp_path / "c")


def test_the_checksum_of_zeros() -> None:
    for count in (0, 1, 1 << 20, (1 << 20) + 1, 3_000_001):
        assert zeros_checksum(count) == zlib.crc32(bytes(count))


def test_a_full_disk_is_refused_by_what_will_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = shape_config("kimi-linear", layers=4, experts=64)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(80_000_000))
    with pytest.raises(InputError, match=r"80,000,000 free; make room or use --sparse"):
        make(tmp_path / "c", raw)
    make(tmp_path / "c", raw, is_sparse=True)
    with pytest.raises(InputError, match="exists"):
        make(tmp_path / "c", raw, is_sparse=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10_000_000))
    with pytest.raises(InputError, match=r"10,000,000 free; make room$"):
        make(tmp_path / "d", raw, is_sparse=True)


@pytest.mark.parametrize("jobs", [1, 3])
def test_stopped_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    made, written = writer(jobs=jobs), []

    def stop(descriptor: int, data: memoryview, position: int) -> None:
        write_at(descriptor, data, position)
        written.append(position)
        if len(written) == 90:
            made.stop()

    monkeypatch.setattr(synth_container, "write_at", stop)
    with pytest.raises(KeyboardInterrupt):
        made.write(tmp_path / "c")
    assert 90 <= len(written) < 90 + jobs
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        made.write(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: memoryview, position: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synth_container, "write_at", fail)
    with pytest.raises(WasteError, match="No space left"):
        make(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []

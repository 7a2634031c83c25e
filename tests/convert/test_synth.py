"""Synthetic checkpoints: they open, check, plan and walk like published ones, and follow from their seed."""

from __future__ import annotations

import hashlib
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.configs import KIMI_K3, KIMI_LINEAR, changed, golden_config
from waste.convert import synth
from waste.convert.published import published_source
from waste.convert.shapes import SHAPES, Shape, shape_config
from waste.convert.synth import SynthWriter
from waste.errors import InputError, WasteError
from waste.io.source import open_source
from waste.model.bundle import load_bundle
from waste.model.config import parse_config
from waste.model.tensors import check_tensors


def small(quantized: bool = True) -> dict[str, Any]:
    """A golden model's config: small enough to write in a test."""
    return golden_config("tiny-k3" if quantized else "tiny-kimi-linear")


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


@pytest.mark.parametrize("quantized", [True, False])
def test_a_noise_checkpoint_opens_and_is_what_its_config_says(tmp_path: Path, quantized: bool) -> None:
    SynthWriter(small(quantized), seed=1, is_sparse=False).write(tmp_path / "m")
    bundle = load_bundle(tmp_path / "m")
    assert bundle.config == parse_config(small(quantized))
    shard = tmp_path / "m" / "model-00003-of-00008.safetensors" if quantized else None
    assert shard is None or shard.stat().st_size > 0


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        SynthWriter(small(), seed=seed, is_sparse=False).write(tmp_path / name)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_the_layout_is_the_published_one(tmp_path: Path) -> None:
    SynthWriter(small(), seed=0, is_sparse=False).write(tmp_path / "m")
    source = open_source(tmp_path / "m")
    for bank in source.banks:
        extents = source.record(bank, 0)
        assert sum(e.length for e in extents) == max(e.end for e in extents) - min(e.offset for e in extents)
    a_log = source.tensors["language_model.model.layers.0.self_attn.A_log"]
    assert (a_log.dtype, a_log.shape) == ("F32", (128,))


@pytest.mark.parametrize("quantized", [True, False])
def test_a_plan_from_config_alone_sees_the_same_sizes(tmp_path: Path, quantized: bool) -> None:
    raw = small(quantized)
    SynthWriter(raw, seed=0, is_sparse=True).write(tmp_path / "m")
    stored, (planned, _) = open_source(tmp_path / "m"), published_source(raw)
    assert {n: (t.dtype, t.shape) for n, t in stored.tensors.items()} == {
        n: (t.dtype, t.shape) for n, t in planned.tensors.items()
    }
    assert dict(stored.banks) == planned.banks
    for bank in planned.banks:
        first = [stored.record(bank, 0)[0].offset - planned.record(bank, 0)[0].offset] * len(planned.record(bank, 1))
        assert [
            a.offset - b.offset for a, b in zip(stored.record(bank, 1), planned.record(bank, 1), strict=False)
        ] == first


def test_a_sparse_one_takes_no_room(tmp_path: Path) -> None:
    raw = shape_config("kimi-linear", layers=4, experts=8)
    writer = SynthWriter(raw, seed=0, is_sparse=True)
    writer.write(tmp_path / "m")
    files = list((tmp_path / "m").iterdir())
    assert sum(path.stat().st_size for path in files) >= writer.total_bytes > 1e9
    assert sum(path.stat().st_blocks * 512 for path in files) < 4e6
    load_bundle(tmp_path / "m")


@pytest.mark.parametrize(("shape", "published"), [("k3", KIMI_K3), ("kimi-linear", KIMI_LINEAR)])
def test_full_shapes_are_the_published_ones(shape: Shape, published: dict[str, Any]) -> None:
    ours, theirs = parse_config(shape_config(shape)), parse_config(changed(published))
    for field in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "attn_res_block_size"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert (ours.kda, ours.mla, ours.moe) == (theirs.kda, theirs.mla, theirs.moe)
    assert (ours.activation, ours.layer_is_kda) == (theirs.activation, theirs.layer_is_kda)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layers", [2, 3, 5, 9, 93])
def test_any_number_of_layers_makes_a_model(shape: Shape, layers: int) -> None:
    raw = shape_config(shape, layers=layers, experts=16)
    source, config = published_source(raw)
    check_tensors(config, source.tensors, source.banks)
    assert not config.layer_is_kda[-1]
    if config.attn_res_block_size is not None:
        assert 1 <= config.attn_res_block_size <= min(12, layers)


def test_noise_has_zero_mean_and_keeps_rows_of_order_one(tmp_path: Path) -> None:
    raw = shape_config("kimi-linear", layers=2, experts=8)
    noise = synth.Noise(0)
    for columns, name in ((2304, "q_proj.weight"), (9216, "down_proj.weight")):
        stored = synth.Stored(name, "BF16", (64, columns))
        path = tmp_path / name
        with path.open("wb") as file:
            noise.write(stored, file)
        bits = np.fromfile(path, np.uint16).astype(np.uint32) << 16
        rows = bits.view(np.float32).reshape(64, columns)
        assert abs(rows.mean()) < 4 * columns**-0.5 * rows.size**-0.5
        assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, rel=0.2)
    assert raw["num_experts"] == 8


def test_counts_that_make_no_model_are_refused() -> None:
    for bad in ({"layers": 0}, {"experts": 0}, {"layers": 1}, {"layers": 5000}, {"experts": 3}, {"experts": 70000}):
        with pytest.raises(InputError, match="expected"):
            shape_config("k3", **bad)


def test_existing_output_and_a_full_disk_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SynthWriter(small(), seed=0, is_sparse=False)
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="exists"):
        writer.write(tmp_path / "taken")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000))
    with pytest.raises(InputError, match=r"needs .* 1,000 free"):
        writer.write(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_stopped_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SynthWriter(small(), seed=0, is_sparse=False)
    values, asked = synth.Noise._values, []

    def stop(self: synth.Noise, tensor: synth.Stored) -> Any:
        asked.append(tensor.name)
        if len(asked) == 5:
            writer.stop()
        return values(self, tensor)

    monkeypatch.setattr(synth.Noise, "_values", stop)
    with pytest.raises(KeyboardInterrupt):
        writer.write(tmp_path / "m")
    assert len(asked) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made"):
        SynthWriter(small(), seed=0, is_sparse=False).write(tmp_path / "file" / "sub" / "m")


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def fail(self: synth.Noise, tensor: synth.Stored, file: Any, check: Any) -> None:
        written.append(tensor.name)
        if len(written) == 40:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(synth.Noise, "write", fail)
    with pytest.raises(WasteError, match="No space left"):
        SynthWriter(small(), seed=0, is_sparse=False).write(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []

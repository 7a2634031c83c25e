"""Published checkpoints: read whole, broken in every way an index and its shards can be, and at scale."""

import gc
import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.io.checkpoints import (
    GOLDEN,
    GOLDEN_NAMES,
    INDEX,
    LFS_STUB,
    copy_golden,
    read_header_json,
    write_checkpoint,
    write_shard,
)
from waste.errors import DamagedError, ModelError, WasteError
from waste.io.arena import Arena
from waste.io.backends import create
from waste.io.backends.base import ReadOp
from waste.io.backends.contract import run_reads
from waste.io.checkpoint import Checkpoint
from waste.io.extents import Extent, coalesce, place
from waste.io.files import FileSet

FIRST, SECOND = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
NAME = "language_model.model.layers.0.input_layernorm.weight"
EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.3."


def stored_bytes(folder: Path) -> dict[str, bytes]:
    """Every tensor of a folder, cut out of its file without the code under test."""
    found = {}
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        base = 8 + int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8:base]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = raw[base + begin : base + end]
    return found


@pytest.mark.parametrize("name", GOLDEN_NAMES)
async def test_everything_read_is_what_is_stored(name: str) -> None:
    source = Checkpoint(GOLDEN / name)
    prefix = "language_model." if name == "tiny-k3" else ""
    extents: dict[str, Extent] = {key: info.extent for key, info in source.tensors.items()}
    for number, bank in source.banks.items():
        for index in range(bank.records):
            for part, extent in zip(bank.parts, source.record(number, index), strict=True):
                key = f"{prefix}model.layers.{number}.block_sparse_moe.experts.{index}.{part.name}"
                assert key not in extents
                extents[key] = extent
    expected = stored_bytes(GOLDEN / name)
    assert extents.keys() == expected.keys()

    placement = place(list(extents.values()), align=FileSet.alignment, max_gap=0, max_read_bytes=1 << 18)
    buffer = Arena(1, placement.buffer_bytes).slot(0)
    ops = [
        ReadOp(token, r.file, r.offset, r.length, r.need, buffer[r.at : r.at + r.length].data)
        for token, r in enumerate(placement.reads)
    ]
    files = FileSet(source.paths, warn=lambda message: None)
    completions = await run_reads(create("threads", queue_depth=4), files, ops)
    assert all(completion.error is None for completion in completions.values())
    for (key, extent), start in zip(extents.items(), placement.starts, strict=True):
        assert buffer[start : start + extent.length].tobytes() == expected[key], key


def test_tables_of_a_golden_checkpoint() -> None:
    source = Checkpoint(GOLDEN / "tiny-k3")
    assert [path.name for path in source.paths] == sorted(path.name for path in source.paths)
    assert source.config["model_type"] == "kimi_k3"
    info = source.tensors[NAME]
    assert (info.dtype, info.shape, info.extent.length) == ("BF16", (160,), 320)
    assert list(source.banks) == [1, 2, 3, 4, 5, 6]
    bank = source.banks[1]
    assert bank.records == 12
    assert [(part.name, part.dtype, part.shape) for part in bank.parts] == [
        ("w1.weight_packed", "U8", (64, 48)),
        ("w1.weight_scale", "U8", (64, 3)),
        ("w3.weight_packed", "U8", (64, 48)),
        ("w3.weight_scale", "U8", (64, 3)),
        ("w2.weight_packed", "U8", (96, 32)),
        ("w2.weight_scale", "U8", (96, 2)),
    ]
    assert len(coalesce(source.record(1, 0), max_gap=0)) == 1, "the six tensors lie together"
    assert source.describe_extent(Extent(1, 123_456, 9)) == f"{SECOND} at 123,456"
    assert not any(".block_sparse_moe.experts." in name for name in source.tensors)
    with pytest.raises(KeyError):
        source.record(0, 0)
    for index in (-1, 12):
        with pytest.raises(IndexError):
            source.record(1, index)


def test_bf16_experts_have_three_parts_in_order() -> None:
    bank = Checkpoint(GOLDEN / "tiny-kimi-linear").banks[1]
    assert [part.name for part in bank.parts] == ["w1.weight", "w3.weight", "w2.weight"]


def test_one_shard_needs_no_index(tmp_path: Path) -> None:
    folder = copy_golden("tiny-groups", tmp_path)
    expected = Checkpoint(folder)
    (folder / INDEX).unlink()
    found = Checkpoint(folder)
    assert found.tensors == expected.tensors
    assert found.banks == expected.banks


def test_files_the_index_does_not_name_are_ignored(tmp_path: Path) -> None:
    folder = copy_golden("tiny-groups", tmp_path)
    (folder / "consolidated.safetensors").write_bytes(b"nothing of ours")
    assert len(Checkpoint(folder).paths) == 1


Break = Callable[[Path], object]


def index(change: Callable[[dict[str, object]], object]) -> Break:
    """Change the weight_map."""

    def apply(folder: Path) -> None:
        parsed = json.loads((folder / INDEX).read_text())
        change(parsed["weight_map"])
        (folder / INDEX).write_text(json.dumps(parsed))

    return apply


def file(name: str, content: bytes) -> Break:
    return lambda folder: (folder / name).write_bytes(content)


def moved_shard(folder: Path) -> None:
    first, second = folder / FIRST, folder / SECOND
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)


def cut_shard(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-100])


def also_in_second(folder: Path) -> None:
    """A tensor that two shards hold and the index places in the first."""
    path = folder / SECOND
    raw = path.read_bytes()
    header = {**read_header_json(path), NAME: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + int.from_bytes(raw[:8], "little") :])


BREAKS: dict[str, tuple[Break, type[WasteError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ModelError, "config.json"),
    "config is an LFS stub": (file("config.json", LFS_STUB), DamagedError, "git lfs pull"),
    "config is a list": (file("config.json", b"[]"), DamagedError, "config.json is a JSON list"),
    "config is cut": (file("config.json", b'{"a": 1'), DamagedError, "config.json is not JSON"),
    "config names a key twice": (file("config.json", b'{"a": 1, "a": 2}'), DamagedError, "'a' twice"),
    "config is huge": (
        lambda f: os.truncate(f / "config.json", 1 << 40),
        DamagedError,
        "expected at most",
    ),
    "index is an LFS stub": (file(INDEX, LFS_STUB), DamagedError, "git lfs pull"),
    "index is cut": (
        lambda f: (f / INDEX).write_bytes((f / INDEX).read_bytes()[:999]),
        DamagedError,
        "not JSON",
    ),
    "index is empty": (file(INDEX, b""), DamagedError, "is empty"),
    "index is not UTF-8": (file(INDEX, b'{"\xff": 1}'), DamagedError, "UTF-8"),
    "index is a list": (file(INDEX, b"[]"), DamagedError, "weight_map"),
    "weight_map is missing": (file(INDEX, b"{}"), DamagedError, "weight_map"),
    "weight_map is a list": (file(INDEX, b'{"weight_map": []}'), DamagedError, "weight_map"),
    "weight_map is empty": (file(INDEX, b'{"weight_map": {}}'), DamagedError, "no tensors"),
    "shard is a number": (index(lambda m: m.update({NAME: 1})), DamagedError, "expected a shard's name"),
    "no index": (lambda f: (f / INDEX).unlink(), ModelError, f"no {INDEX}"),
    "no shards": (
        lambda f: [path.unlink() for path in (f / INDEX, *f.glob("*.safetensors"))],
        ModelError,
        "no *.safetensors",
    ),
    "one shard of three, no index": (
        lambda f: [(f / name).unlink() for name in (INDEX, SECOND, "model-00003-of-00003.safetensors")],
        ModelError,
        f"no {INDEX}",
    ),
    "shard missing": (lambda f: (f / SECOND).unlink(), ModelError, f"{SECOND} is missing (1 of 3"),
    "shard is an LFS stub": (file(SECOND, LFS_STUB), DamagedError, "git lfs pull"),
    "shard cut": (cut_shard, DamagedError, f"{SECOND} is truncated"),
    "shard is a folder": (
        lambda f: [(f / SECOND).unlink(), (f / SECOND).mkdir()],
        ModelError,
        "not a regular file",
    ),
    "shards swapped": (moved_shard, DamagedError, "places in"),
    "tensor listed and not stored": (
        index(lambda m: m.update({"ghost": FIRST})),
        DamagedError,
        f"{FIRST} lacks 'ghost'",
    ),
    "tensor stored and not listed": (index(lambda m: m.pop(NAME)), DamagedError, "does not list"),
    "tensor listed elsewhere": (index(lambda m: m.update({NAME: SECOND})), DamagedError, f"places in {SECOND}"),
    "tensor in two shards": (also_in_second, DamagedError, f"places in {FIRST}"),
}


@pytest.mark.parametrize(("damage", "error", "says"), BREAKS.values(), ids=BREAKS.keys())
def test_a_broken_checkpoint_says_what_is_wrong(
    tmp_path: Path, damage: Break, error: type[WasteError], says: str
) -> None:
    folder = copy_golden("tiny-k3", tmp_path)
    damage(folder)
    with pytest.raises(error) as caught:
        Checkpoint(folder)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert gc.isenabled()


NOT_PLAIN = ("../x", "/etc/x", "a/b", "a\\b", "C:x", "x\0", "\ud800", "a\nb")


@pytest.mark.parametrize("name", ["..", "", "x.bin", *(f"{stem}.safetensors" for stem in NOT_PLAIN)])
def test_a_shard_is_a_plain_name(tmp_path: Path, name: str) -> None:
    folder = copy_golden("tiny-k3", tmp_path)
    index(lambda m: m.update({NAME: name}))(folder)
    with pytest.raises(DamagedError, match="plain"):
        Checkpoint(folder)


def test_a_name_too_long_for_the_system_is_ours(tmp_path: Path) -> None:
    folder = copy_golden("tiny-k3", tmp_path)
    index(lambda m: m.update({NAME: "a" * 5000 + ".safetensors"}))(folder)
    with pytest.raises(WasteError):
        Checkpoint(folder)


def expert(layer: int, record: int, part: str, prefix: str = "model.") -> str:
    return f"{prefix}layers.{layer}.block_sparse_moe.experts.{record}.{part}"


def experts(layer: int, records: int, prefix: str = "model.") -> dict[str, tuple[str, list[int], int]]:
    return {
        expert(layer, record, f"{w}.weight", prefix): ("BF16", [2, 3], 12)
        for record in range(records)
        for w in ("w1", "w2", "w3")
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(expert(1, 1, "w3.weight")), "experts.1.w3.weight is missing"),
        (lambda t: [t.pop(expert(1, 0, f"{w}.weight")) for w in ("w1", "w2", "w3")], "experts.0.w1.weight is missing"),
        (lambda t: t.update({expert(1, 999_999, "w1.weight"): ("BF16", [2, 3], 12)}), "experts.4.w1.weight is missing"),
        (lambda t: t.update({expert(1, 2, "w2.weight"): ("BF16", [3, 2], 12)}), "experts.2.w2.weight"),
        (lambda t: t.update({expert(1, 2, "w2.weight"): ("F16", [2, 3], 12)}), "experts.2.w2.weight"),
        (lambda t: t.update(experts(2, 1, "vision.")), "under the prefix 'vision.'"),
    ],
)
def test_unequal_experts_are_named(tmp_path: Path, change: Callable[[dict[str, object]], object], says: str) -> None:
    tensors = experts(1, 4)
    change(tensors)  # type: ignore[arg-type]
    with pytest.raises(DamagedError) as caught:
        Checkpoint(write_checkpoint(tmp_path / "m", {"a.safetensors": tensors}))
    assert says in str(caught.value)


def test_names_that_only_look_like_experts_are_tensors(tmp_path: Path) -> None:
    odd = ["model.layers.01.block_sparse_moe.experts.0.w1.weight", expert(1, 0, "w4.weight"), expert(1, 0, "w1.bias")]
    odd += [
        expert(1, 0, "w1.weight") + "\n",
        "layers.1.mlp.experts.0.w1.weight",
        "xlayers.1.block_sparse_moe.experts.0.w1.weight",
    ]
    source = Checkpoint(write_checkpoint(tmp_path / "m", {"a.safetensors": {name: ("U8", [1], 1) for name in odd}}))
    assert set(source.tensors) == set(odd)
    assert not source.banks


def test_a_record_may_lie_anywhere(tmp_path: Path) -> None:
    """Six tensors of one expert over two shards, in an order of their own."""
    everything = list(experts(7, 30).items())
    random.Random(5).shuffle(everything)
    shards = {"a.safetensors": dict(everything[:40]), "b.safetensors": dict(everything[40:])}
    source = Checkpoint(write_checkpoint(tmp_path / "m", shards))
    base = {name: 8 + len(json.dumps(read_header_json(tmp_path / "m" / name))) for name in shards}
    for record in range(30):
        for part, extent in zip(("w1", "w3", "w2"), source.record(7, record), strict=True):
            shard = source.paths[extent.file].name
            position = list(shards[shard]).index(expert(7, record, f"{part}.weight"))
            assert extent == Extent(extent.file, base[shard] + 12 * position, 12)


def test_half_a_million_tensors_stay_small(tmp_path: Path) -> None:
    """At a twentieth of K3's size: what remains is a few bytes a tensor, and opening it is quick."""
    shards = {
        f"model-{layer:05d}.safetensors": {
            **{f"model.layers.{layer}.norm_{i}.weight": ("F32", [4], 16) for i in range(25)},
            **experts(layer, 850),
        }
        for layer in range(1, 11)
    }
    folder = write_checkpoint(tmp_path / "m", shards)
    count = sum(map(len, shards.values()))
    assert count == 25_750
    del shards
    tracemalloc.start()
    try:
        begin = time.process_time()
        source = Checkpoint(folder)
        seconds = time.process_time() - begin
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [bank.records for bank in source.banks.values()] == [850] * 10
    assert len(source.tensors) == 250
    assert kept < 32 * count
    assert peak < 600 * count
    assert seconds < 5, "tracing included; 200 µs a tensor would take K3 minutes"


def test_an_empty_shard_is_fine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "model.safetensors", {})
    source = Checkpoint(tmp_path)
    assert not source.tensors
    assert not source.banks

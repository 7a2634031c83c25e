"""Checkpoints to break: copies of a golden one, and tiny ones written from a description."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_NAMES = ("tiny-k3", "tiny-kimi-linear", "tiny-groups")
INDEX = "model.safetensors.index.json"
LFS_STUB = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def copy_golden(name: str, to: Path) -> Path:
    """A copy without the answers, free to be damaged."""
    return Path(shutil.copytree(GOLDEN / name, to / name, ignore=shutil.ignore_patterns("*.npz")))


def read_header_json(path: Path) -> dict[str, object]:
    raw = path.read_bytes()
    parsed: dict[str, object] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return parsed


def with_header(path: Path, header: bytes) -> None:
    """Replace the header of a safetensors file and keep its tensors' bytes."""
    raw = path.read_bytes()
    data = raw[8 + int.from_bytes(raw[:8], "little") :]
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_shard(path: Path, tensors: Mapping[str, tuple[str, list[int], int]]) -> None:
    """A safetensors file of zeros; tensors: name to (dtype, shape, bytes)."""
    header, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.truncate(8 + len(raw) + end)


def write_checkpoint(folder: Path, shards: Mapping[str, Mapping[str, tuple[str, list[int], int]]]) -> Path:
    """A folder with an empty config, an index and these shards."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for shard, tensors in shards.items():
        write_shard(folder / shard, tensors)
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder

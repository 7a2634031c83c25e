"""Containers to break and to vary: copies of golden ones, and new ones written byte by byte as the format's page says.

Nothing here uses the package's own idea of the format.
"""

from __future__ import annotations

import copy
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.io.checkpoints import GOLDEN, read_header_json

CONTAINERS = ("nano-k3.waste", "nano-kl.waste", "tiny-k3-vq4p.waste")
MATRICES = ("w1", "w3", "w2")


def copy_container(name: str, to: Path) -> Path:
    """A copy without the answers, free to be damaged."""
    return Path(shutil.copytree(GOLDEN / name, to / name, ignore=shutil.ignore_patterns("*.npz")))


def read_manifest_json(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = read_manifest_json(folder)
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def padded(data: bytes, size: int) -> bytes:
    return data + bytes(-len(data) % size)


def record(layer: int, expert: int, code: int, base: int, starts: Sequence[int], scales: int, payload: bytes) -> bytes:
    """A whole record; `starts` and `scales` count from its beginning, the payload follows the header."""
    blocks = -(-(48 + len(payload)) // 4096)
    header = struct.pack(
        "<IHHBBHHHIIIIIIII",
        *(0x50584557, layer, expert, code, 0, base, 0, 0, blocks, *starts, scales, zlib.crc32(payload), 0, 0),
    )
    return padded(header + payload, 4096)


def write_container(
    folder: Path,
    manifest: dict[str, Any],
    trunk: Sequence[tuple[str, int, Sequence[int], bytes, bytes]],
    banks: Mapping[int, Sequence[bytes]],
) -> Path:
    """trunk: name, format, shape, weights, scales. banks: the records of each layer."""
    folder.mkdir()
    manifest = {"format_version": 0, "arch": "any", **manifest, "layers": {}, "trunk": []}
    with (folder / "trunk.bin").open("wb") as stream:
        for name, code, shape, weights, scales in trunk:
            entry = {"name": name, "fmt": code, "off": stream.tell(), "shape": list(shape)}
            if scales:
                entry |= {"group": 128, "scale_off": stream.tell() + len(weights)}
            manifest["trunk"].append(entry | {"bytes": len(weights) + len(scales)})
            stream.write(weights + scales)
    for layer, records in banks.items():
        data = b"".join(records)
        (folder / f"experts-L{layer}.bin").write_bytes(data)
        entry = {"file": f"experts-L{layer}.bin", "experts": len(records), "bytes": len(data)}
        manifest["layers"][str(layer)] = entry | {"codebook_base": manifest.pop(f"base-{layer}", 0)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def stored_tensors(checkpoint: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of a checkpoint: dtype, shape, bytes."""
    found = {}
    for shard in sorted(checkpoint.glob("*.safetensors")):
        raw = shard.read_bytes()
        base = 8 + int.from_bytes(raw[:8], "little")
        for name, entry in read_header_json(shard).items():
            if name != "__metadata__" and isinstance(entry, dict):
                begin, end = entry["data_offsets"]
                found[name] = (entry["dtype"], entry["shape"], raw[base + begin : base + end])
    return found


def lossless(checkpoint: Path, folder: Path) -> Path:
    """The container with the same weights as an MXFP4 checkpoint."""
    tensors = stored_tensors(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    outer, text = {key: value for key, value in config.items() if key != "text_config"}, config["text_config"]
    codes = {"F32": 0, "BF16": 17}
    trunk = [
        (name, codes[dtype], shape, data, b"")
        for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: "lm_head" not in item[0])
        if ".experts." not in name
    ]
    banks = {}
    for layer in range(text["first_k_dense_replace"], text["num_hidden_layers"]):
        prefix = f"language_model.model.layers.{layer}.block_sparse_moe.experts."
        banks[layer] = [
            mxfp4_record(layer, expert, lambda part, at=f"{prefix}{expert}.": tensors[at + part][2])
            for expert in range(text["num_experts"])
        ]
    manifest = {
        "tensor_prefix": "language_model.",
        "config": {**text, "_outer": outer},
        "expert_quant": {"fmt": "MXFP4"},
        "requires": ["mxfp4", "bf16"],
    }
    return write_container(folder, manifest, trunk, banks)


def mxfp4_record(layer: int, expert: int, part: Callable[[str], bytes]) -> bytes:
    data, starts = bytes(48), []
    for name in MATRICES:
        for half in ("packed", "scale"):
            data = padded(data, 64)
            if half == "packed":
                starts.append(len(data))
            data += part(f"{name}.weight_{half}")
    return record(layer, expert, 16, 0, starts, len(data), data[48:])


def halves(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> bytes:
    return (rng.standard_normal(shape) * scale).astype("<f2").tobytes()


def grouped(rng: np.random.Generator, rows: int, columns: int, bits: int) -> tuple[bytes, bytes]:
    """Random weights and scales of Q8G or Q4G of the usual size of a weight."""
    groups = rows * -(-columns // 128)
    weights = rng.integers(0, 256, groups * 128 * bits // 8, np.uint8).tobytes()
    scales = (rng.random(groups) * 2 / 2**bits / columns**0.5).astype("<f2").tobytes()
    return weights, scales


def codebook(number: int, entries: int, values: bytes) -> bytes:
    return struct.pack("<IHBBII", 0x4B424357, number, 4, 8, entries, 0) + values


def another(folder: Path) -> Path:
    """nano-k3's shape in everything that the golden containers lack: VQ2R without index blocks, F16, a Q8G vector."""
    rng = np.random.default_rng(11)
    source = read_manifest_json(GOLDEN / "nano-k3.waste")
    config = source["config"]
    trunk = []
    for entry in source["trunk"]:
        name, shape = entry["name"], entry["shape"]
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        if name.endswith(("layernorm.weight", "norm.weight")):
            trunk.append((name, 1, shape, np.ones(shape, "<f2").tobytes(), b""))
        elif name.endswith("dt_bias"):
            trunk.append((name, 2, shape, *grouped(rng, 1, columns, 8)))
        elif len(shape) == 2 and rows > 1:
            code = int(rng.choice([1, 2, 3]))
            weights = (halves(rng, rows, columns, scale=columns**-0.5), b"")
            trunk.append((name, code, shape, *(weights if code == 1 else grouped(rng, rows, columns, 8 // (code - 1)))))
        else:
            trunk.append((name, 1, shape, halves(rng, *shape, scale=0.3), b""))
    inside, outside = config["moe_intermediate_size"], config["routed_expert_hidden_size"]
    banks, books = {}, b""
    bases = {}
    for layer in range(1, config["num_hidden_layers"]):
        bases[f"base-{layer}"] = base = 6 * (layer - 1) + 2  # two that nobody uses come first
        banks[layer] = [vq2r_record(rng, layer, expert, base, inside, outside) for expert in range(16)]
    for number in range(2 + 6 * len(banks)):
        books += codebook(number, 256, halves(rng, 256, 8, scale=0.5))
    quant = {"fmt": "VQ2R", "stages": 2, "vec_dim": 8, "entries": 256, "index_block": 0, "bits_per_weight": 2}
    manifest = {"tensor_prefix": "language_model.", "config": config, "expert_quant": quant, **bases}
    write_container(folder, manifest, trunk, banks)
    (folder / "codebooks.bin").write_bytes(books)
    return folder


def vq2r_record(rng: np.random.Generator, layer: int, expert: int, base: int, inside: int, outside: int) -> bytes:
    size = inside * outside // 8 * 2
    payload = rng.integers(0, 256, 3 * size, np.uint8).tobytes()
    payload += halves(rng, 2 * inside + outside, scale=outside**-0.5)
    starts = [48, 48 + size, 48 + 2 * size]
    return record(layer, expert, 5, base, starts, 48 + 3 * size, payload)


HOSTILE_VALUES = [
    *(None, True, -1, 0, 1, 2, 3, 7, 8, 16, 127, 128, 255, 4096, 65535, 65536, 2**31, 2**32 - 1, 2**63, 10**40),
    *(0.5, 1e308, "", "0", "trunk.bin", "..", "x" * 3000, [], [1], [0, 2**62], {}, {"a": 1}),
]


def mutate(manifest: dict[str, Any], rng: np.random.Generator) -> None:
    """Replace, drop, double or nudge something somewhere."""
    at: Any = manifest
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[rng.integers(len(keys))]
        child = at[key]
        if isinstance(child, dict | list) and child and rng.random() < 0.85:
            at = child
            continue
        kind = rng.integers(4)
        if kind == 0 and isinstance(child, int):
            at[key] = child + int(rng.choice([-4096, -128, -2, -1, 1, 2, 128, 4096]))
        elif kind == 1:
            del at[key]
        elif kind == 2 and isinstance(at, list):
            at.append(copy.deepcopy(child))
        else:
            at[key] = copy.deepcopy(HOSTILE_VALUES[rng.integers(len(HOSTILE_VALUES))])
        return

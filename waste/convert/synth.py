"""Synthetic checkpoints: noise at real widths in the published layout, or real headers over holes.

Noise has zero mean and keeps activations of order one, so that routing varies as it does in a real model. Everything
follows from the seed. OUT appears when it is whole, under another name until then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from waste.convert.pace import Progress
from waste.convert.published import PublishedLayout, Shard, Stored
from waste.convert.synth_folder import FolderWriter
from waste.convert.synth_noise import mxfp4_scale, narrow, weight_spread
from waste.model.config import parse_config

_POOL_BYTES = 1 << 24


class SynthWriter(FolderWriter):
    """Writes one checkpoint."""

    def __init__(self, raw: Mapping[str, Any], *, seed: int, is_sparse: bool) -> None:
        super().__init__(is_sparse=is_sparse)
        self._raw = raw
        self._layout = PublishedLayout(parse_config(raw), is_mxfp4="quantization_config" in raw)
        self._noise = Noise(seed)

    @property
    def total_bytes(self) -> int:
        """See `FolderWriter.total_bytes`."""
        return sum(self._shard_bytes(shard) for shard in self._layout.shards)

    @property
    def disk_bytes(self) -> int:
        """See `FolderWriter.disk_bytes`."""
        return 0 if self.is_sparse else self.total_bytes

    def _shard_bytes(self, shard: Shard) -> int:
        expert = sum(tensor.nbytes for tensor in self._layout.expert_tensors(0, 0)) if shard.experts else 0
        return sum(tensor.nbytes for tensor in shard.trunk) + shard.experts * expert

    def _write_files(self, folder: Path, progress: Progress) -> None:
        total, done = self.total_bytes, 0
        weight_map: dict[str, str] = {}
        for shard in self._layout.shards:
            self._check_stopped()
            progress("writing", done, total)
            tensors = list(self._layout.tensors(shard))
            weight_map.update((tensor.name, shard.name) for tensor in tensors)
            with (folder / shard.name).open("wb") as file:
                header = _header(tensors)
                file.write(header)
                size = sum(tensor.nbytes for tensor in tensors)
                if self.is_sparse:
                    file.truncate(len(header) + size)
                else:
                    for tensor in tensors:
                        self._noise.write(tensor, file, self._check_stopped)
            done += size
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps(self._raw, indent=1))
        progress("writing", total, total)


def _header(tensors: list[Stored]) -> bytes:
    """The length and the JSON of a safetensors header, padded so that data begin at a multiple of 8."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Noise:
    """Bytes of seeded noise by kind of tensor. Large tensors repeat a pool from random places."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._bytes = self._random.integers(0, 256, _POOL_BYTES, dtype=np.uint8)
        self._normal = self._random.standard_normal(_POOL_BYTES // 4, dtype=np.float32)

    def write(self, tensor: Stored, file: BinaryIO, check: Callable[[], None] = lambda: None) -> None:
        """Write the tensor's bytes, a pool's worth at a time; `check` before each may raise to give up."""
        count = tensor.nbytes
        values = self._values(tensor)
        while count:
            check()
            begin = int(self._random.integers(0, len(values) - 1)) // 64 * 64
            part = values[begin : begin + count]
            file.write(part.data)
            count -= len(part)

    def _values(self, tensor: Stored) -> npt.NDArray[np.uint8]:
        """Bytes to draw the tensor from."""
        name = tensor.name
        if tensor.dtype == "U8" and name.endswith("_scale"):
            return np.full(4096, mxfp4_scale(tensor.shape[-1] * 32), np.uint8)
        if tensor.dtype == "U8":
            return self._bytes
        normal = self._normal[: min(self._normal.size, max(4096, tensor.nbytes // 2))]
        spread = weight_spread(name, tensor.shape[-1])
        values = np.float32(spread.mean) + np.float32(spread.deviation) * normal
        return values.view(np.uint8) if tensor.dtype == "F32" else narrow(values)

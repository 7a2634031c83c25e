"""Synthetic checkpoints: noise at real widths in the published layout, or real headers over holes.

Noise has zero mean and keeps activations of order one, so that routing varies as it does in a real model. Everything
follows from the seed. OUT appears when it is whole, under another name until then.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from waste.convert.published import PublishedLayout, Shard, Stored
from waste.errors import InputError, WasteError
from waste.model.config import parse_config

Progress = Callable[[str, int, int], None]
_POOL_BYTES = 1 << 24
_SLACK_BYTES = 64 << 20


class SynthWriter:
    """Writes one checkpoint. Sizes are known before anything is written."""

    def __init__(self, raw: Mapping[str, Any], *, seed: int, is_sparse: bool) -> None:
        self._raw = raw
        self._layout = PublishedLayout(parse_config(raw), is_mxfp4="quantization_config" in raw)
        self._is_sparse = is_sparse
        self._noise = Noise(seed)
        self._is_stopped = False

    def stop(self) -> None:
        """Give up soon: `write` raises KeyboardInterrupt and leaves nothing. Safe from a signal handler."""
        self._is_stopped = True

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise KeyboardInterrupt

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors; what the files show, not what holes take."""
        return sum(self._shard_bytes(shard) for shard in self._layout.shards)

    def _shard_bytes(self, shard: Shard) -> int:
        expert = sum(tensor.nbytes for tensor in self._layout.expert_tensors(0, 0)) if shard.experts else 0
        return sum(tensor.nbytes for tensor in shard.trunk) + shard.experts * expert

    def write(self, out: Path, progress: Progress = lambda what, done, total: None) -> None:
        """Write to `out`. Raises InputError if it exists or the disk has no room, WasteError if writing fails."""
        if out.exists():
            raise InputError(f"{out} exists; choose another name or remove it")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{out} cannot be made: {error.strerror or error}") from error
        need = _SLACK_BYTES + (0 if self._is_sparse else self.total_bytes)
        free = shutil.disk_usage(out.parent).free
        if free < need:
            raise InputError(f"{out} needs {need:,} bytes and the disk has {free:,} free; make room or use --sparse")
        partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
        try:
            partial.mkdir()
            self._write_shards(partial, progress)
            partial.rename(out)
        except OSError as error:
            raise WasteError(f"writing {out}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_shards(self, folder: Path, progress: Progress) -> None:
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
                if self._is_sparse:
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
            # Codes have a standard deviation of 3: 2^-k brings rows of n inputs to order one.
            columns = tensor.shape[-1] * 32
            exponent = 127 - round(np.log2(3.0 * columns**0.5))
            return np.full(4096, exponent, np.uint8)
        if tensor.dtype == "U8":
            return self._bytes
        normal = self._normal[: min(self._normal.size, max(4096, tensor.nbytes // 2))]
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * normal
        elif name.endswith("A_log"):
            values = np.zeros_like(normal)
        elif name.endswith(("dt_bias", "e_score_correction_bias")):
            values = 0.05 * normal
        elif "conv1d" in name:
            values = 0.5 * normal
        elif name.endswith("embed_tokens.weight"):
            values = normal
        else:
            values = normal * np.float32(tensor.shape[-1] ** -0.5)
        if tensor.dtype == "F32":
            return values.astype(np.float32).view(np.uint8)
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)

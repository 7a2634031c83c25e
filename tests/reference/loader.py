"""Published checkpoints as float64 arrays, with nothing but numpy. Small models only: every tensor is read whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The eight magnitudes of a four-bit code; bit 3 is the sign.
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E2M1 = np.concatenate([E2M1, -E2M1])
GROUP = 32


class Weights:
    """Tensors by their name without prefix and `.weight`: `weights["layers.0.mlp.up_proj"]`, always float64."""

    def __init__(self, folder: Path) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._prefix = "language_model." if "text_config" in config else ""
        self.config: dict[str, Any] = config.get("text_config", config)
        self._stored: dict[str, NDArray[Any]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self._stored |= read_safetensors(path)

    def __getitem__(self, name: str) -> Array:
        full = self._prefix + (name if name == "lm_head" else f"model.{name}")
        if f"{full}.weight_packed" in self._stored:
            return decode_mxfp4(self._stored[f"{full}.weight_packed"], self._stored[f"{full}.weight_scale"])
        stored = self._stored[full] if full in self._stored else self._stored[f"{full}.weight"]
        return decode_bf16(stored) if stored.dtype == np.uint16 else stored.astype(np.float64)


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of one file in its stored type; bfloat16 as the uint16 of its bits."""
    data = memoryview(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "BF16": np.uint16, "U8": np.uint8}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[start + begin : start + end], dtype=types[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def decode_bf16(bits: NDArray[np.uint16]) -> Array:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def decode_mxfp4(packed: NDArray[np.uint8], scale: NDArray[np.uint8]) -> Array:
    """Codes two a byte, low nibble first, times 2^(e - 127) for each 32 of a row."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    exponents = scale.astype(np.int64) - 127
    return np.ldexp(E2M1[codes], np.repeat(exponents, GROUP, axis=1))

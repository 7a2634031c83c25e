"""A container decoded as its format is written down, in plain numpy and one weight format after the other."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate((E2M1, -E2M1))


class SlowContainer:
    """What `folder` holds, from its manifest alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        self.trunk = np.fromfile(folder / "trunk.bin", np.uint8)
        config = self.manifest["config"]
        inside = config["moe_intermediate_size"]
        outside = config.get("routed_expert_hidden_size") or config["hidden_size"]
        self.shapes = ((inside, outside), (inside, outside), (outside, inside))

    def entry(self, name: str) -> dict[str, Any]:
        return next(entry for entry in self.manifest["trunk"] if entry["name"] == name)

    def tensor(self, name: str) -> Floats:
        """One trunk tensor."""
        entry = self.entry(name)
        raw = self.trunk[entry["off"] : entry["off"] + entry["bytes"]]
        shape, code = entry["shape"], entry["fmt"]
        if code == 0:
            return raw.view("<f4").astype(np.float64).reshape(shape)
        if code == 17:
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(shape)
        rows, columns = shape
        groups = -(-columns // 128)
        codes, scales = np.split(raw, [entry["scale_off"] - entry["off"]])
        if code == 2:
            values = codes.view(np.int8).astype(np.float64)
        else:
            assert code == 3
            values = np.stack((codes & 15, codes >> 4), -1).astype(np.float64) - 8
        values = values.reshape(rows, groups, 128) * scales.view("<f2").astype(np.float64).reshape(rows, groups, 1)
        return values.reshape(rows, groups * 128)[:, :columns]

    def record(self, layer: int, index: int) -> npt.NDArray[np.uint8]:
        """One record, its header checked."""
        bank = self.manifest["layers"][str(layer)]
        size = bank["bytes"] // bank["experts"]
        raw = np.fromfile(self.folder / bank["file"], np.uint8)
        assert raw.size == bank["bytes"]
        record = raw[index * size : (index + 1) * size]
        head = struct.unpack("<IHHBBHHHIIIIIIII", record[:48].tobytes())
        code = {"VQ3R": 4, "VQ2R": 5, "VQ4P": 8, "MXFP4": 16}[self.manifest["expert_quant"]["fmt"]]
        assert head[:5] == (0x50584557, layer, index, code, 0)
        assert (head[5], head[6], head[8] * 4096) == (bank["codebook_base"], 0, size)
        end = head[12]
        if code != 16:
            end += 2 * sum(rows for rows, _ in self.shapes)
        assert head[13] == zlib.crc32(record[48:end].tobytes())
        assert not record[end:].any()
        return record

    def expert(self, layer: int, index: int) -> list[Floats]:
        """Gate, up and down."""
        record = self.record(layer, index)
        starts = struct.unpack("<IIII", record[20:36].tobytes())
        if self.manifest["expert_quant"]["fmt"] == "MXFP4":
            return [self._mxfp4(record, starts[m], *self.shapes[m]) for m in range(3)]
        base = self.manifest["layers"][str(layer)]["codebook_base"]
        scale_at, out = starts[3], []
        for m, (rows, columns) in enumerate(self.shapes):
            scales = record[scale_at : scale_at + 2 * rows].view("<f2").astype(np.float64)
            scale_at += 2 * rows
            out.append(self._vectors(record, starts[m], rows, columns, base, m) * scales[:, None])
        return out

    def _mxfp4(self, record: npt.NDArray[np.uint8], at: int, rows: int, columns: int) -> Floats:
        assert at % 64 == 0
        packed = record[at : at + rows * columns // 2]
        scale_at = -(-(at + packed.size) // 64) * 64
        scales = record[scale_at : scale_at + rows * columns // 32].reshape(rows, -1).astype(np.float64)
        values = np.stack((E2M1[packed & 15], E2M1[packed >> 4]), -1).reshape(rows, -1, 32)
        return (values * 2.0 ** (scales[:, :, None] - 127)).reshape(rows, columns)

    def _vectors(
        self, record: npt.NDArray[np.uint8], at: int, rows: int, columns: int, base: int, matrix: int
    ) -> Floats:
        quant = self.manifest["expert_quant"]
        stages, block = quant["stages"], quant["index_block"]
        size = 3 if quant["fmt"] == "VQ4P" else stages
        blocks = -(-rows // block)
        stored = record[at : at + blocks * columns // 8 * block * size].reshape(blocks, columns // 8, block, size)
        if quant["fmt"] == "VQ4P":
            assert quant["index_bits"] == 6
            b0, b1, b2 = (stored[..., i].astype(int) for i in range(3))
            word = b0 | b1 << 8 | b2 << 16
            indices = np.stack([word >> 6 * s & 63 for s in range(4)], -1)
        else:
            indices = stored.astype(int)
        vectors = sum(self.codebook(base + matrix * stages + s)[indices[..., s]] for s in range(stages))
        return np.asarray(vectors).transpose(0, 2, 1, 3).reshape(blocks * block, columns)[:rows]

    def codebook(self, number: int) -> Floats:
        """The entries of one codebook, its header checked."""
        entries = self.manifest["expert_quant"]["entries"]
        raw = np.fromfile(self.folder / "codebooks.bin", np.uint8).reshape(-1, 16 + 16 * entries)[number]
        assert struct.unpack("<IHBBII", raw[:16].tobytes()) == (0x4B424357, number, 4, 8, entries, 0)
        return raw[16:].view("<f2").astype(np.float64).reshape(entries, 8)

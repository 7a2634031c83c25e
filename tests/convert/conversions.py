"""Converting in tests, and the weights that go in, read slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.slow_container import E2M1, Floats
from waste.convert.converter import Conversion, Converter
from waste.convert.options import ConvertOptions
from waste.io.source import WeightSource, open_source
from waste.model.bundle import model_path

GOLDEN = Path(__file__).parents[1] / "golden"
TINY_K3 = GOLDEN / "tiny-k3"
TINY_LINEAR = GOLDEN / "tiny-kimi-linear"
DEMO = model_path("demo")


def options(**changes: Any) -> ConvertOptions:
    """Two layers, one with experts, a small sample: quick."""
    return ConvertOptions(**{"experts": "VQ2R", "trunk": "Q8G", "layers": 2, "sample": 2, **changes})


def convert(source: Path, out: Path, *, jobs: int = 2, **changes: Any) -> Conversion:
    """`changes`: of the options, or of the converter (reclaim, is_forced, progress)."""
    own = {key: changes.pop(key) for key in ("reclaim", "is_forced", "progress", "tell") if key in changes}
    return Converter(source, out, options(**changes), jobs, **own).run()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Original:
    """The weights of a checkpoint, in float64."""

    def __init__(self, folder: Path) -> None:
        self.source: WeightSource = open_source(folder)
        self._files = [np.fromfile(path, np.uint8) for path in self.source.paths]

    def tensor(self, name: str) -> Floats:
        info = self.source.tensors[name]
        raw = self._files[info.extent.file][info.extent.offset : info.extent.end]
        return _widen(raw, info.dtype).reshape(info.shape)

    def expert(self, layer: int, index: int) -> list[Floats]:
        bank = self.source.banks[layer]
        extents = self.source.record(layer, index)
        raw = {
            part.name: self._files[extent.file][extent.offset : extent.end].reshape(part.shape[0], -1)
            for part, extent in zip(bank.parts, extents, strict=True)
        }
        out = []
        for matrix in ("w1", "w3", "w2"):
            if f"{matrix}.weight" in raw:
                part = next(part for part in bank.parts if part.name == f"{matrix}.weight")
                out.append(_widen(raw[part.name].reshape(-1), part.dtype).reshape(part.shape))
                continue
            packed, scales = raw[f"{matrix}.weight_packed"], raw[f"{matrix}.weight_scale"].astype(np.float64)
            values = np.stack((E2M1[packed & 15], E2M1[packed >> 4]), -1).reshape(len(packed), -1, 32)
            out.append((values * 2.0 ** (scales[:, :, None] - 127)).reshape(len(packed), -1))
        return out


def _widen(raw: Any, dtype: str) -> Floats:
    if dtype == "BF16":
        return np.asarray((raw.view("<u2").astype(np.uint32) << 16).view(np.float32), np.float64)
    return np.asarray(raw.view("<f4"), np.float64)


def relative_error(found: list[Floats], expected: list[Floats]) -> float:
    """Over all of them together."""
    lost = sum(float(((a - b) ** 2).sum()) for a, b in zip(found, expected, strict=True))
    return float(np.sqrt(lost / sum(float((b**2).sum()) for b in expected)))

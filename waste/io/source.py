"""What a set of weights on disk is: names and numbers mapped to extents, whatever the file format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from waste.errors import ModelError
from waste.io.codebooks import Codebooks
from waste.io.extents import Extent
from waste.io.jsonfile import refuse_lfs_stub
from waste.io.record import RecordHeader


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. `dtype` is the name in the file ("BF16", "F32", "U8", "Q8G", ...), row-major.

    scales: where they lie, row after row, for a type whose weights share some.
    """

    dtype: str
    shape: tuple[int, ...]
    extent: Extent
    scales: Extent | None = None

    @property
    def stored_bytes(self) -> int:
        return self.extent.length + (self.scales.length if self.scales else 0)


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of every record of a bank, such as "w1.weight_packed"; dtype and shape as in `TensorInfo`."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bank:
    """Records 0 to `records` - 1 that all consist of the same parts, in this order.

    header: what the part "header" of each record must say, where records have one; they are then of equal size and
    each is one run of bytes. codebooks: what their indices select from, where weights are indices.
    """

    records: int
    parts: tuple[Part, ...]
    header: RecordHeader | None = None
    codebooks: Codebooks | None = None


class WeightSource(Protocol):
    """Weights on disk. It opens nothing for reading weights: it only says where they lie."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files; `Extent.file` indexes them."""
        ...

    @property
    def config(self) -> Mapping[str, object]:
        """The model's config, as in `config.json`."""
        ...

    @property
    def tensor_prefix(self) -> str | None:
        """What stands before every tensor's name, where the source says so; None: it follows from the config."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Everything but the banks' records, under the names stored, prefix included."""
        ...

    @property
    def banks(self) -> Mapping[int, Bank]:
        """Records of equal make, by the number in "layers.N."."""
        ...

    def record(self, bank: int, index: int) -> tuple[Extent, ...]:
        """Where record `index` of a bank lies: one extent a part, in the order of `Bank.parts`.

        Raises KeyError for an unknown bank, IndexError for a record it does not have.
        """
        ...

    def record_begin(self, bank: int, index: int) -> tuple[int, int] | None:
        """File and offset of the record's first part; None if its parts do not lie to each other as those of record 0.

        Raises as `record`.
        """
        ...

    def describe_extent(self, extent: Extent) -> str:
        """For error messages: "model-00001-of-00003.safetensors at 123,456"."""
        ...


Detector = Callable[[Path], "WeightSource | None"]

_EXPECTED = "a folder with config.json and *.safetensors files, or a container with manifest.json"
# Imported when first needed: each registers its detector, and importing this protocol stays cheap.
_FORMAT_MODULES = ("waste.io.container", "waste.io.checkpoint")
_detectors: dict[str, Detector] = {}


def register_detector(name: str, detector: Detector) -> None:
    """Add a format. The detector returns None for a path that is not its own, and raises if it is but broken."""
    _detectors[name] = detector


def open_source(path: Path) -> WeightSource:
    """Recognize what lies at `path` and read its tables (synchronously; weights are not read).

    Raises ModelError for a missing path or an unknown format, DamagedError for a file that contradicts itself
    or its index, UnsupportedError for a storage type unknown here.
    """
    for module in _FORMAT_MODULES:
        import_module(module)
    try:
        found = _describe(path)
        for detector in _detectors.values():
            source = detector(path)
            if source is not None:
                return source
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}; expected {_EXPECTED}") from error
    raise ModelError(f"{path} is {found}; expected {_EXPECTED}")


def _describe(path: Path) -> str:
    """What lies at `path`, in words. Raises FileNotFoundError where nothing does."""
    path.stat()
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        if not names:
            return "an empty folder"
        return f"a folder of {len(names)} entries ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
    if not path.is_file():
        return "neither a file nor a folder"
    with path.open("rb") as stream:
        refuse_lfs_stub(path, stream.read(64))
    if path.suffix == ".safetensors":
        return "one safetensors file, without the config.json of its folder"
    return f"a {path.suffix} file" if path.suffix else "a file of no known format"

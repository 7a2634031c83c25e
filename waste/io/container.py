"""A `.waste` container, version 0: a folder with a manifest, one file of trunk, one of records a layer, codebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from waste.errors import DamagedError
from waste.io.codebooks import Codebooks, codebook_bytes
from waste.io.extents import Extent
from waste.io.jsonfile import open_regular, shown
from waste.io.manifest import (
    MANIFEST_NAME,
    MAX_RECORD_BYTES,
    BankEntry,
    ExpertFormat,
    TrunkEntry,
    read_manifest,
)
from waste.io.record import MATRICES, RecordForm, Shapes, mxfp4_form, vector_form
from waste.io.source import Bank, Part, TensorInfo, WeightSource, register_detector

TRUNK_NAME = "trunk.bin"
CODEBOOKS_NAME = "codebooks.bin"


class Container:
    """The `WeightSource` of a container. Reads the manifest and asks files for their sizes; weights it never reads.

    Raises ModelError if a file is missing, DamagedError if the manifest contradicts itself or a file,
    UnsupportedError for a format unknown here.
    """

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        files = _Files(folder)
        trunk = files.number(TRUNK_NAME)
        for entry in self.manifest.trunk:
            files.check_end(trunk, entry.end, shown(entry.name))
        self._tensors = {entry.name: _tensor(entry, trunk) for entry in self.manifest.trunk}
        self._banks: dict[int, Bank] = {}
        self._forms: dict[int, tuple[RecordForm, int]] = {}
        experts = self.manifest.experts
        if experts is not None:
            shapes = self.manifest.expert_shapes()
            for bank in self.manifest.banks:
                self._add_bank(bank, experts, shapes, files)
        self.paths = tuple(files.paths)

    @property
    def config(self) -> Mapping[str, object]:
        """The text config, inside the outer one where the manifest has that.

        How the published tensors were quantized says nothing about a container's, so that is left out.
        """
        manifest = self.manifest
        text = {key: value for key, value in manifest.config.items() if key != "quantization_config"}
        if not manifest.outer:
            return text
        outer = {key: value for key, value in manifest.outer.items() if key != "quantization_config"}
        return {"model_type": text.get("model_type"), **outer, "text_config": text}

    @property
    def tensor_prefix(self) -> str:
        """See `WeightSource.tensor_prefix`."""
        return self.manifest.tensor_prefix

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The trunk, under its stored names."""
        return MappingProxyType(self._tensors)

    @property
    def banks(self) -> Mapping[int, Bank]:
        """The routed experts by layer."""
        return MappingProxyType(self._banks)

    def record(self, bank: int, index: int) -> tuple[Extent, ...]:
        """See `WeightSource.record`: parts of one run of bytes, the header first."""
        file, begin = self.record_begin(bank, index)
        form, _ = self._forms[bank]
        return tuple(Extent(file, begin + span.offset, span.length) for span in form.spans)

    def record_begin(self, bank: int, index: int) -> tuple[int, int]:
        """See `WeightSource.record_begin`: here all records of a bank are alike."""
        form, file = self._forms[bank]
        if not 0 <= index < self._banks[bank].records:
            raise IndexError(f"record {index} of a bank of {self._banks[bank].records}")
        return file, index * form.header.record_bytes

    def describe_extent(self, extent: Extent) -> str:
        """See `WeightSource.describe_extent`."""
        return f"{self.paths[extent.file].name} at {extent.offset:,}"

    def _add_bank(self, entry: BankEntry, experts: ExpertFormat, shapes: Shapes, files: _Files) -> None:
        where = f"{self.manifest.path}: layers.{entry.number}"
        codebooks = None
        if experts.vectors is None:
            form = mxfp4_form(entry.number, shapes=shapes)
        else:
            form = vector_form(
                entry.number,
                experts.vectors,
                base=entry.codebook_base,
                index_block=experts.index_block,
                shapes=shapes,
            )
            codebooks = _codebooks(where, entry, experts, files, self.manifest.codebook_checksums)
        record_bytes = form.header.record_bytes
        if record_bytes > MAX_RECORD_BYTES or entry.size != entry.experts * record_bytes:
            raise DamagedError(
                f"{where}.bytes is {entry.size:,}, expected {entry.experts * record_bytes:,}: "
                f"{entry.experts:,} experts of {record_bytes:,} bytes, as the config implies"
            )
        file = files.number(entry.file)
        files.check_end(file, entry.size, f"layers.{entry.number}")
        parts = tuple(Part(span.name, span.dtype, span.shape) for span in form.spans)
        self._banks[entry.number] = Bank(entry.experts, parts, form.header, codebooks)
        self._forms[entry.number] = (form, file)


class _Files:
    """The container's files as they are named, each looked at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self.paths: list[Path] = []
        self.sizes: list[int] = []

    def number(self, name: str) -> int:
        """The number of this file. Raises ModelError if it is missing or no regular file."""
        if name not in self._numbers:
            path = self._folder / name
            stream, size = open_regular(path)
            stream.close()
            self._numbers[name] = len(self.paths)
            self.paths.append(path)
            self.sizes.append(size)
        return self._numbers[name]

    def check_end(self, file: int, end: int, what: str) -> None:
        """Raise DamagedError unless the file has `end` bytes at least."""
        if end > self.sizes[file]:
            raise DamagedError(
                f"{self.paths[file]} has {self.sizes[file]:,} bytes, and {MANIFEST_NAME} has {what} end at {end:,}: "
                "the file is truncated, or they do not belong together; fetch it again"
            )


def _tensor(entry: TrunkEntry, file: int) -> TensorInfo:
    weights = Extent(file, entry.offset, entry.weight_bytes)
    scales = Extent(file, weights.end, entry.scale_bytes) if entry.scale_bytes else None
    return TensorInfo(entry.format.name, entry.shape, weights, scales)


def _codebooks(
    where: str, entry: BankEntry, experts: ExpertFormat, files: _Files, checksums: Sequence[int]
) -> Codebooks:
    assert experts.vectors is not None
    stages, entries = experts.vectors.stages, experts.vectors.entries
    count, each = len(MATRICES) * stages, codebook_bytes(entries)
    file = files.number(CODEBOOKS_NAME)
    size = files.sizes[file]
    needed = (entry.codebook_base + count) * each
    if size % each or size < needed:
        raise DamagedError(
            f"{files.paths[file]} has {size:,} bytes, expected whole codebooks of {each:,} bytes and {needed:,} in all "
            f"for {where}.codebook_base, {entry.codebook_base:,}"
        )
    first = entry.codebook_base
    extent = Extent(file, first * each, count * each)
    return Codebooks(extent, first, stages, entries, experts.index_block, tuple(checksums[first : first + count]))


def detect(path: Path) -> WeightSource | None:
    """The container at `path`, or None if nothing there looks like one; shards make the folder a checkpoint."""
    if not (path / MANIFEST_NAME).is_file() or any(path.glob("*.safetensors")):
        return None
    return Container(path)


register_detector("container", detect)

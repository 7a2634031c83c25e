"""A published checkpoint: a folder with `config.json`, safetensors shards and, above one shard, an index."""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from waste.errors import DamagedError, ModelError
from waste.io.expert_table import BankTable, BankTableBuilder
from waste.io.extents import Extent
from waste.io.files import file_error
from waste.io.jsonfile import read_json
from waste.io.safetensors import read_header
from waste.io.shard_index import INDEX_NAME, ShardIndex
from waste.io.source import Bank, TensorInfo, WeightSource, register_detector

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1 << 24


class Checkpoint:
    """The `WeightSource` of a folder of safetensors. Reads config, index and headers at once, weights never.

    Without an index there must be exactly one *.safetensors file. With one, files it does not name are
    ignored, and every shard must hold exactly the tensors it is listed for (see `ShardIndex.check`).

    Raises ModelError if a file is missing, DamagedError if one contradicts itself or the index,
    UnsupportedError for a dtype unknown here.
    """

    def __init__(self, folder: Path) -> None:
        self._config = _read_config(folder / CONFIG_NAME)
        # Half a million parsed names leave survivors scattered over 100 MB, which then never goes back to the
        # system. As bytes they survive in one piece, and are made anew once everything else is freed.
        with _collection_paused():
            tables = _Tables.unpack(_read_tables(folder).pack())
        self._paths = tables.paths
        self._tensors = tables.tensors
        self._bank_tables = tables.banks
        self._banks = {number: table.bank for number, table in tables.banks.items()}

    @property
    def paths(self) -> tuple[Path, ...]:
        """The shards, sorted by name; `Extent.file` indexes them."""
        return self._paths

    @property
    def config(self) -> Mapping[str, object]:
        """`config.json` as it is."""
        return MappingProxyType(self._config)

    @property
    def tensor_prefix(self) -> None:
        """See `WeightSource.tensor_prefix`."""
        return None

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor that is not part of a routed expert, under its stored name."""
        return MappingProxyType(self._tensors)

    @property
    def banks(self) -> Mapping[int, Bank]:
        """The routed experts of each layer that has some, by the number in "layers.N."."""
        return MappingProxyType(self._banks)

    def record(self, bank: int, index: int) -> tuple[Extent, ...]:
        """See `WeightSource.record`."""
        return self._bank_tables[bank].record(index)

    def record_begin(self, bank: int, index: int) -> tuple[int, int] | None:
        """See `WeightSource.record_begin`."""
        return self._bank_tables[bank].record_begin(index)

    def describe_extent(self, extent: Extent) -> str:
        """See `WeightSource.describe_extent`."""
        return f"{self._paths[extent.file].name} at {extent.offset:,}"


def detect(path: Path) -> WeightSource | None:
    """The checkpoint at `path`, or None if nothing there looks like one."""
    if not path.is_dir():
        return None
    signs = (path / CONFIG_NAME, path / INDEX_NAME)
    if any(sign.exists() for sign in signs) or any(path.glob("*.safetensors")):
        return Checkpoint(path)
    return None


@dataclass(frozen=True, slots=True)
class _Tables:
    """Everything index and headers say."""

    paths: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    banks: dict[int, BankTable]

    def pack(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def unpack(packed: bytes) -> _Tables:
        tables: _Tables = pickle.loads(packed)
        return tables


def _read_tables(folder: Path) -> _Tables:
    index, paths = _find_shards(folder)
    tensors: dict[str, TensorInfo] = {}
    builder = BankTableBuilder()
    for number, path in enumerate(paths):
        stored = read_header(path)
        if index is not None:
            index.check(number, stored)
        for tensor in stored:
            if not builder.add(path, number, tensor):
                extent = Extent(number, tensor.begin, tensor.end - tensor.begin)
                tensors[tensor.name] = TensorInfo(tensor.dtype, tensor.shape, extent)
    return _Tables(paths, tensors, builder.finish(folder))


@contextmanager
def _collection_paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: it finds nothing in parsed JSON and takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_config(path: Path) -> dict[str, object]:
    config = read_json(path, max_bytes=MAX_CONFIG_BYTES, unique_keys=True)
    if not isinstance(config, dict):
        raise DamagedError(f"{path} is a JSON {type(config).__name__}; expected an object")
    return config


def _find_shards(folder: Path) -> tuple[ShardIndex | None, tuple[Path, ...]]:
    """The index, if there is one, and the shards in the order of their numbers."""
    try:
        has_index = (folder / INDEX_NAME).exists()
        found = sorted(folder.glob("*.safetensors"))
    except OSError as error:
        raise file_error(folder, error) from error
    if has_index:
        index = ShardIndex(folder)
        return index, tuple(folder / name for name in index.shards)
    if not found:
        raise ModelError(f"{folder} has no *.safetensors file; expected the weights beside {CONFIG_NAME}")
    part = re.search(r"-of-0*([0-9]+)\.safetensors$", found[0].name)
    if len(found) > 1 or (part and part[1] != "1"):
        raise ModelError(f"{folder} has {found[0].name} but no {INDEX_NAME}; expected it beside several shards")
    return None, (found[0],)


register_detector("checkpoint", detect)

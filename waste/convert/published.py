"""The published checkpoint layout as pure arithmetic: which tensor lies in which shard, in which order.

One shard a layer, its trunk tensors in name order, then its experts, each expert's tensors next to each other; the
last shard has what belongs to no layer. `PublishedSource` offers it as a `WeightSource` without any file, for plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from waste.errors import ModelError
from waste.io.checkpoint import MAX_CONFIG_BYTES
from waste.io.extents import Extent
from waste.io.jsonfile import read_json
from waste.io.source import Bank, Part, TensorInfo
from waste.model.bundle import ModelBundle
from waste.model.config import ModelConfig, parse_config
from waste.model.tensors import check_widths, expert_shapes, tensor_shapes

ITEM_BYTES = {"BF16": 2, "F32": 4, "U8": 1}
_FLOAT32 = ("A_log", "dt_bias", "e_score_correction_bias")
_NAME_ORDER = ("w1", "w2", "w3")
_PART_ORDER = ("w1", "w3", "w2")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor: name, dtype and shape as a safetensors header gives them."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's trunk tensors in file order, then `experts` records of the bank `layer`; 0 experts for none."""

    name: str
    layer: int
    trunk: tuple[Stored, ...]
    experts: int


class PublishedLayout:
    """A model's shards. `is_mxfp4`: experts as packed codes and scales, else bf16 like the trunk."""

    def __init__(self, config: ModelConfig, *, is_mxfp4: bool) -> None:
        self.config = config
        self.is_mxfp4 = is_mxfp4
        layers = config.num_hidden_layers
        by_shard: list[list[Stored]] = [[] for _ in range(layers + 1)]
        marker = f"{config.prefix}model.layers."
        for name, shape in sorted(tensor_shapes(config).items()):
            number = int(name[len(marker) :].split(".")[0]) if name.startswith(marker) else layers
            by_shard[number].append(self._stored(name, shape))
        self.shards = tuple(
            Shard(
                name=f"model-{number + 1:05d}-of-{layers + 1:05d}.safetensors",
                layer=number,
                trunk=tuple(trunk),
                experts=config.moe.num_experts if number < layers and config.moe and config.is_moe(number) else 0,
            )
            for number, trunk in enumerate(by_shard)
        )

    def _stored(self, name: str, shape: tuple[int, ...]) -> Stored:
        if name.endswith(".A_log") and self.config.prefix:
            return Stored(name, "F32", (-(-shape[0] // 128) * 128,))  # padded with zeros, as released
        if name.endswith(".A_log"):
            return Stored(name, "F32", (1, 1, shape[0], 1))
        return Stored(name, "F32" if name.endswith(_FLOAT32) else "BF16", shape)

    def parts(self) -> tuple[Part, ...]:
        """The tensors of one expert in the order of a `Bank`."""
        return tuple(self._part(matrix, half) for matrix in _PART_ORDER for half in self._halves)

    @property
    def _halves(self) -> tuple[str, ...]:
        return ("weight_packed", "weight_scale") if self.is_mxfp4 else ("weight",)

    def _part(self, matrix: str, half: str) -> Part:
        rows, columns = expert_shapes(self.config)[matrix]
        if half == "weight":
            return Part(f"{matrix}.{half}", "BF16", (rows, columns))
        return Part(f"{matrix}.{half}", "U8", (rows, columns // (2 if half == "weight_packed" else 32)))

    @cached_property
    def expert_parts(self) -> tuple[Part, ...]:
        """The tensors of one expert in file order, which is name order."""
        return tuple(self._part(matrix, half) for matrix in _NAME_ORDER for half in self._halves)

    def expert_tensors(self, layer: int, expert: int) -> Iterator[Stored]:
        """One expert's tensors in file order."""
        prefix = f"{self.config.prefix}model.layers.{layer}.block_sparse_moe.experts.{expert}."
        for part in self.expert_parts:
            yield Stored(prefix + part.name, part.dtype, part.shape)

    def tensors(self, shard: Shard) -> Iterator[Stored]:
        """A shard's tensors in file order."""
        yield from shard.trunk
        for expert in range(shard.experts):
            yield from self.expert_tensors(shard.layer, expert)


class PublishedSource:
    """What `open_source` would find, from a config alone: extents as if headers had no length."""

    def __init__(self, raw: Mapping[str, object], config: ModelConfig, *, is_mxfp4: bool) -> None:
        self.config = raw
        self.tensor_prefix = None
        layout = PublishedLayout(config, is_mxfp4=is_mxfp4)
        self.paths = tuple(Path(shard.name) for shard in layout.shards)
        self.tensors: dict[str, TensorInfo] = {}
        self.banks: dict[int, Bank] = {}
        self._first: dict[int, tuple[int, int]] = {}
        self._lengths = {part.name: math.prod(part.shape) * ITEM_BYTES[part.dtype] for part in layout.expert_parts}
        self._offsets: dict[str, int] = {}
        self._record_bytes = 0
        for part in layout.expert_parts:
            self._offsets[part.name] = self._record_bytes
            self._record_bytes += self._lengths[part.name]
        parts = layout.parts() if config.moe else ()
        for number, shard in enumerate(layout.shards):
            offset = 0
            for tensor in shard.trunk:
                extent = Extent(number, offset, tensor.nbytes)
                self.tensors[tensor.name] = TensorInfo(tensor.dtype, tensor.shape, extent)
                offset += tensor.nbytes
            if shard.experts:
                self.banks[shard.layer] = Bank(shard.experts, parts)
                self._first[shard.layer] = (number, offset)

    def record(self, bank: int, index: int) -> tuple[Extent, ...]:
        """See `WeightSource.record`."""
        file, first = self._first[bank]
        if not 0 <= index < self.banks[bank].records:
            raise IndexError(f"record {index} of a bank of {self.banks[bank].records}")
        begin = first + index * self._record_bytes
        return tuple(
            Extent(file, begin + self._offsets[part.name], self._lengths[part.name]) for part in self.banks[bank].parts
        )

    def record_begin(self, bank: int, index: int) -> None:
        """See `WeightSource.record_begin`."""
        return

    def describe_extent(self, extent: Extent) -> str:
        """See `WeightSource.describe_extent`."""
        return f"{self.paths[extent.file]} at {extent.offset:,}"


def published_source(raw: Mapping[str, object]) -> tuple[PublishedSource, ModelConfig]:
    """A source and its config from `config.json` alone; experts are MXFP4 where it says that the model is quantized.

    Raises ModelError or UnsupportedError as `parse_config` and `check_widths` do.
    """
    config = parse_config(raw)
    check_widths(config)
    return PublishedSource(raw, config, is_mxfp4=raw.get("quantization_config") is not None), config


def config_bundle(path: Path) -> ModelBundle:
    """A model to plan, from its `config.json` alone; it has no files to run.

    Raises ModelError or DamagedError naming what is wrong with the file, UnsupportedError for what cannot be run.
    """
    raw = read_json(path, max_bytes=MAX_CONFIG_BYTES, unique_keys=True)
    if not isinstance(raw, dict):
        raise ModelError(f"{path} holds {type(raw).__name__}, expected a model's configuration")
    source, config = published_source(raw)
    return ModelBundle(path, source, config, None, frozenset(config.eos_token_ids))

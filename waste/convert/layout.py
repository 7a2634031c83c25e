"""What a container will hold and where, before anything is written: pure arithmetic on a source's tables."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from waste.convert.options import ConvertOptions
from waste.errors import InputError, UnsupportedError
from waste.io.codebooks import codebook_bytes
from waste.io.extents import Extent
from waste.io.manifest import GROUP, TRUNK_FORMATS, VERSION, TrunkEntry, TrunkFormat
from waste.io.names import legible
from waste.io.record import MATRICES, VECTOR, VECTOR_FORMATS, RecordForm, VectorFormat, mxfp4_form, vector_form
from waste.io.source import Bank, TensorInfo
from waste.model.config import parse_config
from waste.model.tensors import check_tensors, expert_shapes, tensor_shapes

INDEX_BLOCK = 64
ENTRY_ALIGN = 64
LEAST_QUANTIZED = 65536
"""Smaller tensors stay float32, as do vectors: the published converter's first rule."""
CODES = {form.name: code for code, form in TRUNK_FORMATS.items()}
FLOAT_BYTES = {"BF16": 2, "F32": 4}
"""Types of trunk tensors that can be converted."""
_MXFP4_BITS = 4.25


class Tables(Protocol):
    """The part of a source that a layout follows from."""

    @property
    def config(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def banks(self) -> Mapping[int, Bank]: ...
    def record(self, bank: int, index: int) -> tuple[Extent, ...]: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """What is converted, made durable and resumed as one: the trunk of a layer (None: of none) or a bank."""

    kind: str
    layer: int | None

    @property
    def name(self) -> str:
        return f"{self.kind} {'outside' if self.layer is None else self.layer}"


class ContainerLayout:
    """A container of `tables` under `options`: its trunk in walk order, its banks, the units it is made of.

    Raises InputError for options that do not fit the model; ModelError, UnsupportedError as `check_tensors` does.
    """

    def __init__(self, tables: Tables, options: ConvertOptions) -> None:
        self.tables = tables
        self.options = options
        self.raw_config = cut_config(tables.config, options.layers)
        self.config = parse_config(self.raw_config)
        check_tensors(self.config, tables.tensors, tables.banks)
        self.vectors: VectorFormat | None = VECTOR_FORMATS.get(options.experts)
        self.trunk = tuple(self._place_trunk())
        self.shapes = expert_shapes(self.config)
        self.banks = {number: self._form(position, number) for position, number in enumerate(self._bank_numbers())}

    @property
    def trunk_bytes(self) -> int:
        return self.trunk[-1].end

    @property
    def total_bytes(self) -> int:
        """Bytes of the trunk, the banks and the codebooks."""
        banks = sum(self.bank_bytes(number) for number in self.banks)
        return self.trunk_bytes + banks + len(self.banks) * self.layer_codebook_bytes

    @property
    def layer_codebook_bytes(self) -> int:
        """Bytes of the codebooks of one bank."""
        if self.vectors is None:
            return 0
        return len(MATRICES) * self.vectors.stages * codebook_bytes(self.vectors.entries)

    def bank_bytes(self, number: int) -> int:
        return self.tables.banks[number].records * self.banks[number].header.record_bytes

    @property
    def is_lossless(self) -> bool:
        """Whether every weight comes out as it went in."""
        return all(entry.format.group is None for entry in self.trunk) and not self.loses_experts

    @property
    def trunk_formats(self) -> tuple[str, ...]:
        """What the trunk's matrices are stored as, sorted; F32, as all small tensors are, only where that is all."""
        formats = {entry.format.name for entry in self.trunk}
        return tuple(sorted(formats - {"F32"})) or ("F32",)

    @property
    def loses_experts(self) -> bool:
        """Whether the experts are changed: VQ, and MXFP4 of what was not MXFP4."""
        packed = all(self.tables.banks[number].parts[0].dtype == "U8" for number in self.banks)
        return bool(self.banks) and not (self.options.experts == "MXFP4" and packed)

    def units(self) -> tuple[Unit, ...]:
        """In the order of conversion: by layer, as the shards lie."""
        layers = range(self.config.num_hidden_layers)
        units = [Unit("trunk", None)]
        for layer in layers:
            units.append(Unit("trunk", layer))
            if layer in self.banks:
                units.append(Unit("bank", layer))
        return tuple(units)

    def entries(self, unit: Unit) -> tuple[TrunkEntry, ...]:
        """The trunk entries of a unit, in file order."""
        return tuple(entry for entry in self.trunk if self._layer(entry.name) == unit.layer)

    def files(self, unit: Unit) -> frozenset[int]:
        """The source files that a unit reads."""
        return self._reads[unit.name][0]

    def source_bytes(self, unit: Unit) -> int:
        """Bytes of the source that a unit reads, but for samples."""
        return self._reads[unit.name][1]

    @cached_property
    def _reads(self) -> dict[str, tuple[frozenset[int], int]]:
        reads = {}
        for unit in self.units():
            extents = list(self._extents(unit))
            files = frozenset(extent.file for extent in extents)
            reads[unit.name] = files, sum(extent.length for extent in extents)
        return reads

    def _extents(self, unit: Unit) -> Iterator[Extent]:
        """All that a unit reads."""
        if unit.kind == "trunk":
            for entry in self.entries(unit):
                yield self.tables.tensors[entry.name].extent
        else:
            assert unit.layer is not None
            for index in range(self.tables.banks[unit.layer].records):
                yield from self.tables.record(unit.layer, index)

    def unit_bytes(self, unit: Unit) -> int:
        """Bytes that a unit adds to the container."""
        if unit.kind == "trunk":
            return sum(entry.weight_bytes + entry.scale_bytes for entry in self.entries(unit))
        assert unit.layer is not None
        return self.bank_bytes(unit.layer) + self.layer_codebook_bytes

    def manifest(self, checksums: Mapping[str, object]) -> dict[str, Any]:
        """`manifest.json`, without the files' checksums taken on trust: they are given."""
        text, outer = _split(self.raw_config)
        requires = [
            name
            for name, is_used in (
                ("mxfp4", self.vectors is None and bool(self.banks)),
                ("bf16", any(entry.format.name == "BF16" for entry in self.trunk)),
            )
            if is_used
        ]
        return {
            "format_version": VERSION,
            "arch": "kimi-k3" if outer else "kimi_linear",
            "tensor_prefix": self.config.prefix,
            "config": {**text, "_outer": outer} if outer else text,
            "expert_quant": self._expert_quant(),
            "layers": {
                str(number): {
                    "file": bank_file(number),
                    "experts": self.tables.banks[number].records,
                    "bytes": self.bank_bytes(number),
                    "codebook_base": form.header.codebook_base,
                }
                for number, form in self.banks.items()
            },
            "trunk": [_manifest_entry(entry) for entry in self.trunk],
            **({"requires": requires} if requires else {}),
            "checksums": dict(checksums),
        }

    def _expert_quant(self) -> dict[str, object]:
        form = self.vectors
        if form is None:
            return {"fmt": "MXFP4", "bits_per_weight": _MXFP4_BITS}
        return {
            "fmt": form.name,
            "stages": form.stages,
            "vec_dim": VECTOR,
            "entries": form.entries,
            "index_block": INDEX_BLOCK,
            **({"index_bits": form.index_bits} if form.index_bits != 8 else {}),
            "bits_per_weight": form.vector_bytes,
        }

    def _bank_numbers(self) -> list[int]:
        return [layer for layer in range(self.config.num_hidden_layers) if self.config.is_moe(layer)]

    def _form(self, position: int, number: int) -> RecordForm:
        if self.vectors is None:
            for name, (rows, columns) in self.shapes.items():
                if columns % 32:
                    raise InputError(f"--experts mxfp4: {name} is {rows} by {columns}, expected groups of 32 in a row")
            return mxfp4_form(number, shapes=self.shapes)
        base = position * len(MATRICES) * self.vectors.stages
        return vector_form(number, self.vectors, base=base, index_block=INDEX_BLOCK, shapes=self.shapes)

    def _place_trunk(self) -> Iterator[TrunkEntry]:
        """Entries in walk order, then what the walk does not need, by name."""
        walk = [name for name in tensor_shapes(self.config) if name in self.tables.tensors]
        walked = set(walk)
        others = sorted(name for name in self.tables.tensors if name not in walked and self._is_kept(name))
        at = 0
        for name in [*walk, *others]:
            tensor = self.tables.tensors[name]
            shape = stored_shape(tensor.shape)
            entry = TrunkEntry(name, self._format(name, tensor.dtype, shape), shape, at)
            yield entry
            at = -(-entry.end // ENTRY_ALIGN) * ENTRY_ALIGN

    def _is_kept(self, name: str) -> bool:
        """Whether a tensor belongs to no layer, or to one that is converted."""
        layer = self._layer(name)
        return layer is None or layer < self.config.num_hidden_layers

    def _layer(self, name: str) -> int | None:
        match = re.match(re.escape(f"{self.config.prefix}model.layers.") + r"([0-9]{1,6})\.", name)
        return int(match[1]) if match else None

    def _format(self, name: str, dtype: str, shape: tuple[int, ...]) -> TrunkFormat:
        if dtype not in FLOAT_BYTES:
            raise UnsupportedError(
                f"{legible(name)} is stored as {dtype}; expected {' or '.join(FLOAT_BYTES)} to convert it"
            )
        if len(shape) == 1 or math.prod(shape) < LEAST_QUANTIZED:
            chosen = "F32"
        elif self.options.trunk == "BF16" or len(shape) > 2:
            chosen = dtype if self.options.trunk == "BF16" else "F32"
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            chosen = "Q8G"
        else:
            chosen = self.options.trunk
        return TRUNK_FORMATS[CODES[chosen]]


def pack_manifest(manifest: Mapping[str, object]) -> bytes:
    """The bytes of `manifest.json`."""
    return json.dumps(manifest, ensure_ascii=False, indent=1).encode()


def bank_file(number: int) -> str:
    return f"experts-L{number}.bin"


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A tensor's shape in a container: kernels of images are flattened, and a scalar is a vector of one."""
    if len(shape) == 4 and shape[:2] != (1, 1):
        return (shape[0], math.prod(shape[1:]))
    return shape or (1,)


def cut_config(raw: Mapping[str, object], layers: int | None) -> dict[str, Any]:
    """The config of the first `layers` layers. Raises InputError if the model has fewer."""
    config = copy.deepcopy(dict(raw))
    if layers is None:
        return config
    text: Any = config.get("text_config") or config
    count = text.get("num_hidden_layers")
    if not isinstance(count, int) or layers > count:
        raise InputError(f"--layers asks for layers 0 to {layers - 1}, the model has 0 to {int(count or 0) - 1}")
    text["num_hidden_layers"] = layers
    text["first_k_dense_replace"] = min(text.get("first_k_dense_replace", 0), layers)
    linear = text.get("linear_attn_config", {})
    for key in ("kda_layers", "full_attn_layers"):
        linear[key] = [layer for layer in linear.get(key, ()) if layer <= layers]
    return config


def _split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The text config, and what lies around it."""
    if "text_config" not in raw:
        return dict(raw), {}
    return dict(raw["text_config"]), {key: value for key, value in raw.items() if key != "text_config"}


def _manifest_entry(entry: TrunkEntry) -> dict[str, object]:
    described: dict[str, object] = {
        "name": entry.name,
        "fmt": CODES[entry.format.name],
        "off": entry.offset,
        "shape": list(entry.shape),
    }
    if entry.format.group is not None:
        described |= {"group": GROUP, "scale_off": entry.offset + entry.weight_bytes}
    return described | {"bytes": entry.weight_bytes + entry.scale_bytes}

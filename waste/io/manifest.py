"""`manifest.json` of a `.waste` container, version 0: parsed, checked against itself, believed in nothing else.

What it says about files is for `container` to check against them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from waste.errors import DamagedError, UnsupportedError
from waste.io.jsonfile import read_json, shown
from waste.io.manifest_fields import ManifestFields
from waste.io.record import BLOCK_BYTES, MXFP4_GROUP, VECTOR, VECTOR_FORMATS, VectorFormat

MANIFEST_NAME = "manifest.json"
VERSION = 0
MAX_MANIFEST_BYTES = 4 << 20
"""Six times the manifest of a Kimi K3; what JSON of this size becomes in memory is bounded too."""
REQUIREMENTS = ("mxfp4", "bf16")
"""The extensions that a container may say its reader has to know."""
GROUP = 128
"""Weights of a row that share a float16 scale in Q8G and Q4G."""

BANK_SUFFIX = ".bin"
MAX_LAYER = 0xFFFF  # the widths of a record header's fields
MAX_EXPERTS = 1 << 16
MAX_CODEBOOK = 0xFFFF
MAX_RECORD_BYTES = (1 << 32) - BLOCK_BYTES
MAX_BYTES = 1 << 62
MAX_WIDTH = 1 << 22
MAX_RANK = 8
INDEX_BLOCKS = (0, 64)
"""Rows whose indices may be stored together; 0: each row's are."""
_LAYER_KEY = re.compile(r"0|[1-9][0-9]{0,4}")


class TrunkFormat(NamedTuple):
    """How the elements of a trunk entry are stored; with `group`, in rows of whole groups and then their scales."""

    name: str
    bits: int
    group: int | None = None


TRUNK_FORMATS = {
    0: TrunkFormat("F32", 32),
    1: TrunkFormat("F16", 16),
    2: TrunkFormat("Q8G", 8, GROUP),
    3: TrunkFormat("Q4G", 4, GROUP),
    17: TrunkFormat("BF16", 16),
}
_UNTESTED_CODE, _UNTESTED_NAME = 7, "Q3G"
_SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class TrunkEntry:
    """One tensor of `trunk.bin`: its bytes begin at `offset`, those of its scales, if it has any, follow."""

    name: str
    format: TrunkFormat
    shape: tuple[int, ...]
    offset: int

    @property
    def weight_bytes(self) -> int:
        if self.format.group is None:
            return math.prod(self.shape) * self.format.bits // 8
        return self._groups * self.format.group * self.format.bits // 8

    @property
    def scale_bytes(self) -> int:
        return 0 if self.format.group is None else self._groups * _SCALE_BYTES

    @property
    def end(self) -> int:
        return self.offset + self.weight_bytes + self.scale_bytes

    @property
    def _groups(self) -> int:
        """Groups of all rows; a row's last one may be filled up."""
        assert self.format.group is not None
        return math.prod(self.shape[:-1]) * -(-self.shape[-1] // self.format.group)


@dataclass(frozen=True, slots=True)
class BankEntry:
    """One bank: `experts` records, together `size` bytes of the file."""

    number: int
    file: str
    experts: int
    size: int
    codebook_base: int


@dataclass(frozen=True, slots=True)
class ExpertFormat:
    """What all records hold: vectors of a format, or MXFP4 (None)."""

    vectors: VectorFormat | None
    index_block: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest. config: the text config; outer: the config around it, empty where there is none.

    Of the checksums there may be none, some or all. codebook_checksums: CRC-32 of each codebook by number;
    trunk_checksums: CRC-32 of trunk entries by name; file_digests: SHA-256 of small files by name, in hexadecimal.
    Names are not compared with what there is.
    """

    path: Path
    tensor_prefix: str
    config: Mapping[str, object]
    outer: Mapping[str, object]
    experts: ExpertFormat | None
    banks: tuple[BankEntry, ...]
    trunk: tuple[TrunkEntry, ...]
    codebook_checksums: tuple[int, ...]
    trunk_checksums: Mapping[str, int]
    file_digests: Mapping[str, str]

    def expert_shapes(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of w1, w3 and w2, from the config. Raises DamagedError, UnsupportedError."""
        fields = ManifestFields(self.path, self.config, "config.")
        outside_key = "routed_expert_hidden_size" if fields.has("routed_expert_hidden_size") else "hidden_size"
        outside = fields.integer(outside_key, low=1, high=MAX_WIDTH)
        inside = fields.integer("moe_intermediate_size", low=1, high=MAX_WIDTH)
        assert self.experts is not None
        group = MXFP4_GROUP if self.experts.vectors is None else VECTOR
        for key, width in ((outside_key, outside), ("moe_intermediate_size", inside)):
            if width % group:
                raise fields.error(key, f"a multiple of {group}, as the experts' format needs", UnsupportedError)
        return {"w1": (inside, outside), "w3": (inside, outside), "w2": (outside, inside)}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the container in `folder`.

    Raises ModelError if it cannot be read, DamagedError where it contradicts itself or is not what it should be,
    UnsupportedError for a version, a format or a requirement unknown here.
    """
    path = folder / MANIFEST_NAME
    fields = ManifestFields(path, read_json(path, max_bytes=MAX_MANIFEST_BYTES, unique_keys=True))
    if not fields.has("format_version") or fields.integer("format_version", low=0, high=MAX_BYTES) != VERSION:
        raise fields.error("format_version", f"{VERSION}, the one version that is known", UnsupportedError)
    for name in fields.strings("requires"):
        if name not in REQUIREMENTS:
            raise UnsupportedError(
                f"{path}: requires names {shown(name)}; known are {', '.join(REQUIREMENTS)}: a newer waste may read it"
            )
    config = dict(fields.mapping("config"))
    outer = config.pop("_outer", None)
    if outer is not None and not isinstance(outer, dict):
        raise DamagedError(f"{path}: config._outer is {shown(outer)}, expected an object")
    banks = tuple(_banks(path, fields))
    sums = fields.section("checksums") if fields.has("checksums") else ManifestFields(path, {})
    return Manifest(
        path=path,
        tensor_prefix=fields.text("tensor_prefix"),
        config=config,
        outer=outer or {},
        experts=_expert_format(fields.section("expert_quant")) if banks else None,
        banks=banks,
        trunk=_trunk(path, fields),
        codebook_checksums=sums.checksums("codebooks"),
        trunk_checksums=sums.named_checksums("trunk"),
        file_digests=sums.file_digests("files"),
    )


def _expert_format(fields: ManifestFields) -> ExpertFormat:
    name = fields.text("fmt")
    if name == "MXFP4":
        return ExpertFormat(None)
    form = VECTOR_FORMATS.get(name)
    if form is None:
        found = f"; {name} is known and not supported" if name == _UNTESTED_NAME else ""
        raise fields.error("fmt", f"MXFP4 or {', '.join(VECTOR_FORMATS)}{found}", UnsupportedError)
    for key, expected in (("stages", form.stages), ("vec_dim", VECTOR), ("entries", form.entries)):
        fields.exactly(key, expected)
    if fields.has("index_bits") or form.index_bits != 8:
        fields.exactly("index_bits", form.index_bits)
    index_block = fields.integer("index_block", low=0, high=MAX_BYTES)
    if index_block not in INDEX_BLOCKS:
        raise fields.error("index_block", " or ".join(map(str, INDEX_BLOCKS)), UnsupportedError)
    return ExpertFormat(form, index_block)


def _banks(path: Path, fields: ManifestFields) -> Iterator[BankEntry]:
    """The banks by number."""
    layers = fields.section("layers")
    for key in layers.names():
        if not _LAYER_KEY.fullmatch(key) or int(key) > MAX_LAYER:
            raise DamagedError(f"{path}: layers has the key {shown(key)}, expected a layer from 0 to {MAX_LAYER}")
    for key in sorted(layers.names(), key=int):
        bank = layers.section(key)
        base = bank.integer("codebook_base", low=0, high=MAX_CODEBOOK) if bank.has("codebook_base") else 0
        experts = bank.integer("experts", low=1, high=MAX_EXPERTS)
        size = bank.integer("bytes", low=1, high=MAX_BYTES)
        yield BankEntry(int(key), bank.file_name("file", suffix=BANK_SUFFIX), experts, size, base)


def _trunk(path: Path, fields: ManifestFields) -> tuple[TrunkEntry, ...]:
    """The entries sorted by where they begin; none overlap, and no name comes twice."""
    entries = sorted(map(_trunk_entry, fields.sections("trunk")), key=lambda entry: (entry.offset, entry.end))
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise DamagedError(f"{path}: trunk has {shown(entry.name)} twice")
        names.add(entry.name)
    for before, after in pairwise(entries):
        if after.offset < before.end:
            raise DamagedError(
                f"{path}: in trunk.bin {shown(before.name)} ends at {before.end:,}, after "
                f"{shown(after.name)} begins at {after.offset:,}"
            )
    return tuple(entries)


def _trunk_entry(fields: ManifestFields) -> TrunkEntry:
    name = fields.text("name")
    code = fields.integer("fmt", low=0, high=0xFF)
    form = TRUNK_FORMATS.get(code)
    if form is None:
        known = ", ".join(f"{number} ({known.name})" for number, known in TRUNK_FORMATS.items())
        found = f", which is {_UNTESTED_NAME} and not supported" if code == _UNTESTED_CODE else ""
        raise fields.error("fmt", f"one of {known}{found and f'; {code}{found}'}", UnsupportedError)
    shape = fields.shape("shape", rank=MAX_RANK, high=MAX_BYTES)
    entry = TrunkEntry(name, form, shape, fields.integer("off", low=0, high=MAX_BYTES))
    if form.group is not None:
        fields.exactly("group", form.group)
        if len(shape) > 2:
            raise fields.error("shape", f"at most two sizes for {form.name}, rows and columns", UnsupportedError)
        fields.exactly("scale_off", entry.offset + entry.weight_bytes)
    fields.exactly("bytes", entry.weight_bytes + entry.scale_bytes)
    return entry

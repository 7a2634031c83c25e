"""A model's folder, read and checked: weights' tables, config, tokenizer, end ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from waste.errors import ModelError, WasteError
from waste.io.container import Container
from waste.io.jsonfile import read_json
from waste.io.source import WeightSource, open_source
from waste.model.config import ModelConfig, parse_config
from waste.model.tensors import check_tensors
from waste.model.tokenizer import Tokenizer, load_container_tokenizer, load_tokenizer

DEMO = "demo"
_MAX_JSON_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """Everything about a model but its bytes. Without a tokenizer ids go in and come out."""

    path: Path
    source: WeightSource
    config: ModelConfig
    tokenizer: Tokenizer | None
    end_ids: frozenset[int]

    def weight_formats(self) -> frozenset[str]:
        """The names of the formats that weights are stored in, as the kernels call them."""
        trunk = {info.dtype for info in self.source.tensors.values()}
        parts = [part for bank in self.source.banks.values() for part in bank.parts]
        plain = {part.dtype for part in parts if part.name.endswith(".weight")}
        packed = {"MXFP4" for part in parts if part.name.endswith(".weight_packed")}
        return frozenset(trunk | plain | packed)


def model_path(name: str | Path) -> Path:
    """Where the model called `name` lies: a folder, else `demo`, the model that ships with the package."""
    path = Path(name).expanduser()
    if str(name) == DEMO and not path.exists():
        return Path(__file__).parent.parent / "demo"
    return path


def load_bundle(name: str | Path) -> ModelBundle:
    """Read and check a model's tables; blocks, and reads no weights.

    Raises ModelError, DamagedError or UnsupportedError naming the file and what is wrong with it.
    """
    path = model_path(name)
    source = open_source(path)
    if not isinstance(source, Container):
        config = _checked_config(source)
        tokenizer = load_tokenizer(path, config.vocab_size)
    else:
        try:
            config = _checked_config(source)
        except WasteError as error:
            # The config is part of another file there.
            text = str(error).replace("config.json: ", "config.").replace("config.json", "config")
            raise type(error)(f"{source.manifest.path}: {text}") from error
        eos_id = next(iter(config.eos_token_ids), None)
        tokenizer = load_container_tokenizer(path, config.vocab_size, bos_id=config.bos_token_id, eos_id=eos_id)
    return ModelBundle(path, source, config, tokenizer, _end_ids(path, config))


def _checked_config(source: WeightSource) -> ModelConfig:
    config = parse_config(source.config, prefix=source.tensor_prefix)
    check_tensors(config, source.tensors, source.banks)
    return config


def _end_ids(path: Path, config: ModelConfig) -> frozenset[int]:
    """The config's end ids and those of `generation_config.json`, where there is one."""
    file = path / "generation_config.json"
    if not file.is_file():
        return frozenset(config.eos_token_ids)
    content = read_json(file, max_bytes=_MAX_JSON_BYTES, unique_keys=False)
    listed = content.get("eos_token_id") if isinstance(content, Mapping) else None
    ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < config.vocab_size:
            raise ModelError(f"{file}: eos_token_id holds {token!r}, expected ids from 0 to {config.vocab_size - 1}")
    return frozenset(config.eos_token_ids) | frozenset(ids)

"""Which files of a repository a model needs. Nothing else is fetched."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from waste.errors import ModelError
from waste.io.checkpoint import CONFIG_NAME
from waste.io.container import CODEBOOKS_NAME, TRUNK_NAME
from waste.io.manifest import MANIFEST_NAME, read_manifest
from waste.io.shard_index import INDEX_NAME, read_shard_names
from waste.model.tokenizer import CONFIG_FILE, CONTAINER_RANKS_FILE, CONTAINER_SPECIALS_FILE, RANKS_FILE

SINGLE_NAME = "model.safetensors"
SMALL = (
    CONFIG_NAME,
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "chat_template.json",
    RANKS_FILE,
    CONFIG_FILE,
    CONTAINER_RANKS_FILE,
    CONTAINER_SPECIALS_FILE,
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the repository holds. head: the file that names the weights' files, None if the listing tells."""

    kind: str
    head: str | None
    small: tuple[str, ...]


def choose(repo: str, names: Collection[str]) -> Choice:
    """What to fetch first of these files. Raises ModelError if there is no model among them."""
    small = tuple(name for name in SMALL if name in names)
    if MANIFEST_NAME in names and TRUNK_NAME in names:
        return Choice("container", MANIFEST_NAME, (MANIFEST_NAME, *small))
    if CONFIG_NAME not in names:
        raise ModelError(f"{repo} has neither {CONFIG_NAME} nor a container's {MANIFEST_NAME}; fetch another one")
    if INDEX_NAME in names:
        return Choice("checkpoint", INDEX_NAME, (INDEX_NAME, *small))
    _single(repo, names)
    return Choice("checkpoint", None, small)


def weight_files(repo: str, names: Collection[str], choice: Choice, folder: Path) -> tuple[str, ...]:
    """The files with weights, as the head says, which is in `folder`.

    Raises ModelError if the repository lacks one, DamagedError or UnsupportedError as the head's reader does.
    """
    if choice.head is None:
        return (_single(repo, names),)
    if choice.head == INDEX_NAME:
        wanted = read_shard_names(folder / INDEX_NAME)
    else:
        manifest = read_manifest(folder)
        has_books = manifest.experts is not None and manifest.experts.vectors is not None
        banks = sorted({bank.file for bank in manifest.banks})
        wanted = (TRUNK_NAME, *([CODEBOOKS_NAME] if has_books else ()), *banks)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ModelError(
            f"{repo} has no {missing[0]}, which its {choice.head} names ({len(missing)} of {len(wanted)} are missing); "
            "tell its owners"
        )
    return wanted


def _single(repo: str, names: Collection[str]) -> str:
    """The one file of weights, where nothing names it."""
    if SINGLE_NAME in names:
        return SINGLE_NAME
    found = sorted(name for name in names if name.endswith(".safetensors"))
    if len(found) != 1:
        raise ModelError(f"{repo} has {len(found)} safetensors files and no {INDEX_NAME}; fetch another one")
    return found[0]

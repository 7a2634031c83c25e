"""The files beside the weights: the tokenizer in the container's own two files, and settings that are copied."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from waste.errors import InputError
from waste.io.files import file_error
from waste.model.tokenizer import CONFIG_FILE, RANKS_FILE, load_tokenizer

TOKENIZER_NAME = "tokenizer.model"
SPECIALS_NAME = "specials.json"
COPIED = ("generation_config.json", "preprocessor_config.json")
"""Files of other names that containers may have, and readers may use: end ids, and what images need."""
MAX_BYTES = 64 << 20


def small_files(folder: Path, vocab_size: int) -> dict[str, bytes]:
    """Name and content of each. Raises ModelError naming a file of the source that is wrong."""
    files = {name: _read(folder / name) for name in COPIED if (folder / name).is_file()}
    if load_tokenizer(folder, vocab_size) is not None:
        files[TOKENIZER_NAME] = _read(folder / RANKS_FILE)
        files[SPECIALS_NAME] = _specials(folder / CONFIG_FILE)
    return files


def checksums(files: dict[str, bytes]) -> dict[str, str]:
    """SHA-256 of each, in hexadecimal."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


def _specials(config: Path) -> bytes:
    """`[{"id", "text"}]` in ascending order of the ids that the tokenizer's config names."""
    entries = {}
    if config.is_file():
        entries = json.loads(_read(config)).get("added_tokens_decoder", {})
    named = sorted((int(key), entry["content"]) for key, entry in entries.items())
    return json.dumps([{"id": number, "text": text} for number, text in named], ensure_ascii=False, indent=1).encode()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise file_error(path, error) from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES:,} bytes, which is no such file; remove it")
    return content

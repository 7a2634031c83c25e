"""The plan of an unfinished conversion as a file: JSON with the checksum of its own content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from waste.errors import DamagedError
from waste.io.jsonfile import decode, parse_json, read_bounded

MAX_PLAN_BYTES = 256 << 20
_HEAD = re.compile(rb'\{"sha256":"([0-9a-f]{64})","plan":')


def pack_plan(plan: Mapping[str, object]) -> bytes:
    """The bytes of the file."""
    body = json.dumps(plan, separators=(",", ":")).encode()
    return b'{"sha256":"%s","plan":%s}' % (hashlib.sha256(body).hexdigest().encode(), body)


def read_plan(path: Path) -> dict[str, object]:
    """The plan in a file that `pack_plan` made. Raises DamagedError for any other content, ModelError, ReadError."""
    raw = read_bounded(path, max_bytes=MAX_PLAN_BYTES)
    head = _HEAD.match(raw)
    body = raw[head.end() : -1] if head else b""
    if head is None or hashlib.sha256(body).hexdigest().encode() != head[1]:
        raise DamagedError(
            f"{path} is damaged, or another version of waste wrote it; begin anew with --force, or in another folder"
        )
    plan = parse_json(decode(body, where=str(path)), where=str(path), unique_keys=False)
    return plan if isinstance(plan, dict) else {}

#!/usr/bin/env python3
"""How often lookahead is right: documents fed token by token, and what the routers say compared with the guesses.

bench/recall.py MODEL DOCUMENTS.json [--least 32] [--most 400] [--documents N] [--ram 2GiB] [--json]: the file is a list
of documents, each a list of ids; shorter ones than `--least` are left out, longer ones cut at `--most`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from programs import run

import waste
from waste.errors import InputError


async def measure(model: str, documents: list[list[int]], ram: str, most: int) -> dict[str, Any]:
    settings = {"prefetch.policy": "router", "context": most, "sessions": 1}
    async with waste.open(model, ram=ram, **settings) as engine:
        for ids in documents:
            async with engine.session() as session:
                for token in ids:
                    await engine.feed(session, [token])
        recall = engine.stats().lookahead_recall
    guesses = sum(layer.tokens * len(layer.by_rank) for layer in recall.values())
    right = sum(layer.tokens * sum(layer.by_rank) for layer in recall.values())
    return {
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "recall": right / guesses,
        "by_layer": {number: sum(layer.by_rank) / len(layer.by_rank) for number, layer in recall.items()},
        "by_rank": [
            sum(layer.by_rank[rank] * layer.tokens for layer in recall.values())
            / sum(layer.tokens for layer in recall.values())
            for rank in range(max(len(layer.by_rank) for layer in recall.values()))
        ],
    }


def read_documents(path: Path) -> list[list[int]]:
    """Raises InputError."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; expected a JSON list of documents, each a list of ids") from error
    if not isinstance(found, list) or not all(isinstance(ids, list) for ids in found):
        raise InputError(f"{path}: expected a JSON list of documents, each a list of ids")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--least", type=int, default=32)
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--ram", default="2GiB")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    documents = [ids[: given.most] for ids in read_documents(given.file) if len(ids) >= given.least]
    found = asyncio.run(measure(given.model, documents[: given.documents], given.ram, given.most))
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['documents']} documents, {found['tokens']:,} tokens: {found['recall']:.2%} of the guesses are right")
    print("by layer  " + "  ".join(f"{layer}: {part:.1%}" for layer, part in found["by_layer"].items()))
    print("by rank   " + "  ".join(f"{part:.0%}" for part in found["by_rank"]))


if __name__ == "__main__":
    run(main)

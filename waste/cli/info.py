"""`waste info`: what a model is, from its tables alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waste.cli.options import (
    ExpertsOption,
    JsonOption,
    ModelArgument,
    PresetOption,
    RamOption,
    SetOption,
    TrunkOption,
    resolve_settings,
)


def info(
    model: ModelArgument,
    preset: PresetOption = None,
    ram: RamOption = None,
    trunk: TrunkOption = None,
    experts: ExpertsOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> Callable[[], None]:
    """Describe a model: its layers, parameters, storage, and what a token costs to read.

    Settings matter only where they change what is read, as `trunk.tile` does, and what the least RAM must hold, as
    `context` does.
    """

    def work() -> None:
        from waste.cli.output import print_json, write_text
        from waste.cli.profile import profile_model
        from waste.model.bundle import load_bundle
        from waste.opening import check_names

        settings = resolve_settings(preset, ram, trunk, experts, assignments)
        check_names(settings)
        found = profile_model(load_bundle(model), settings)
        if as_json:
            print_json(found)
        else:
            write_text(_as_text(found))

    return work


def _as_text(found: dict[str, Any]) -> str:
    from waste.cli.output import format_bytes, format_table

    layers, experts, tokenizer = found["layers"], found["experts"], found["tokenizer"]
    lines = [
        ("model", found["model"]),
        ("layout", found["layout"]),
        ("family", found["family"]),
        ("parameters", f"{found['parameters']['total']:,}, {found['parameters']['active']:,} active per token"),
        ("layers", ", ".join(f"{count} {kind}" for kind, count in layers.items())),
        ("hidden size", f"{found['hidden_size']:,}"),
    ]
    if experts is not None:
        lines.append(("experts", f"{experts['count']} a layer, {experts['top_k']} chosen, {experts['shared']} shared"))
        lines.append(("expert record", format_bytes(found["record_bytes"])))
    lines += [
        ("formats", ", ".join(f"{kind} {' + '.join(names)}" for kind, names in found["formats"].items() if names)),
        ("stored", ", ".join(f"{kind} {format_bytes(size)}" for kind, size in found["bytes"].items() if size)),
        ("read per token", f"{format_bytes(found['cold_bytes_per_token'])} with nothing in memory"),
        ("least RAM", f"{format_bytes(found['floor_bytes'])} at a context of {found['floor_context']:,}"),
        ("context", "no limit named" if found["context"] is None else f"{found['context']:,}"),
        ("vocabulary", f"{found['vocab_size']:,}"),
        ("tokenizer", "none: ids only" if tokenizer is None else "tiktoken"),
        ("end ids", ", ".join(map(str, found["end_ids"])) or "none"),
    ]
    return format_table(lines)

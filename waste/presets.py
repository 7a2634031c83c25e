"""Presets: YAML files that select the RAM split and the policies, shipped with the package."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from waste.errors import InputError
from waste.settings import Settings, parse_settings

DEFAULT = "auto"


@cache
def preset_folder() -> Path:
    """`configs/` of the wheel, or of the source tree beside the package."""
    here = Path(__file__).parent
    return next((folder for folder in (here / "configs", here.parent / "configs") if folder.is_dir()), here)


def preset_names() -> list[str]:
    """The shipped presets."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def load_preset(name: str) -> dict[str, object]:
    """The settings of a preset by dotted key; `name` is a shipped one's, or a path that ends in .yaml.

    Raises InputError for an unknown name (naming the nearest), an unreadable file, an unknown key.
    """
    import yaml  # not needed where no preset is read

    is_path = name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else preset_folder() / f"{name}.yaml"
    if not is_path and name not in preset_names():
        names = preset_names()
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        hint = f"did you mean {near[0]!r}? There are {', '.join(names)}" if near else "none are installed"
        raise InputError(f"there is no preset {name!r}; {hint}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"preset {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"preset {path} holds {type(content).__name__}, expected keys and values")
    flat = _flatten(content)
    flat.pop("name", None)
    flat.pop("description", None)
    return flat


def _flatten(section: Mapping[Any, object], path: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in section.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{path}{key}."))
        else:
            flat[f"{path}{key}"] = value
    return flat


def resolve(
    preset: str | None = None, *, ram: object | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Settings from a preset (`auto` where none is named), `ram` and overrides by dotted key, the last one winning.

    Raises InputError naming what is wrong and where it was said.
    """
    name = preset or DEFAULT
    values = parse_settings(load_preset(name), where=f"preset {name}")
    if ram is not None:
        values |= parse_settings({"ram": ram})
    values |= parse_settings(overrides or {})
    return Settings(**values)

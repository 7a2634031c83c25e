"""`waste presets`: what ships with the package."""

from __future__ import annotations

from collections.abc import Callable

from waste.cli.options import JsonOption

_SHOWN = ("ram", "trunk", "experts", "context", "cache.policy", "prefetch.policy")


def presets(as_json: JsonOption = False) -> Callable[[], None]:
    """List the presets and what they set."""

    def work() -> None:
        from waste.cli.output import format_table, print_json, write_text
        from waste.presets import load_preset, preset_names

        found = {name: load_preset(name) for name in preset_names()}
        if as_json:
            print_json({"presets": [{"name": name, "settings": values} for name, values in found.items()]})
            return
        rows = [[name, *(str(values.get(key, "")) for key in _SHOWN)] for name, values in found.items()]
        write_text(format_table([["name", *_SHOWN], *rows]))

    return work

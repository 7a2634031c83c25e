"""What a conversion was asked for: everything that its bytes follow from, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from waste.errors import InputError
from waste.io.jsonfile import shown

EXPERTS = {"mxfp4": "MXFP4", "vq3r": "VQ3R", "vq4p": "VQ4P", "vq2r": "VQ2R"}
"""Values of --experts and the formats' names."""
TRUNKS = {"bf16": "BF16", "q8g": "Q8G", "q4g": "Q4G"}
"""Values of --trunk and the formats' names."""
DEFAULT_SAMPLE = 256


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """experts, trunk: storage formats by name; layers: how many, from the first, None for all.

    sample: experts of a layer that its codebooks are fitted to; seed: what the choice of samples follows from.
    """

    experts: str
    trunk: str
    layers: int | None = None
    sample: int = DEFAULT_SAMPLE
    seed: int = 0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def difference(self, other: Mapping[str, object]) -> str | None:
        """The first option that is another one there, in words; None if all are the same."""
        for key, value in self.as_dict().items():
            if other.get(key) != value:
                return f"--{key} was {_shown(key, other.get(key))} and is now {_shown(key, value)}"
        return None


def _shown(key: str, value: object) -> str:
    """As it is typed."""
    if key == "layers":
        return f"0-{value - 1}" if isinstance(value, int) else "all"
    return shown(value).strip("'").lower()


def parse_options(*, experts: str, trunk: str, layers: str | None, sample: int, seed: int) -> ConvertOptions:
    """Options as they are given on a command line. Raises InputError naming the one that is wrong."""
    return ConvertOptions(
        parse_format("--experts", experts, EXPERTS),
        parse_format("--trunk", trunk, TRUNKS),
        _parse_layers(layers),
        sample,
        seed,
    )


def parse_format(option: str, value: str, known: Mapping[str, str]) -> str:
    """The format's name: what `known` has for `value`. Raises InputError naming the option."""
    if value not in known:
        raise InputError(f"{option} is {value!r}, expected one of {', '.join(known)}")
    return known[value]


def _parse_layers(text: str | None) -> int | None:
    """How many layers "0-5" are."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not dash or first != "0" or not (last.isascii() and last.isdigit() and len(last) <= 4):
        raise InputError(f"--layers is {text!r}, expected 0-N: a model's first layers, which make a smaller model")
    return int(last) + 1

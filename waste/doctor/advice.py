"""Which preset to take for a model: each one planned, as an engine would, and weighed by what a token then costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waste.blueprint import draw
from waste.errors import BudgetError, ContextLengthError
from waste.footprint import record_slot_bytes
from waste.forecast import Forecast, forecast
from waste.io.files import FileSet
from waste.model.bundle import ModelBundle
from waste.presets import DEFAULT, preset_names, resolve

_AS_GOOD = 1.01
"""Presets whose tokens cost this little more are as good."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A preset for a model on this machine. ram_bytes: its ceiling. total_bytes: what the plan takes of it.

    why_not: what keeps it from being taken, None if nothing does. total_bytes and cost are None where no plan is
    possible at all.
    """

    name: str
    ram_bytes: int
    total_bytes: int | None
    cost: Forecast | None
    why_not: str | None


def weigh_presets(bundle: ModelBundle, *, auto_bytes: int) -> list[Prospect]:
    """Every shipped preset, where the machine can give `auto_bytes`, which is also what `ram: auto` then means."""
    record_bytes = record_slot_bytes(bundle.source, FileSet.alignment)
    return [_weigh(bundle, name, auto_bytes, record_bytes) for name in preset_names()]


def _weigh(bundle: ModelBundle, name: str, auto_bytes: int, record_bytes: int) -> Prospect:
    settings = resolve(name)
    if settings.ram is None:
        settings = resolve(name, ram=auto_bytes)
    assert settings.ram is not None
    try:
        drawn = draw(bundle, settings, record_bytes=record_bytes)
    except (BudgetError, ContextLengthError) as error:
        return Prospect(name, settings.ram, None, None, str(error))
    # The ceiling may be higher than the machine's, if the model is too small to come near it.
    over = drawn.plan.total_bytes - auto_bytes
    why_not = f"it would take {over:,} bytes more than this machine should give" if over > 0 else None
    return Prospect(name, settings.ram, drawn.plan.total_bytes, forecast(drawn), why_not)


def recommend(prospects: Sequence[Prospect]) -> Prospect | None:
    """The one whose tokens cost the fewest bytes, of those that fit; among equals the default, then the smallest."""
    fitting = [
        (prospect.cost.token_bytes, prospect) for prospect in prospects if prospect.cost and not prospect.why_not
    ]
    if not fitting:
        return None
    least = min(cost for cost, _ in fitting)
    good = [prospect for cost, prospect in fitting if cost <= least * _AS_GOOD]
    return min(good, key=lambda prospect: (prospect.name != DEFAULT, prospect.total_bytes))

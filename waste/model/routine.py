"""What the walk of one token adds to the backlog, token after token, where the whole trunk is in memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields

from waste.kernels.workers import Stage
from waste.model.step import Step


@dataclass(slots=True)
class Routine:
    """stages: by what added them, see `Backlog.recall`. step: what their jobs refer to, renewed for each walk."""

    stages: dict[Hashable, Sequence[Stage]] = field(default_factory=dict)
    step: Step | None = None

    def renew(self, step: Step) -> Step:
        """The step to walk with: the one that kept jobs know, which is as `step` from now on."""
        if self.step is None:
            self.step = step
        else:
            for own in fields(Step):
                setattr(self.step, own.name, getattr(step, own.name))
        return self.step

    def close(self) -> None:
        """Let go of the memory that jobs refer to."""
        self.stages.clear()
        self.step = None

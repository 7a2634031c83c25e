"""The arrays that all layers of one step use in turn."""

from __future__ import annotations

from dataclasses import dataclass

from waste.model.residual import Stream
from waste.model.scratch import FloatArray


@dataclass(frozen=True, slots=True)
class LayerRows:
    """For N tokens of hidden size H."""

    stream: Stream
    mixed: FloatArray  # [N, H]: what a part of the layer sees, before its norm
    x: FloatArray  # [N, H]: after it
    y: FloatArray  # [N, H]: the part's answer
    weight: FloatArray  # [H]: the norm's

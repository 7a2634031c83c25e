"""The residual stream: a plain running sum, or K3's attention residuals over saved blocks.

`rows` [blocks + 1, N, H] holds the saved blocks and, in row `saved`, the running sum. Sealing a block costs nothing:
the sum stays where it is and the next one starts in the row after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from waste.model.config import ModelConfig
from waste.model.layout import Use
from waste.model.scratch import FloatArray, Scratch
from waste.model.step import Step


@dataclass(slots=True)
class Stream:
    """One step's residual stream. `is_empty`: a block was just sealed and nothing was added since."""

    rows: FloatArray  # [blocks + 1, N, H]
    norm: FloatArray  # [H]
    query: FloatArray  # [H]
    saved: int = 0
    is_empty: bool = False

    @property
    def sum(self) -> FloatArray:
        """The running sum [N, H]."""
        current: FloatArray = self.rows[self.saved]
        return current


class Residuals:
    """How layers read from the stream and add to it."""

    def __init__(self, config: ModelConfig) -> None:
        self._block = config.attn_res_block_size
        self._eps = config.rms_norm_eps
        self._hidden = config.hidden_size
        self._blocks = 0 if self._block is None else -(-config.num_hidden_layers // self._block)

    def take(self, scratch: Scratch, tokens: int) -> Stream:
        return Stream(
            rows=scratch.floats(self._blocks + 1, tokens, self._hidden),
            norm=scratch.floats(self._hidden),
            query=scratch.floats(self._hidden),
        )

    def uses(self, prefix: str, *, is_first: bool = False) -> Iterator[Use]:
        """What `read` with the same arguments takes from the trunk."""
        if self._block is not None and not is_first:
            yield Use(prefix + "_norm.weight", is_vector=True)
            yield Use(prefix + "_proj.weight", is_vector=True)

    async def read(
        self, step: Step, stream: Stream, prefix: str, y: FloatArray, *, is_first: bool = False
    ) -> FloatArray:
        """What a layer sees: the sum itself, or saved blocks and sum mixed into y. `is_first`: nothing is saved."""
        if self._block is None or is_first:
            return stream.sum
        await step.walk.vectors((prefix + "_norm.weight", stream.norm), (prefix + "_proj.weight", stream.query))
        return self._mix(step, stream, y)

    def guess(self, step: Step, stream: Stream, prefix: str, y: FloatArray) -> FloatArray:
        """What a layer further on would see if nothing were added to the stream before it; its tensors are in memory.

        Whether that layer begins a block makes no difference: the sum is then the last of the saved ones.
        """
        if self._block is None:
            return stream.sum
        step.walk.vectors_ahead((prefix + "_norm.weight", stream.norm), (prefix + "_proj.weight", stream.query))
        return self._mix(step, stream, y)

    def _mix(self, step: Step, stream: Stream, y: FloatArray) -> FloatArray:
        count = stream.saved + (not stream.is_empty)
        step.by_token(
            lambda first, last: step.kernels.mix_residuals(
                stream.rows, count, stream.norm, stream.query, self._eps, y, first, last
            )
        )
        return y

    def seal(self, stream: Stream, layer: int) -> None:
        """Entering `layer`: the first of a block saves the sum and starts a new one."""
        if self._block is not None and layer % self._block == 0:
            stream.saved += 1
            stream.is_empty = True

    def pass_layer(self, stream: Stream, layer: int) -> None:
        """As if a whole layer had sealed and added: somebody else has seen to the sums."""
        self.seal(stream, layer)
        stream.is_empty = False

    def add(self, step: Step, stream: Stream, x: FloatArray) -> None:
        """sum += x."""
        if stream.is_empty:
            step.copy(x, stream.sum)
            stream.is_empty = False
        else:
            step.add(x, stream.sum)

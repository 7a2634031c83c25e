"""What a session carries from token to token, and how a step changes it: not at all, until it commits.

A step works on a `Draft`. For one token the recurrent state itself is only read: the token's k, v, decay and β are
kept, *owed* to the state, and the next step brings them in as it reads it. Several tokens write to a second state,
which takes the first one's place. Latents go behind the session's length, where nobody looks before the commit.
Committing swaps references: it cannot fail and cannot be interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from waste.io.arena import Arena
from waste.model.config import ModelConfig
from waste.model.scratch import FloatArray


@dataclass(frozen=True, slots=True)
class StateShape:
    """Sizes of a session's memory, in float32 elements by shape."""

    recurrent: tuple[int, int, int, int]  # [KDA layers, heads, size, size]
    past: tuple[int, int, int]  # [KDA layers, taps − 1, 3·channels]: the last inputs of the short convolutions
    owed: tuple[int, int]  # [KDA layers, 3·channels + heads]: [k | v | decay | β]
    latents: tuple[int, int, int]  # [MLA layers, context, kv_lora_rank + qk_rope_head_dim]

    @property
    def context(self) -> int:
        """Positions."""
        return self.latents[1]

    @staticmethod
    def of(config: ModelConfig, context: int) -> StateShape:
        kda, mla = config.kda, config.mla
        recurrent_layers = sum(config.layer_is_kda)
        return StateShape(
            recurrent=(recurrent_layers, kda.num_heads, kda.head_dim, kda.head_dim),
            past=(recurrent_layers, kda.conv_kernel - 1, 3 * kda.channels),
            owed=(recurrent_layers, 3 * kda.channels + kda.num_heads),
            latents=(
                config.num_hidden_layers - recurrent_layers,
                context,
                mla.kv_lora_rank + mla.qk_rope_head_dim,
            ),
        )

    @property
    def recurrent_bytes(self) -> int:
        return _bytes(self.recurrent)

    @property
    def latent_bytes(self) -> int:
        return _bytes(self.latents)

    @property
    def small_bytes(self) -> int:
        """Convolution inputs and owed tokens, each twice: what is committed and the draft."""
        return 2 * (_bytes(self.past) + _bytes(self.owed))


class SessionState:
    """One session's memory: zeros, `length` positions of context used. `close` gives it back."""

    def __init__(self, shape: StateShape) -> None:
        self.shape = shape
        self.length = 0
        # Each on its own pages: committing a chunk trades `recurrent` for another session's.
        self.recurrent = zeros(shape.recurrent)
        self.latents = zeros(shape.latents)
        self.past, self.next_past = zeros(shape.past), zeros(shape.past)
        self.owed, self.next_owed = zeros(shape.owed), zeros(shape.owed)
        self.is_owed = np.zeros(shape.recurrent[:2], np.bool_)
        """By KDA layer and head, whether its part of `owed` is still to be brought into `recurrent`."""

    @property
    def context(self) -> int:
        """Positions there is room for."""
        return self.shape.latents[1]

    def close(self) -> None:
        """Let go of the memory."""
        nothing = np.empty(0, np.float32)
        self.recurrent = self.latents = self.past = self.next_past = self.owed = self.next_owed = nothing


def zeros(shape: tuple[int, ...]) -> FloatArray:
    """A float32 array of zeros on pages of its own, given back with the last reference to it."""
    return Arena(1, _bytes(shape)).slot(0).view(np.float32).reshape(shape)


class SparePool:
    """Second recurrent states for steps that bring several tokens of a session; `count` such sessions a step."""

    def __init__(self, shape: StateShape, count: int) -> None:
        self._free = [zeros(shape.recurrent) for _ in range(count)]

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> FloatArray:
        return self._free.pop()

    def give_back(self, spare: FloatArray) -> None:
        self._free.append(spare)

    def close(self) -> None:
        """Let go of the memory."""
        self._free.clear()


class Draft:
    """One session's part in one step: `count` tokens from its `position` on, rows `begin` to `end` of the batch."""

    def __init__(self, state: SessionState, *, begin: int, count: int, pool: SparePool | None) -> None:
        self.state = state
        self.begin = begin
        self.end = begin + count
        self.position = state.length
        self._pool = pool
        self.after = pool.take() if pool is not None and count > 1 else None
        """Where states after each token are written, [KDA layers, heads, size, size]; None for a single token."""

    @property
    def count(self) -> int:
        return self.end - self.begin

    def commit(self) -> None:
        """The step happened: make its outcome the session's state."""
        state = self.state
        state.past, state.next_past = state.next_past, state.past
        if self.after is not None:
            # The memory changes hands: the old state becomes the pool's spare.
            state.recurrent, self.after = self.after, state.recurrent
        else:
            state.owed, state.next_owed = state.next_owed, state.owed
            state.is_owed[:] = True
        state.length += self.count
        self.discard()

    def discard(self) -> None:
        """The step is over, committed or never having happened."""
        if self.after is not None and self._pool is not None:
            self._pool.give_back(self.after)
        self.after = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one session brings to a step: its next ids, and of how many of the last of them logits are wanted."""

    state: SessionState
    ids: Sequence[int]
    wanted: int


def draft_batch(chunks: Sequence[Chunk], pool: SparePool) -> list[Draft]:
    """Drafts for a ragged batch, rows in the order of the chunks."""
    drafts: list[Draft] = []
    begin = 0
    for chunk in chunks:
        drafts.append(Draft(chunk.state, begin=begin, count=len(chunk.ids), pool=pool))
        begin += len(chunk.ids)
    return drafts


def _bytes(shape: Sequence[int]) -> int:
    total = 4
    for size in shape:
        total *= size
    return total

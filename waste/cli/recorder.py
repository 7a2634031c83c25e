"""What `eval` keeps of a forward pass: logits, routing and hidden states in files, the likeliest tokens for people."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from waste.cli.array_files import ArrayFile, FloatArray, LineFile, OutputFile
from waste.errors import InputError
from waste.model.config import ModelConfig
from waste.model.step import Tap

IntArray = NDArray[np.int64]
File = TypeVar("File", bound=OutputFile)

SHOWN = 20
"""Positions, the last ones, of which the likeliest tokens are kept."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The likeliest next tokens after `position`: (id, logit, natural log-probability), best first."""

    position: int
    top: tuple[tuple[int, float, float], ...]


class Recorder(Tap):
    """Enter it before the engine is opened: an output that cannot be written then costs no forward pass.

    A thread of its own writes and looks for the likeliest tokens, one thing after the other, and never has more to do
    than one step brings: `add_row` waits for it. Files appear under their names when the recorder is left without an
    error. Raises InputError for a file that cannot be written, WasteError when the disk is full.
    """

    def __init__(self, *, logits: Path | None, routing: Path | None, hidden: Path | None, top_k: int) -> None:
        paths = [path.resolve() for path in (logits, routing, hidden) if path is not None]
        if len(set(paths)) < len(paths):
            raise InputError("two outputs have the same name; give each a file of its own")
        self._paths = (logits, routing, hidden)
        self._top_k = top_k
        self._files: list[OutputFile] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="waste-eval")
        self._posted: list[Future[None]] = []
        self._routed: list[tuple[int, IntArray, FloatArray]] = []
        self._tokens = 0
        self._rows = 0
        self.predictions: deque[Prediction] = deque(maxlen=SHOWN)

    def __enter__(self) -> Recorder:
        logits, routing, hidden = self._paths
        try:
            self._logits = self._open(ArrayFile, logits)
            self._routing = self._open(LineFile, routing)
            self._hidden = self._open(ArrayFile, hidden)
        except InputError:
            self.discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=error is not None)
        try:
            if error is None:
                for file in self._files:
                    file.finish()
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove what is not finished."""
        for file in self._files:
            file.discard()

    def begin(self, config: ModelConfig, tokens: int) -> None:
        """So many rows are to come."""
        self._tokens = tokens
        if self._logits is not None:
            self._logits.begin((tokens, config.vocab_size))
        if self._hidden is not None:
            self._hidden.begin((config.num_hidden_layers, tokens, config.hidden_size))

    @property
    def sees_hidden(self) -> bool:  # type: ignore[override]
        """See `Tap`."""
        return self._hidden is not None

    def hidden(self, layer: int, x: FloatArray) -> None:
        if self._hidden is not None:
            # All rows of the steps before have been added when a step begins.
            self._post(self._hidden.put, layer * self._tokens + self._rows, x.copy())

    def routing(self, layer: int, ids: IntArray, weights: FloatArray) -> None:
        if self._routing is not None:
            self._routed.append((layer, ids.copy(), weights.copy()))

    async def add_row(self, logits: FloatArray) -> None:
        """The logits of the next position, float32 [vocab]; the caller does not change them any more."""
        if self._routing is not None and self._routed:
            self._post(_write_routing, self._routing, self._rows, self._routed)
            self._routed = []
        if self._logits is not None:
            self._post(self._logits.put, self._rows, logits[np.newaxis])
        if self._rows >= self._tokens - SHOWN:
            self._post(self._predict, self._rows, logits)
        self._rows += 1
        posted, self._posted = self._posted, []
        for future in posted:
            await asyncio.wrap_future(future)

    def _open(self, kind: type[File], path: Path | None) -> File | None:
        if path is None:
            return None
        file = kind(path)
        self._files.append(file)
        return file

    def _post(self, work: Callable[..., None], *arguments: object) -> None:
        self._posted.append(self._thread.submit(work, *arguments))

    def _predict(self, position: int, logits: FloatArray) -> None:
        best = np.argsort(-logits, kind="stable")[: self._top_k]
        top = float(logits[best[0]])
        total = top + float(np.log(np.exp(logits.astype(np.float64) - top).sum()))
        found = tuple((int(token), float(logits[token]), float(logits[token]) - total) for token in best)
        self.predictions.append(Prediction(position, found))


def _write_routing(file: LineFile, first: int, routed: list[tuple[int, IntArray, FloatArray]]) -> None:
    """A step's choices, token by token: so the file does not depend on how many tokens a step has."""
    for row in range(len(routed[0][1])):
        for layer, ids, weights in routed:
            order = np.lexsort((ids[row], -weights[row]))
            file.put(
                {
                    "token": first + row,
                    "layer": layer,
                    "ids": ids[row][order].tolist(),
                    "weights": weights[row][order].tolist(),
                }
            )

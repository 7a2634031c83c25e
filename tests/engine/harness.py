"""Opening the small models, walking them in every way there is, and seeing that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import waste
from waste.engine import Engine
from waste.io.backends import register
from waste.io.backends.base import ReadOp
from waste.io.backends.threads import ThreadsBackend, read_fully
from waste.io.files import FileSet
from waste.io.safetensors import read_header
from waste.model.scratch import FloatArray, IntArray
from waste.model.step import Tap
from waste.opening import Opened
from waste.session import Session

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = ("tiny-k3", "tiny-kimi-linear", "tiny-groups")

STREAMING: dict[str, object] = {"trunk": 0, "trunk.tile": "64KiB", "experts": 1}
"""Nothing pinned, a trunk of eight tiles or more, as few expert slots as there can be."""


@dataclass(frozen=True)
class Golden:
    """A golden model's folder and its numbers."""

    path: Path
    ids: list[int]
    logits: FloatArray
    hidden: FloatArray
    topk_ids: IntArray
    topk_weights: FloatArray
    greedy: list[int]


def load_golden(name: str) -> Golden:
    with np.load(GOLDEN / name / "golden.npz") as data:
        values = {key: data[key] for key in data.files}
    lists = {key: values.pop(key).tolist() for key in ("ids", "greedy")}
    return Golden(GOLDEN / name, **lists, **values)


def open_model(name: str | Path, **settings: object) -> Engine:
    """A golden model by name, or any path, with small defaults."""
    path = GOLDEN / name if name in MODELS else name
    options: dict[str, Any] = {"ram": "1GiB", "context": 128, "compute.threads": 2, **settings}
    return waste.open(path, **options)


def insides(engine: Engine) -> Opened:
    assert engine._opened is not None
    return engine._opened


async def all_logits(engine: Engine, ids: Sequence[int], tap: Tap | None = None) -> FloatArray:
    return np.stack([row async for row in engine.logits(ids, tap=tap)])


async def feed(
    engine: Engine, session: Session, ids: Sequence[int], chunk: int = 1, tap: Tap | None = None
) -> FloatArray:
    """Walk `ids` as the session's next tokens in steps of `chunk`; all their logits."""
    loop = insides(engine).loop
    parts = [
        await loop.step(session, part, wanted=len(part), tap=tap)
        for part in (list(ids[at : at + chunk]) for at in range(0, len(ids), chunk))
    ]
    return np.concatenate(parts)


async def logits_in_chunks(engine: Engine, ids: Sequence[int], chunk: int, tap: Tap | None = None) -> FloatArray:
    async with engine.session() as session:
        return await feed(engine, session, ids, chunk, tap)


def bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def assert_same_bits(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    assert found.shape == expected.shape
    different = np.flatnonzero((bits(found) != bits(expected)).reshape(len(found), -1).any(axis=1))
    assert different.size == 0, f"rows {different.tolist()} differ in their bits"


class Recorder(Tap):
    """Keeps copies of what passes: hidden [layers, N, H]; ids and weights [MoE layers, N, k]; step by step."""

    sees_hidden = True

    def __init__(self) -> None:
        self._hidden: dict[int, list[FloatArray]] = {}
        self._ids: dict[int, list[IntArray]] = {}
        self._weights: dict[int, list[FloatArray]] = {}

    def hidden(self, layer: int, x: FloatArray) -> None:
        self._hidden.setdefault(layer, []).append(x.copy())

    def routing(self, layer: int, ids: IntArray, weights: FloatArray) -> None:
        self._ids.setdefault(layer, []).append(ids.copy())
        self._weights.setdefault(layer, []).append(weights.copy())

    @property
    def all_hidden(self) -> FloatArray:
        return self._joined(self._hidden)

    @property
    def all_ids(self) -> IntArray:
        return self._joined(self._ids)

    @property
    def all_weights(self) -> FloatArray:
        return self._joined(self._weights)

    @staticmethod
    def _joined(by_layer: dict[int, list[Any]]) -> npt.NDArray[Any]:
        return np.stack([np.concatenate(by_layer[layer]) for layer in sorted(by_layer)])


@dataclass
class Script:
    """What a scripted disk does: `before` and `after` each read, on its reader's thread; `before` may raise.

    Both get the read's number, counted from 0 since `restart`, and where it lies.
    """

    before: Callable[[int, ReadOp], None] = lambda number, op: None
    after: Callable[[int, ReadOp], None] = lambda number, op: None
    reads: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def restart(self) -> None:
        self.reads = 0

    def read(self, files: FileSet, op: ReadOp) -> int:
        with self._lock:
            number, self.reads = self.reads, self.reads + 1
        self.before(number, op)
        done = read_fully(files, op)
        self.after(number, op)
        return done


def scripted(script: Script) -> dict[str, object]:
    """Settings for an engine whose disk follows the script: the `threads` backend otherwise."""
    register("scripted", lambda depth: ThreadsBackend(depth, read=script.read))
    return {"io.backend": "scripted"}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody announces."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def settle(engine: Engine) -> None:
    """Wait until no walk and no read is under way, and everything that can go on has."""
    opened = insides(engine)
    quiet = 0
    while quiet < 5:
        is_busy = opened.loop._batch or opened.scheduler.statistics().queue.reads_in_flight
        quiet = 0 if is_busy else quiet + 1
        await asyncio.sleep(0.001 if is_busy else 0)


async def assert_idle(engine: Engine, *, sessions: int = 0) -> None:
    """Nobody holds, waits for or computes anything; the books of everything add up."""
    await settle(engine)
    opened, memory = insides(engine), insides(engine).memory
    opened.scheduler.check_integrity()
    memory.ring.check_integrity()
    assert memory.ring.statistics().held == memory.ring.statistics().queued == memory.ring.statistics().reading == 0
    for cache in (memory.experts, memory.embeddings):
        cache.check_integrity()
        counted = cache.statistics()
        assert (counted.pinned, counted.queued, counted.reading) == (0, 0, 0)
    assert memory.spares.free == opened.sizes.spares
    assert memory.scratch._top == 0
    assert engine.stats().sessions_open == sessions
    assert not opened.loop._batch
    assert not opened.loop._waiting


def damage(folder: Path, tensor: str, change: Callable[[np.memmap], None]) -> None:
    """Let `change` write to the bytes of a stored tensor."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    path = folder / index["weight_map"][tensor]
    for entry in read_header(path):
        if entry.name == tensor:
            values = np.memmap(path, np.uint8, "r+", entry.begin, (entry.end - entry.begin,))
            change(values)
            values.flush()
            return
    raise AssertionError(tensor)


def open_descriptors() -> dict[int, str]:
    """By number, where /proc tells; nothing elsewhere."""
    found: dict[int, str] = {}
    folder = Path("/proc/self/fd")
    if folder.is_dir():
        for entry in list(folder.iterdir()):
            # The descriptor of the listing itself is gone by now.
            with suppress(FileNotFoundError):
                found[int(entry.name)] = str(entry.readlink())
    return found


def model_files() -> list[str]:
    """Model files this process has open."""
    return [path for path in open_descriptors().values() if path.endswith(".safetensors")]


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("waste")]


def assert_clean() -> None:
    """No thread and no descriptor of ours is left in this process."""
    gc.collect()
    assert our_threads() == []
    assert model_files() == []


IDS = load_golden("tiny-k3").ids
PROMPT = IDS[:5]


async def still_right(engine: Engine) -> None:
    """The engine is idle, and answers as a fresh one does."""
    await assert_idle(engine)
    found = [token.id async for token in engine.generate(IDS, max_tokens=3)]
    assert found == load_golden("tiny-k3").greedy[:3]
    await assert_idle(engine)


async def collect(engine: Engine, session: waste.Session, count: int) -> list[int]:
    return [token.id async for token in engine.generate(PROMPT, session=session, max_tokens=count)]

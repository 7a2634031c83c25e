"""Thousands of damaged containers: each is refused by name or gives the right answer, in time and within its budget.

    python -m tests.engine.mutate_containers --cases 2000 --jobs 2

Each job is a process of its own, so that a crash is an exit code, and a hang ends with every thread's stack.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import faulthandler
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.conversions import convert
from tests.engine.harness import GOLDEN, STREAMING, all_logits, bits, open_model
from tests.io.containers import another, copy_container, mutate
from waste.errors import WasteError
from waste.footprint import INTERPRETER_BYTES
from waste.model.scratch import FloatArray

BUDGET_BYTES = 512 << 20
PATIENCE_S = 60
IDS = [3, 141, 59, 26, 53]
HEADER, BOOK_HEADER = 48, 16
Rng = np.random.Generator


@dataclass(frozen=True)
class Damage:
    """The new content of a file, None for none at all.

    is_vague: nothing in a container contradicts it, so that a whole container could look like this.
    is_late: the file becomes so while the engine is open. verify: whether checksums are compared.
    """

    file: str
    content: bytes | None
    what: str
    is_vague: bool = False
    is_late: bool = False
    verify: bool = False


@dataclass(frozen=True)
class Target:
    """A container to damage. files: its contents as they should be. expected: its right answer."""

    folder: Path
    files: dict[str, bytes]
    manifest: dict[str, Any]
    expected: FloatArray

    @property
    def books(self) -> dict[str, int]:
        """Entries of a codebook, if there are any."""
        return self.manifest["expert_quant"] if "entries" in self.manifest["expert_quant"] else {}


async def make_targets(folder: Path) -> list[Target]:
    """One of each format: golden ones, one written byte by byte, two of ours with checksums."""
    made = [copy_container(name, folder) for name in ("nano-k3.waste", "nano-kl.waste", "tiny-k3-vq4p.waste")]
    made.append(another(folder / "another.waste"))
    for experts, trunk in (("MXFP4", "BF16"), ("VQ3R", "Q4G")):
        out = folder / f"{experts}-{trunk}.waste".lower()
        convert(GOLDEN / "tiny-k3", out, experts=experts, trunk=trunk, layers=None)
        made.append(out)
    targets = []
    for path in made:
        files = {file.name: file.read_bytes() for file in path.iterdir()}
        expected = await _answer(path, verify=True)
        targets.append(Target(path, files, json.loads(files["manifest.json"]), expected))
    return targets


def damaged_payload(target: Target, rng: Rng) -> Damage:
    """With checksums compared: bytes of one record or of all, anywhere behind the header."""
    name, data, size = _bank(target, rng)
    begin = int(rng.integers(HEADER, size))
    length = int(rng.choice([1, 2, 8, 100, size]))
    return _in_records(name, data, size, rng, begin, min(size, begin + length), verify=True)


def damaged_header(target: Target, rng: Rng) -> Damage:
    name, data, size = _bank(target, rng)
    if rng.random() < 0.2:
        one, other = (int(index) * size for index in rng.integers(0, len(data) // size, 2))
        data[one : one + size] = bytes(data[other : other + size])
        return Damage(name, bytes(data), f"the record at {one} is the one at {other}")
    begin = int(rng.integers(HEADER))
    return _in_records(name, data, size, rng, begin, min(HEADER, begin + int(rng.choice([1, 2, 4, 48]))))


def damaged_manifest(target: Target, rng: Rng) -> Damage:
    """Structure or raw bytes. Which model it is, and which of two orders indices have, only the manifest says."""
    if rng.random() < 0.3:
        raw = bytearray(target.files["manifest.json"])
        for at in rng.integers(len(raw), size=rng.integers(1, 4)):
            raw[at] ^= 1 << rng.integers(8)
        return Damage("manifest.json", bytes(raw), "bits flipped", is_vague=_is_vague(target, bytes(raw)))
    mutated = copy.deepcopy(target.manifest)
    for _ in range(rng.integers(1, 3)):
        mutate(mutated, rng)
    content = json.dumps(mutated).encode()
    return Damage("manifest.json", content, "edited", is_vague=_is_vague(target, content))


def _is_vague(target: Target, content: bytes) -> bool:
    try:
        found = json.loads(content)
        wanted = target.manifest
        orders = [each["expert_quant"].get("index_block") for each in (found, wanted)]
        return found["config"] != wanted["config"] or orders[0] != orders[1]
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def damaged_codebooks(target: Target, rng: Rng) -> Damage:
    """Headers always; values where they become no numbers, or have a checksum that is compared."""
    if not target.books:
        return damaged_header(target, rng)
    data = bytearray(target.files["codebooks.bin"])
    each = BOOK_HEADER + target.books["entries"] * 16
    book = int(rng.integers(len(data) // each)) * each
    has_sums = "checksums" in target.manifest
    if rng.random() < 0.4:
        at = book + int(rng.integers(BOOK_HEADER))
        data[at] ^= 1 << rng.integers(8)
        what = f"bit of byte {at - book} of the header at {book}"
    else:
        new = [b"\xff\xff", b"\0\x7c\0\x7c", b"\0\0", rng.bytes(3)][rng.integers(4)]
        at = book + int(rng.integers(BOOK_HEADER, each - len(new) + 1))
        data[at : at + len(new)] = new
        what = f"values at {at}"
    return Damage("codebooks.bin", bytes(data), what, is_vague=at - book >= BOOK_HEADER and not has_sums, verify=True)


def truncated(target: Target, rng: Rng) -> Damage:
    """A file that ends early, is missing, or becomes so while it is read."""
    names = [name for name in target.files if name.endswith((".bin", ".json"))]
    name = str(rng.choice(names))
    data = target.files[name]
    size = int(rng.choice([0, 1, len(data) // 2, len(data) - 1, rng.integers(len(data))]))
    kind = rng.random()
    if kind < 0.1:
        return Damage(name, None, "missing")
    if kind < 0.2:
        return Damage(name, data + rng.bytes(5), "with five bytes more")
    is_late = kind < 0.5
    return Damage(name, data[:size], f"cut to {size}{' while open' if is_late else ''}", is_late=is_late)


KINDS: dict[str, Callable[[Target, Rng], Damage]] = {
    "payload": damaged_payload,
    "header": damaged_header,
    "manifest": damaged_manifest,
    "codebooks": damaged_codebooks,
    "truncation": truncated,
}


def _bank(target: Target, rng: Rng) -> tuple[str, bytearray, int]:
    """The name and content of a file of records, and a record's size."""
    bank = target.manifest["layers"][str(rng.choice(list(target.manifest["layers"])))]
    return bank["file"], bytearray(target.files[bank["file"]]), bank["bytes"] // bank["experts"]


def _in_records(
    name: str, data: bytearray, size: int, rng: Rng, begin: int, end: int, *, verify: bool = False
) -> Damage:
    """The same change to bytes from `begin` to `end` of one record, or of all of them."""
    count = len(data) // size
    is_all = rng.random() < 0.7
    kind = rng.choice(["flip", "noise", "zeros", "ones"])
    flips, noise = np.zeros(end - begin, np.uint8), np.frombuffer(rng.bytes(end - begin), np.uint8)
    flips[0] = 1 << rng.integers(8)
    for index in range(count) if is_all else [int(rng.integers(count))]:
        at = index * size + begin
        old = np.frombuffer(bytes(data[at : at + end - begin]), np.uint8)
        new = {"flip": old ^ flips, "noise": noise, "zeros": noise * 0, "ones": noise | 255}[str(kind)]
        data[at : at + end - begin] = new.tobytes()
    what = f"{kind} in bytes {begin} to {end} of {'all records' if is_all else 'a record'}"
    return Damage(name, bytes(data), what, verify=verify)


async def _answer(folder: Path, *, verify: bool, late: Callable[[], None] | None = None) -> FloatArray:
    """`late` is called when the engine is open."""
    async with open_model(folder, ram=BUDGET_BYTES, context=64, verify=verify, **(STREAMING if late else {})) as engine:
        assert engine.plan.total_bytes <= BUDGET_BYTES
        if late is not None:
            late()
        return await all_logits(engine, IDS)


async def judge(target: Target, damage: Damage) -> str:
    """Do the damage, ask, and mend it: `refused`, `right`, or `another model` where that is allowed.

    Raises AssertionError for any other answer, and whatever the engine raises that is no error of ours.
    """
    path = target.folder / damage.file

    def write() -> None:
        path.unlink() if damage.content is None else path.write_bytes(damage.content)

    def cut() -> None:
        assert damage.content is not None
        with path.open("r+b") as stream:
            stream.truncate(len(damage.content))

    try:
        with _within_budget():
            if damage.is_late:
                found = await _answer(target.folder, verify=damage.verify, late=cut)
            else:
                write()
                found = await _answer(target.folder, verify=damage.verify)
    except WasteError as error:
        text = str(error)
        assert str(target.folder) in text or text.startswith("layer ") or "layers." in text, text[:500]
        assert len(text) < 2000, f"a message of {len(text):,} characters: {text[:500]}"
        return "refused"
    finally:
        path.write_bytes(target.files[damage.file])
    if found.shape == target.expected.shape and (bits(found) == bits(target.expected)).all():
        return "right"
    assert damage.is_vague, f"another answer to {damage.file}: {damage.what}"
    return "another model"


@contextmanager
def _within_budget() -> Iterator[None]:
    """The process never grows by more than the budget has beyond the interpreter; elsewhere than on Linux: unchecked.

    Growth, because a process that has run other tests is larger than one that only runs the engine.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak there was
    except OSError:
        yield
        return
    before = _memory("VmRSS")
    try:
        yield
    finally:
        growth = _memory("VmHWM") - before
        assert growth <= BUDGET_BYTES - INTERPRETER_BYTES, f"the process grew by {growth:,} bytes"


def _memory(field: str) -> int:
    """Bytes, as Linux tells them of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) << 10


async def run_cases(folder: Path, numbers: range, seed: int, tell: Callable[[str], None]) -> Counter[tuple[str, str]]:
    """How the cases of these numbers ended, by kind. Each is told before it begins."""
    targets = await make_targets(folder)
    tally: Counter[tuple[str, str]] = Counter()
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        kind = list(KINDS)[number % len(KINDS)]
        target = targets[int(rng.integers(len(targets)))]
        damage = KINDS[kind](target, rng)
        tell(f"{number}: {target.folder.name}/{damage.file} ({kind}): {damage.what}")
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        tally[kind, await judge(target, damage)] += 1
        faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        numbers = range(options.job, options.cases, options.jobs)
        with tempfile.TemporaryDirectory() as folder:
            tally = asyncio.run(run_cases(Path(folder), numbers, options.seed, lambda line: print(line, flush=True)))
        print(json.dumps([[*key, count] for key, count in tally.items()]))
        return 0
    command = [sys.executable, "-m", "tests.engine.mutate_containers", *sys.argv[1:], "--job"]
    jobs = [
        subprocess.Popen([*command, str(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for job in range(options.jobs)
    ]
    total: Counter[tuple[str, str]] = Counter()
    failed = 0
    for job in jobs:
        out, err = job.communicate()
        lines = out.splitlines()
        if job.returncode:
            failed = 1
            print(f"exit code {job.returncode} in {lines[-1] if lines else 'no case'}\n{err}")
        else:
            total.update({(kind, end): count for kind, end, count in json.loads(lines[-1])})
    for (kind, end), count in sorted(total.items()):
        print(f"{kind:12} {end:14} {count:5}")
    print(f"{total.total()} of {options.cases} cases ended as they should")
    return failed


if __name__ == "__main__":
    sys.exit(main())

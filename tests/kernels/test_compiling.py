"""Filling the cache: children share the work, each kernel is compiled by one of them, and some may die."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waste import opening
from waste.footprint import COMPILER_BYTES, INTERPRETER_BYTES
from waste.kernels import compiling
from waste.kernels.compiling import KERNELS_A_CHILD, Filled, fill_cache

from .processes import output_of, report_of, start_hashing, start_python

QUICK = (
    *("add", "exponential", "multiply_sigmoid", "gate_output"),
    *("combine", "short_convolution", "MXFP4.find_bad_scale", "VQ3R.find_bad_scale"),
)
"""Two children's worth of kernels that compile in no time."""

FILL_TWICE = """
import json, sys
from dataclasses import asdict
from waste.kernels import _jit, load_kernels
from waste.kernels.compiling import fill_cache

named = load_kernels("numba").by_name()
kernels = [named[name] for name in sys.argv[1:]]
print(json.dumps([asdict(fill_cache(kernels, children=2)) for _ in range(2)]))
assert not any(kernel.signatures for kernel in kernels), "the parent compiles nothing"
"""


def test_two_children_fill_an_empty_cache_as_one_process_does(tmp_path: Path) -> None:
    """Every entry is there: a process that comes later finds all of them, and they give the same bits."""
    alone = start_hashing(*QUICK, WASTE_CACHE_DIR=str(tmp_path / "alone"))
    together = {"WASTE_CACHE_DIR": str(tmp_path / "together")}
    first, second = json.loads(output_of(start_python("-c", FILL_TWICE, *QUICK, **together)))
    assert first == {"present": 0, "compiled": len(QUICK), "missing": 0, "children": 2}
    assert second == {"present": len(QUICK), "compiled": 0, "missing": 0, "children": 0}
    later = report_of(start_hashing(*QUICK, **together))
    assert later.cache_hits == len(QUICK)
    assert later.hashes == report_of(alone).hashes
    folder = Path(later.folder)
    assert len(list(folder.rglob("*.nbi"))) == len(list(folder.rglob("*.nbc"))) == len(QUICK)
    assert not list(folder.rglob("*.tmp*"))


CHILD = """
import os, sys, time
from pathlib import Path
folder = Path({folder!r})
for line in sys.stdin:
    name = line.strip()
    {act}
    with open(folder / f"child-{{os.getpid()}}", "a") as said:
        said.write(name + "\\n")
    (folder / name).touch()
    print(name, flush=True)
"""


class Children:
    """Children that only say what they were given, in files named child-PID; marks are files named as the kernels."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(compiling, "_mark", lambda name: folder / name)
        self.will("time.sleep(0.02)")

    def will(self, act: str) -> None:
        """Do this before each kernel."""
        self._monkeypatch.setattr(compiling, "_CHILD", CHILD.format(folder=str(self.folder), act=act))

    @property
    def given(self) -> list[list[str]]:
        """Per child, the kernels it was given."""
        return [path.read_text().split() for path in self.folder.glob("child-*")]


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Children:
    return Children(tmp_path, monkeypatch)


def kernels(count: int) -> list[Callable[..., None]]:
    """Callables with names of their own."""
    made: list[Any] = [lambda: None for _ in range(count)]
    for number, each in enumerate(made):
        each.__module__, each.__qualname__ = "kernels", f"k{number}"
    return made


def test_each_kernel_goes_to_one_child_once(children: Children) -> None:
    told: list[int] = []
    three = kernels(24)
    assert fill_cache([*three, *three[:5]], told.append, children=3) == Filled(0, 24, 0, 3)
    assert sorted(name for names in children.given for name in names) == sorted(f"kernels.k{n}" for n in range(24))
    assert len(children.given) == 3
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, 24)


def test_only_what_is_lacking_is_compiled(children: Children) -> None:
    for number in range(20):
        (children.folder / f"kernels.k{number}").touch()
    told: list[int] = []
    assert fill_cache(kernels(24), told.append, children=8) == Filled(20, 4, 0, 1)
    assert sorted(children.given[0]) == [f"kernels.k{number}" for number in range(20, 24)]
    assert (told[0], told[-1]) == (20, 24)


@pytest.mark.parametrize(
    ("lacking", "allowed", "wanted"),
    [(1, 9, 1), (KERNELS_A_CHILD * 2, 9, 2), (KERNELS_A_CHILD * 2, 1, 1), (KERNELS_A_CHILD * 2, 0, 1)],
)
def test_no_more_children_than_pay(children: Children, lacking: int, allowed: int, wanted: int) -> None:
    assert fill_cache(kernels(lacking), children=allowed).children == wanted


def test_a_child_that_dies_takes_only_its_kernel_with_it(children: Children) -> None:
    children.will("name == 'kernels.k7' and os._exit(3)")
    assert fill_cache(kernels(12), children=2) == Filled(0, 11, 1, 2)


def test_children_that_all_die_leave_kernels_missing(children: Children) -> None:
    children.will("os._exit(3)")
    assert fill_cache(kernels(12), children=2) == Filled(0, 0, 12, 2)


def test_children_that_cannot_be_started(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.sys, "executable", str(children.folder / "nothing"))
    assert fill_cache(kernels(12), children=2) == Filled(0, 0, 12, 0)


def test_calling_it_off_ends_every_child_at_once(children: Children) -> None:
    class CalledOff(Exception):  # noqa: N818
        pass

    children.will("time.sleep(60)")
    calls: list[int] = []

    def progress(done: int) -> None:
        calls.append(done)
        if len(calls) == 4:
            raise CalledOff

    began = time.monotonic()
    with pytest.raises(CalledOff):
        fill_cache(kernels(12), progress, children=3)
    assert time.monotonic() - began < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("waste-compiling")]


@pytest.mark.parametrize(
    ("budget", "cores", "wanted"),
    [
        (COMPILER_BYTES, 8, 1),
        (INTERPRETER_BYTES + 2 * COMPILER_BYTES - 1, 8, 1),
        (INTERPRETER_BYTES + 2 * COMPILER_BYTES, 8, 2),
        (1 << 40, 8, 8),
        (1 << 40, 1, 1),
    ],
)
def test_as_many_children_as_the_budget_holds(
    monkeypatch: pytest.MonkeyPatch, budget: int, cores: int, wanted: int
) -> None:
    monkeypatch.setattr(opening, "usable_cores", lambda: cores)
    assert opening.compiling_children(budget) == wanted

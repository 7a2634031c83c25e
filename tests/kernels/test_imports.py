"""Who may import numba, and what works without it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import waste.kernels

from .processes import ROOT, output_of, start_python


def imported_packages(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def test_one_file_imports_numba() -> None:
    importers = [p for p in (ROOT / "waste").rglob("*.py") if imported_packages(p) & {"numba", "llvmlite"}]
    assert importers == [ROOT / "waste" / "kernels" / "_jit.py"]


def test_the_numpy_set_needs_no_numba_and_the_numba_set_says_why_it_cannot_run() -> None:
    script = """
import sys
from waste.errors import UnsupportedError
from waste.kernels import load_kernels
import waste.kernels.workers
assert load_kernels("numpy").name == "numpy"
assert "numba" not in sys.modules
try:
    load_kernels("numba")
except UnsupportedError as error:
    print(error)
"""
    message = output_of(start_python("-c", script, NUMBA_DISABLE_JIT="1"))
    assert "NUMBA_DISABLE_JIT" in message
    assert "compute.kernels=numpy" in message


def test_an_unknown_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no kernel set is called 'cuda'; there are numba, numpy"):
        waste.kernels.load_kernels("cuda")

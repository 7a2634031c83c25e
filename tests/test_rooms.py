"""The rooms of ARCHITECTURE.md: who may import whom, and how large a file or a function may get."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "waste"
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
ALLOWED = {
    "io": {"io", "errors"},
    "sched": {"sched", "io", "errors"},
    "kernels": {"kernels", "errors"},
    "model": {"model", "kernels", "sched", "io", "errors"},
}
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
EXCUSE = "# Longer than a function should be: "


def imported_rooms(path: Path) -> Iterator[str]:
    """The first name below `waste` of everything a file imports from us, relative imports resolved."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "waste" and len(parts) > 1:
                yield parts[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_to_the_rooms(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if room in ALLOWED:
        assert set(imported_rooms(path)) <= ALLOWED[room]


@pytest.mark.parametrize("path", FILES + TESTS, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_files_and_functions_stay_small(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            is_short = node.end_lineno - node.lineno < MAX_FUNCTION_LINES
            assert is_short or lines[node.lineno - 2].startswith(EXCUSE), f"{node.name} is too long"


def test_only_one_file_imports_numba() -> None:
    importers = [
        path.name for path in FILES if "numba" in external_imports(path) or "llvmlite" in external_imports(path)
    ]
    assert importers == ["_jit.py"]


def external_imports(path: Path) -> set[str]:
    """Top-level modules a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found

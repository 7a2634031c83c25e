"""What a user installs: the wheel carries presets and the demo model, and runs from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a freshly built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_it_carries_presets_demo_and_types(unpacked: Path) -> None:
    package = unpacked / "waste"
    assert {path.name for path in (package / "configs").iterdir()} == {
        path.name for path in (ROOT / "configs").iterdir()
    }
    assert {path.name for path in (package / "demo").iterdir()} >= {
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00003.safetensors",
        "tiktoken.model",
        "tokenizer_config.json",
    }
    assert (package / "py.typed").exists()
    assert not (unpacked / "tests").exists()


def test_it_runs_the_demo_from_another_folder(unpacked: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "waste.cli", "run", "demo", "In the beginning", "-n", "6", "--preset", "laptop"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stderr
    assert " of the reign of" in ran.stdout

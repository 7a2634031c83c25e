from pathlib import Path

import pytest

from tests.io.checkpoints import GOLDEN, LFS_STUB, copy_golden
from waste.errors import DamagedError, ModelError, WasteError
from waste.io import source
from waste.io.checkpoint import Checkpoint
from waste.io.source import WeightSource, open_source, register_detector


def test_a_folder_of_safetensors_is_a_checkpoint() -> None:
    opened: WeightSource = open_source(GOLDEN / "tiny-k3")
    assert isinstance(opened, Checkpoint)
    assert opened.banks[1].records == 12


def make(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda f: f / "nothing", ModelError, "No such file or directory"),
        (lambda f: f, ModelError, "an empty folder"),
        (lambda f: make(f / "notes.txt", b"hello").parent, ModelError, "a folder of 1 entries (notes.txt)"),
        (lambda f: make(f / "model.gguf", b"GGUF"), ModelError, "a .gguf file"),
        (lambda f: make(f / "model", b"?"), ModelError, "a file of no known format"),
        (lambda f: make(f / "model.safetensors", b"?"), ModelError, "without the config.json"),
        (lambda f: make(f / "model.safetensors", LFS_STUB), DamagedError, "git lfs pull"),
        (lambda f: make(f / "notes.txt", b"hello") / "below", ModelError, "Not a directory"),
        (lambda f: f / ("a" * 5000), ModelError, "too long"),
        (lambda f: make(f / "config.json", b"{}").parent, ModelError, "no *.safetensors"),
        (lambda f: make(f / "model.safetensors", bytes(8)).parent, ModelError, "config.json"),
    ],
)
def test_what_is_no_model_is_described(tmp_path: Path, build, error: type[WasteError], says: str) -> None:
    with pytest.raises(error) as caught:
        open_source(build(tmp_path))
    assert says in str(caught.value)


def test_a_new_format_needs_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_detectors", {})
    mine = Checkpoint(copy_golden("tiny-groups", tmp_path))
    register_detector("mine", lambda path: mine if path.suffix == ".mine" else None)
    assert open_source(make(tmp_path / "a.mine", b"")) is mine
    with pytest.raises(ModelError, match="expected"):
        open_source(make(tmp_path / "a.other", b""))

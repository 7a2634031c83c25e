"""What lies in OUT before a conversion: without --force nothing of it goes, with it nothing but a container's files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.convert.conversions import TINY_K3, contents, convert
from tests.convert.test_resume import stop_after
from waste.convert.converter import Converter
from waste.convert.durable import OutputFile, write_file
from waste.convert.inventory import UNFINISHED, take_inventory
from waste.errors import DamagedError, InputError, WasteError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished container, not to be written to."""
    folder = tmp_path_factory.mktemp("whole") / "c"
    convert(TINY_K3, folder, layers=3)
    return folder


def refused(out: Path, words: str, **changes: object) -> None:
    """The conversion says so, and leaves everything as it was."""
    before = contents(out)
    with pytest.raises(InputError, match=words):
        convert(TINY_K3, out, layers=3, **changes)
    assert contents(out) == before


@pytest.mark.parametrize("name", ["trunk.bin", "experts-L1.bin", "tokenizer.model", "codebooks.bin.part"])
def test_files_that_no_conversion_began_need_force(tmp_path: Path, whole: Path, name: str) -> None:
    out = tmp_path / "c"
    out.mkdir()
    (out / name).write_bytes(b"half of a download")
    refused(out, rf"holds {name}, which this conversion did not write.*--force")
    convert(TINY_K3, out, layers=3, is_forced=True)
    assert contents(out) == contents(whole)


def test_a_download_without_its_manifest_is_kept(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "c"
    shutil.copytree(whole, out)
    (out / "manifest.json").unlink()
    refused(out, "did not write")


@pytest.mark.parametrize("name", ["ledger.jsonl", "trunk.bin", "experts-L1.bin", "codebooks-L1.bin"])
def test_marks_without_a_plan_need_force(tmp_path: Path, name: str) -> None:
    (tmp_path / "c" / UNFINISHED).mkdir(parents=True)
    (tmp_path / "c" / UNFINISHED / name).write_bytes(b"x")
    refused(tmp_path / "c", rf"holds UNFINISHED/{name}, which this conversion did not write")


def test_a_conversion_that_hardly_began_is_begun_anew(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "c" / UNFINISHED).mkdir(parents=True)
    for name in ("lock", "plan.json.part"):
        (tmp_path / "c" / UNFINISHED / name).write_bytes(b"{")
    convert(TINY_K3, tmp_path / "c", layers=3)
    assert contents(tmp_path / "c") == contents(whole)


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize(
    "name",
    ["notes.txt", "experts-Lmy-notes.bin", "experts-L01.bin", "experts-L1.bin.bak", f"{UNFINISHED}/mydoc.txt"],
)
def test_other_files_never_go(tmp_path: Path, whole: Path, name: str, is_forced: bool) -> None:
    for out in (tmp_path / "empty", tmp_path / "c"):
        if out.name == "c":
            shutil.copytree(whole, out)
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
        refused(out, rf"holds {Path(name).name}, which is no part of a container", is_forced=is_forced)


def linked(path: Path, target: Path) -> None:
    path.symlink_to(target)


def piped(path: Path, target: Path) -> None:
    os.mkfifo(path)


def nested(path: Path, target: Path) -> None:
    path.mkdir()
    (path / "mydoc.txt").write_text("mine")


@pytest.mark.skipif(os.name == "nt", reason="links and pipes are made as POSIX does")
@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize(
    ("make", "words"), [(linked, "a symbolic link"), (piped, "no regular file"), (nested, "a folder")]
)
@pytest.mark.parametrize("name", ["trunk.bin", "experts-L1.bin", f"{UNFINISHED}/trunk.bin", f"{UNFINISHED}/lock"])
def test_what_is_no_regular_file_is_named(
    tmp_path: Path, make: Callable[[Path, Path], None], words: str, name: str, is_forced: bool
) -> None:
    precious, path = tmp_path / "precious", tmp_path / "c" / name
    precious.write_text("mine")
    path.parent.mkdir(parents=True)
    make(path, precious)
    with pytest.raises(InputError, match=rf"{name} is {words}"):
        convert(TINY_K3, tmp_path / "c", is_forced=is_forced)
    assert precious.read_text() == "mine"
    assert os.path.lexists(path)


@pytest.mark.skipif(os.name == "nt", reason="links are made as POSIX does")
@pytest.mark.parametrize("is_forced", [False, True])
def test_nothing_outside_goes_through_a_link(tmp_path: Path, is_forced: bool) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "lock").write_text("mine")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / UNFINISHED).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="UNFINISHED is a symbolic link"):
        convert(TINY_K3, tmp_path / "c", is_forced=is_forced)
    assert (tmp_path / "precious" / "lock").read_text() == "mine"
    (tmp_path / "c" / "x").symlink_to(tmp_path / "precious" / "lock")
    (tmp_path / "c" / "x.part").symlink_to(tmp_path / "precious" / "lock")
    for write in (
        lambda: OutputFile(tmp_path / "c" / "x", size=0, is_new=True),
        lambda: write_file(tmp_path / "c" / "x", b""),
    ):
        with pytest.raises(WasteError, match="writing"):
            write()
    assert (tmp_path / "precious" / "lock").read_text() == "mine"


def test_an_unfinished_one_takes_up_only_its_own_files(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "c"
    stop_after(out, 4)
    for name in ("experts-L9.bin", "generation_config.json", f"{UNFINISHED}/codebooks-L9.bin"):
        (out / name).write_bytes(b"another's")
        refused(out, rf"holds {name}, which this conversion did not write")
        (out / name).unlink()
    convert(TINY_K3, out, layers=3)
    assert contents(out) == contents(whole)


def test_a_manifest_beside_the_plan_is_compared(tmp_path: Path, whole: Path) -> None:
    """A conversion that was stopped between its last two steps; what looks like one is refused."""
    out = tmp_path / "c"
    stop_after(out, 4)
    plan = (out / UNFINISHED / "plan.json").read_bytes()
    shutil.copy(whole / "manifest.json", out)
    with pytest.raises(WasteError, match=r"trunk\.bin"):
        convert(TINY_K3, out, layers=3)
    shutil.rmtree(out)
    convert(TINY_K3, out, layers=3, seed=1, trunk="Q4G", experts="MXFP4")
    (out / UNFINISHED).mkdir()
    (out / UNFINISHED / "plan.json").write_bytes(plan)
    refused(out, r"experts-L1\.bin|manifest\.json|codebooks")
    shutil.rmtree(out)
    shutil.copytree(whole, out)
    (out / UNFINISHED).mkdir()
    (out / UNFINISHED / "plan.json").write_bytes(plan)
    convert(TINY_K3, out, layers=3)
    assert contents(out) == contents(whole)


def test_what_comes_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the folder and the lock on it."""

    def check_room(self: Converter, *arguments: object) -> None:
        self.out.mkdir()
        (self.out / "trunk.bin").write_bytes(b"another's")

    monkeypatch.setattr(Converter, "_check_room", check_room)
    with pytest.raises(InputError, match="by another process meanwhile"):
        convert(TINY_K3, tmp_path / "c")
    assert (tmp_path / "c" / "trunk.bin").read_bytes() == b"another's"


def test_a_forced_one_can_be_stopped_anywhere(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "c"
    shutil.copytree(whole, out)
    left = [3]
    unlink = Path.unlink

    def stop(self: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if not left[0]:
            raise InterruptedError
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", stop)
    with pytest.raises((InterruptedError, WasteError)):
        convert(TINY_K3, out, layers=3, is_forced=True)
    monkeypatch.undo()
    assert not (out / "manifest.json").exists()
    refused(out, "--force")
    convert(TINY_K3, out, layers=3, is_forced=True)
    assert contents(out) == contents(whole)


def test_names_are_shown_without_their_signs(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31mred").write_text("")
    with pytest.raises(InputError) as caught:
        take_inventory(tmp_path)
    assert "\x1b" not in str(caught.value)


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("mine")
    with pytest.raises(InputError, match="is no folder"):
        convert(TINY_K3, tmp_path / "c", is_forced=True)
    (tmp_path / "d" / UNFINISHED).mkdir(parents=True)
    (tmp_path / "d" / UNFINISHED / "plan.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"plan\.json"):
        convert(TINY_K3, tmp_path / "d")

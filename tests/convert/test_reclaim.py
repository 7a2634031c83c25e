"""Source shards go when the last of them is converted, durably, and never where that would not be safe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.convert.conversions import DEMO, contents, convert
from waste.convert.inventory import UNFINISHED
from waste.convert.layout import ContainerLayout
from waste.convert.options import ConvertOptions
from waste.convert.reclaim import last_uses, room_needed
from waste.convert.saved_source import SavedSource
from waste.errors import InputError
from waste.io.source import open_source

OPTIONS = {"experts": "MXFP4", "trunk": "BF16", "layers": None}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    shutil.copytree(DEMO, folder)
    return folder


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_dry_names_them_in_order_and_deletes_none(tmp_path: Path, source: Path) -> None:
    told: list[str] = []
    done = convert(source, tmp_path / "c", reclaim="dry", tell=told.append, **OPTIONS)
    assert sorted(done.reclaimed) == shards(source)
    assert len(shards(source)) == 3
    assert told == [f"would delete {source / name}" for name in done.reclaimed]


def test_on_deletes_each_after_its_last_use(tmp_path: Path, source: Path) -> None:
    convert(DEMO, tmp_path / "whole", **OPTIONS)
    seen: list[tuple[str, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((what, len(shards(source))))

    done = convert(source, tmp_path / "c", reclaim="on", progress=progress, **OPTIONS)
    assert shards(source) == []
    assert len(done.reclaimed) == 3
    assert {count for _, count in seen} >= {3, 2}
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")
    assert (source / "tiktoken.model").exists()


def test_a_resumed_one_needs_no_shard_that_is_gone(tmp_path: Path, source: Path) -> None:
    convert(DEMO, tmp_path / "whole", **OPTIONS)

    def progress(what: str, done: int, total: int) -> None:
        if len(shards(source)) < 3 and "experts of layer 7" in what:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        convert(source, tmp_path / "c", reclaim="on", progress=progress, **OPTIONS)
    assert 0 < len(shards(source)) < 3
    done = convert(source, tmp_path / "c", reclaim="on", **OPTIONS)
    assert done.resumed > 5
    assert shards(source) == []
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_a_shard_is_kept_if_what_was_made_of_it_reads_back_wrong(tmp_path: Path, source: Path) -> None:
    def progress(what: str, done: int, total: int) -> None:
        # After layer 1's experts became durable, and before any shard goes.
        path = tmp_path / "c" / "experts-L1.bin"
        if path.exists() and what.startswith("trunk of layer 2"):
            with path.open("r+b") as file:
                file.seek(60)
                file.write(b"\xff\x00\xff")

    with pytest.raises(Exception, match="reads back other") as caught:
        convert(source, tmp_path / "c", reclaim="on", progress=progress, **OPTIONS)
    assert getattr(caught.value, "exit_code", None) == 4
    assert len(shards(source)) == 3


def test_what_makes_it_unsafe_is_refused_before_anything_is_written(tmp_path: Path, source: Path) -> None:
    first = source / shards(source)[0]

    def refused(words: str, folder: Path = source, **changes: object) -> None:
        for mode in ("dry", "on"):
            with pytest.raises(InputError, match=words):
                convert(folder, tmp_path / "c", reclaim=mode, **{**OPTIONS, **changes})
        assert not (tmp_path / "c" / UNFINISHED).exists()
        assert len(shards(source)) == 3

    refused("--layers", layers=2)
    (tmp_path / "link").symlink_to(source)
    refused("symbolic link", tmp_path / "link")
    os.link(first, tmp_path / "second-name")
    refused("2 names")
    (tmp_path / "second-name").unlink()
    first.chmod(0o444)
    refused("read-only")
    first.chmod(0o644)
    source.chmod(0o555)
    refused("read-only")
    source.chmod(0o755)
    first.rename(tmp_path / "blob")
    first.symlink_to(tmp_path / "blob")
    refused("symbolic link")
    first.unlink()
    (tmp_path / "blob").rename(first)
    (source / "tiktoken.model").unlink()
    refused("no tiktoken.model")
    with pytest.raises(InputError, match="inside each other"):
        convert(source, tmp_path, reclaim="on", is_forced=True, **OPTIONS)


def test_room_that_comes_back_is_counted() -> None:
    source = SavedSource.of(DEMO, open_source(DEMO))
    layout = ContainerLayout(source, ConvertOptions("MXFP4", "BF16"))
    total = sum(layout.unit_bytes(unit) for unit in layout.units())
    sizes = {number: path.stat().st_size for number, path in enumerate(source.paths)}
    assert room_needed(layout, {}, ()) == total
    assert total / 4 < room_needed(layout, sizes, ()) < total
    assert room_needed(layout, {}, [unit.name for unit in layout.units()]) == 0
    assert sorted(number for numbers in last_uses(layout).values() for number in numbers) == sorted(sizes)

"""Fetching from a hub that drops, repeats, flips and refuses: a right file or a clear error, never a wrong file."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.convert.hub_server import COMMIT, REPO, UNWANTED, Fault, HubServer, checkpoint_files, environment, serving
from waste.convert.fetch import FETCHING, MAX_FAILURES, Fetched, Fetcher, PartFile, open_hub
from waste.convert.jobs import StoppedError
from waste.errors import DamagedError, InputError, ModelError, UnsupportedError, WasteError
from waste.io.container import Container
from waste.io.source import open_source

GOLDEN = Path(__file__).parents[1] / "golden"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def hub_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the user's is read, nothing is kept at home, and nothing but 127.0.0.1 is asked."""
    for key, value in environment(tmp_path / "home", "http://127.0.0.1:9").items():
        monkeypatch.setenv(key, value)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    yield
    assert not (tmp_path / "home").exists()


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    """One client for all tests: it takes a while to make."""
    yield
    from huggingface_hub import close_session

    close_session()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving(checkpoint_files() | UNWANTED) as server:
        yield server


def fetcher(hub: HubServer, folder: Path, *, revision: str | None = None, repo: str = REPO) -> Fetcher:
    from waste.convert.hub import Hub

    return Fetcher(Hub(repo, revision, endpoint=hub.url, token=False), folder, pause_s=0.0)


def fetch(hub: HubServer, folder: Path, **options: Any) -> Fetched:
    return fetcher(hub, folder, **options).run()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_nothing_wrong(folder: Path) -> None:
    """What has a final name is what the hub holds."""
    right = checkpoint_files()
    for name, data in contents(folder).items():
        assert name.startswith(f"{FETCHING}/") or data == right[name], name


def test_only_what_is_needed(hub: HubServer, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    size = sum(map(len, checkpoint_files().values()))
    assert (done.kind, done.commit, done.files, done.total_bytes, done.received_bytes) == (
        "checkpoint",
        COMMIT,
        8,
        size,
        size,
    )
    assert not (tmp_path / FETCHING).exists()
    asked = len(hub.asked)
    again = fetch(hub, tmp_path / "m", revision="v1")
    assert (again.received_bytes, len(hub.asked)) == (0, asked)
    assert set(hub.tokens) == {None}


def test_who_asks(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from waste.convert.hub import Hub

    Fetcher(Hub(REPO, endpoint=hub.url, token="hf_secret"), tmp_path / "m").run()
    assert set(hub.tokens) == {"Bearer hf_secret"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        fetch(hub, tmp_path / "m")


def test_an_empty_file_is_a_file(hub: HubServer, tmp_path: Path) -> None:
    hub.files["vocab.json"] = hub.files[SHARD] = b""
    fetch(hub, tmp_path / "m")
    assert (tmp_path / "m" / "vocab.json").read_bytes() == (tmp_path / "m" / SHARD).read_bytes() == b""


@pytest.mark.parametrize("name", ["tiny-kimi-linear", "nano-kl.waste"])
def test_a_fetched_model_opens(tmp_path: Path, name: str) -> None:
    files = {path.name: path.read_bytes() for path in (GOLDEN / name).iterdir()}
    with serving(files) as hub:
        done = fetch(hub, tmp_path / "m")
    source = open_source(tmp_path / "m")
    assert done.kind == ("container" if isinstance(source, Container) else "checkpoint")
    del files["golden.npz"]
    assert contents(tmp_path / "m") == files


def test_one_file_of_weights_needs_no_index(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w" * 100, "consolidated.safetensors": b"v" * 100}
    with serving(files) as hub:
        fetch(hub, tmp_path / "m")
    assert set(contents(tmp_path / "m")) == {"config.json", "model.safetensors"}


def test_a_dropped_connection_is_gone_on_from(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(cut=30_000), Fault(cut=0), Fault(cut=20_000))
    done = fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    assert hub.ranges(SHARD) == [None, "bytes=30000-99999", "bytes=30000-99999", "bytes=50000-99999"]
    assert done.received_bytes == done.total_bytes


def test_a_hub_that_never_gets_further_is_given_up(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(cut=30_000), *[Fault(cut=10, ignores_range=True)] * 50)
    with pytest.raises(WasteError, match=f"{SHARD}.*failures in a row") as caught:
        fetch(hub, tmp_path / "m")
    assert caught.value.exit_code == 1
    assert len(hub.ranges(SHARD)) == MAX_FAILURES + 1
    assert_nothing_wrong(tmp_path / "m")
    hub.faults.clear()
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()


def test_all_of_the_file_instead_of_a_range(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(cut=30_000), Fault(ignores_range=True))
    done = fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    assert done.received_bytes == done.total_bytes + 30_000


def test_another_range_than_asked_for(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(cut=30_000), Fault(shift=7))
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    hub.break_next(SHARD, Fault(cut=30_000), *[Fault(shift=7), Fault(cut=30_000)] * 9)
    (tmp_path / "m" / SHARD).unlink()
    with pytest.raises(DamagedError, match=f"{SHARD}.*sends the range 'bytes 30007-"):
        fetch(hub, tmp_path / "m")


@pytest.mark.parametrize("name", [SHARD, "config.json", "tiktoken.model"])
def test_a_flipped_byte_is_fetched_again_once(hub: HubServer, tmp_path: Path, name: str) -> None:
    hub.break_next(name, Fault(flip=5))
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    assert hub.ranges(name) == [None, None]


@pytest.mark.parametrize("name", [SHARD, "config.json"])
@pytest.mark.parametrize("fault", [Fault(flip=5), Fault(extra=3), Fault(extra=3, hides_length=True)])
def test_damaged_twice_is_an_error(hub: HubServer, tmp_path: Path, name: str, fault: Fault) -> None:
    hub.break_next(name, *[fault] * 10)
    with pytest.raises(DamagedError, match=f"{name}.*fetched 2 times") as caught:
        fetch(hub, tmp_path / "m")
    assert caught.value.exit_code == 4
    assert len(hub.ranges(name)) == 2
    assert not (tmp_path / "m" / name).exists()
    assert_nothing_wrong(tmp_path / "m")


def test_a_damaged_beginning_of_an_earlier_run(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(cut=30_000, flip=7), *[Fault(status=503)] * (MAX_FAILURES + 1))
    with pytest.raises(WasteError, match="503"):
        fetch(hub, tmp_path / "m")
    hub.faults.clear()
    hub.break_next(SHARD, Fault(), Fault(flip=9))
    fetch(hub, tmp_path / "m")
    assert hub.ranges(SHARD)[-3:] == ["bytes=30000-99999", None, None]
    assert contents(tmp_path / "m") == checkpoint_files()


def test_sizes_that_the_hub_does_not_keep(hub: HubServer, tmp_path: Path) -> None:
    right = hub.siblings()
    for offset in (-100, 100):
        entry = next(each for each in right if each["rfilename"] == SHARD)
        size = len(hub.files[SHARD]) + offset
        hub.listing[SHARD] = entry | {"size": size, "lfs": entry["lfs"] | {"size": size}}
        with pytest.raises(DamagedError, match=SHARD):
            fetch(hub, tmp_path / "m")
        assert_nothing_wrong(tmp_path / "m")


def test_what_is_there_is_read_and_replaced(hub: HubServer, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "m")
    data = bytearray(checkpoint_files()[SHARD])
    data[50_000] ^= 1
    (tmp_path / "m" / SHARD).write_bytes(data)
    (tmp_path / "m" / "config.json").write_bytes(b"{}")
    (tmp_path / "m" / "notes.txt").write_bytes(b"mine")
    done = fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files() | {"notes.txt": b"mine"}
    assert done.received_bytes == len(data) + len(checkpoint_files()["config.json"])


def test_parts_of_another_commit_are_dropped(hub: HubServer, tmp_path: Path) -> None:
    parts = tmp_path / "m" / FETCHING
    parts.mkdir(parents=True)
    (parts / f"{SHARD}.0123456789abcdef.part").write_bytes(b"old")
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()


@pytest.mark.parametrize("name", ["mydoc.txt", "mydoc.part", f"{SHARD}.part"])
def test_what_no_fetch_left_in_its_folder_is_kept(hub: HubServer, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "m" / FETCHING / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(InputError, match=rf"FETCHING holds {name}, which no fetch left there"):
        fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == {f"{FETCHING}/{name}": b"mine"}


@pytest.mark.skipif(os.name == "nt", reason="links are made as POSIX does")
def test_nothing_outside_goes_through_a_link(hub: HubServer, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").write_text("mine")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / FETCHING).symlink_to(precious)
    with pytest.raises(InputError, match="FETCHING is no folder of its own"):
        fetch(hub, tmp_path / "m")
    (tmp_path / "m" / FETCHING).unlink()
    (tmp_path / "m" / FETCHING).mkdir()
    (tmp_path / "m" / FETCHING / f"{SHARD}.0123456789abcdef.part").symlink_to(precious / "lock")
    with pytest.raises(InputError, match="FETCHING holds model-"):
        fetch(hub, tmp_path / "m")
    assert (precious / "lock").read_text() == "mine"


@pytest.mark.parametrize(
    "endpoint", ["foo", "http://[bad", "http://a:99999", "http://a:b", "http://", "ftp://a", "http://x y", "http://a\n"]
)
def test_an_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(InputError, match=r"HF_ENDPOINT is .*, expected an address"):
        open_hub(REPO, None)
    for good in ("", "http://127.0.0.1:9", "https://huggingface.co/"):
        monkeypatch.setenv("HF_ENDPOINT", good)
        open_hub(REPO, None)


def test_a_silent_hub_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(delay_s=1.5))
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    assert len(hub.ranges(SHARD)) == 2


def test_stopped_and_gone_on_with(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(delay_s=0.02))
    work = fetcher(hub, tmp_path / "m")
    heard: list[tuple[str, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        heard.append((what, done, total))
        if any(path.stat().st_size > 20_000 for path in (tmp_path / "m" / FETCHING).glob(f"{SHARD}*")):
            work.stop()

    work.progress = progress
    with pytest.raises(StoppedError):
        work.run()
    assert not (tmp_path / "m" / SHARD).exists()
    assert_nothing_wrong(tmp_path / "m")
    assert heard[-1][0].startswith("fetching")
    done = fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    assert (hub.ranges(SHARD)[-1] or "").startswith("bytes=2")
    assert done.received_bytes < len(hub.files[SHARD])


def test_room_is_looked_for_first(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, (16 << 20) + 150_000))
    with pytest.raises(InputError, match=r"needs 16,977,216 bytes more .* make room"):
        fetch(hub, tmp_path / "m")
    assert hub.ranges(SHARD) == []
    # What an earlier run brought is not counted again.
    (tmp_path / "m" / SHARD).write_bytes(hub.files[SHARD])
    fetch(hub, tmp_path / "m")


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (404, "RepoNotFound", InputError, "does not exist, or is private"),
        (401, "RepoNotFound", InputError, "does not exist, or is private"),
        (401, None, InputError, "may not be read"),
        (401, "GatedRepo", InputError, "gated; accept its terms"),
        (403, "GatedRepo", InputError, "gated; accept its terms"),
        (403, None, InputError, "may not be read"),
        (404, None, WasteError, "HF_ENDPOINT"),
        (500, None, WasteError, "status 500"),
        (429, None, WasteError, "again later"),
    ],
)
def test_a_refused_listing(
    hub: HubServer, tmp_path: Path, status: int, code: str | None, error: type[WasteError], words: str
) -> None:
    hub.refusal = (status, code)
    with pytest.raises(error, match=words) as caught:
        fetch(hub, tmp_path / "m")
    assert caught.value.exit_code == (2 if error is InputError else 1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (404, "EntryNotFound", ModelError, "lists .* and does not have it"),
        (403, None, InputError, "may not be read"),
        (403, "GatedRepo", InputError, "gated"),
        (410, None, WasteError, "status 410"),
        (416, None, DamagedError, "fewer bytes"),
    ],
)
def test_a_refused_file(
    hub: HubServer, tmp_path: Path, status: int, code: str | None, error: type[WasteError], words: str
) -> None:
    hub.break_next(SHARD, *[Fault(status=status, code=code)] * 9)
    with pytest.raises(error, match=words):
        fetch(hub, tmp_path / "m")
    assert_nothing_wrong(tmp_path / "m")


def test_a_busy_hub_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.break_next(SHARD, Fault(status=503), Fault(status=429), Fault(cut=10), Fault(status=500))
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()


def test_names_and_revisions_that_are_not_there(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no revision 'v9'"):
        fetch(hub, tmp_path / "m", revision="v9")
    for repo in ("a/b/c", "", "..", "owner/../x"):
        with pytest.raises(InputError, match="no repository's name"):
            fetch(hub, tmp_path / "m", repo=repo)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": None}, "no list of files"),
        ({"size": -1}, "no list of files"),
        ({"blobId": "../../x"}, "no list of files"),
        ({"lfs": {"sha256": "x", "size": 3, "pointerSize": 1}}, "no list of files"),
        ({"lfs": 7}, "no list of files"),
    ],
)
def test_a_listing_that_makes_no_sense(hub: HubServer, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    hub.listing["config.json"] = {"rfilename": "config.json", "size": 3, "blobId": "0" * 40} | change
    with pytest.raises(WasteError, match=words):
        fetch(hub, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_an_index_is_untrusted(hub: HubServer, tmp_path: Path) -> None:
    hub.files["model.safetensors.index.json"] = b'{"weight_map": {"a": "../../evil.safetensors"}}'
    with pytest.raises(DamagedError, match="plain"):
        fetch(hub, tmp_path / "m")
    hub.files["model.safetensors.index.json"] = b'{"weight_map": {"a": "model-9.safetensors"}}'
    with pytest.raises(ModelError, match=r"has no model-9\.safetensors"):
        fetch(hub, tmp_path / "m")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": b""}, "neither config.json"),
        ({"config.json": b"{}"}, "0 safetensors files"),
        ({"config.json": b"{}", "a.safetensors": b"", "b.safetensors": b""}, "2 safetensors files"),
    ],
)
def test_a_repository_without_a_model(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    with serving(files) as hub, pytest.raises(ModelError, match=words):
        fetch(hub, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_container_of_the_future(tmp_path: Path) -> None:
    with serving({"manifest.json": b'{"format_version": 9}', "trunk.bin": b"x" * 100}) as hub:
        with pytest.raises(UnsupportedError, match="format_version"):
            fetch(hub, tmp_path / "m")
        assert hub.ranges("trunk.bin") == []


def test_two_at_once_are_refused(hub: HubServer, tmp_path: Path) -> None:
    from waste.convert.durable import locked

    (tmp_path / "m" / FETCHING).mkdir(parents=True)
    with locked(tmp_path / "m" / FETCHING / "lock"), pytest.raises(InputError, match="fetching into"):
        fetch(hub, tmp_path / "m")


def test_a_large_file_is_asked_for_in_pieces(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waste.convert.hub.REQUEST_BYTES", 40_000)
    fetch(hub, tmp_path / "m")
    assert contents(tmp_path / "m") == checkpoint_files()
    assert hub.ranges(SHARD) == ["bytes=0-39999", "bytes=40000-79999", "bytes=80000-99999"]


def test_a_part_that_is_too_long_begins_anew(tmp_path: Path) -> None:
    from waste.convert.hub import HubFile

    (tmp_path / "x").write_bytes(b"12345")
    part = PartFile(tmp_path / "x", HubFile("x", 3, "0" * 64, is_large=True), lambda: None)
    assert (part.size, part.is_whole()) == (0, False)
    part.close()

"""`waste fetch`: what it prints, how it is interrupted, and what it says where it cannot work."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Call, assert_one_line, finish, start
from tests.convert.hub_server import COMMIT, REPO, Fault, HubServer, checkpoint_files, environment, serving

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving(checkpoint_files()) as server:
        yield server


@pytest.fixture
def here(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets commands in this process ask the hub; huggingface_hub reads HF_ENDPOINT only once."""
    for key, value in environment(tmp_path / "home", hub.url).items():
        monkeypatch.setenv(key, value)
    from huggingface_hub import close_session

    from waste.convert.hub import Hub

    monkeypatch.setattr(
        "waste.convert.fetch.open_hub", lambda repo, revision: Hub(repo, revision, endpoint=hub.url, token=False)
    )
    yield
    close_session()


def test_it_says_what_it_fetched(hub: HubServer, tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    process = start("fetch", REPO, out, "--json", "--revision", "v1", env=environment(tmp_path / "home", hub.url))
    result = finish(process)
    found, size = result.json, sum(map(len, checkpoint_files().values()))
    assert result.err == ""
    assert (found["commit"], found["dest"], found["kind"], found["files"]) == (COMMIT, out, "checkpoint", 8)
    assert (found["bytes"], found["received_bytes"]) == (size, size)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.usefixtures("here")
def test_damage_and_its_end(call: Call, hub: HubServer, tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    hub.break_next(SHARD, *[Fault(flip=1)] * 2)
    assert_one_line(call("fetch", REPO, out), 4, SHARD, "SHA-256", "fetched 2 times")
    again = call("fetch", REPO, out)
    assert (again.code, again.err) == (0, "")
    assert "checkpoint, 8 files" in again.out


@pytest.mark.usefixtures("here")
def test_who_cannot_be_asked(call: Call, hub: HubServer, tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    assert_one_line(call("fetch", "owner/none", out), 2, "owner/none", "does not exist")
    hub.url = "http://127.0.0.1:9"  # it discards, where anybody listens at all
    assert_one_line(call("fetch", REPO, out), 1, "http://127.0.0.1:9", "connection")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_name_or_address(tmp_path: Path, call: Call) -> None:
    assert_one_line(call("fetch", REPO, ""), 2, "DEST is empty")
    for endpoint in ("http://[bad", "http://a:99999"):
        process = start("fetch", REPO, str(tmp_path / "m"), env=environment(tmp_path / "home", endpoint))
        assert_one_line(finish(process), 2, "HF_ENDPOINT", endpoint)


def test_without_the_library(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "waste.convert.hub", raising=False)
    assert_one_line(call("fetch", REPO, str(tmp_path / "m")), 2, "pip install 'waste[fetch]'")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX does")
@pytest.mark.parametrize("delay_s", [0.02, 10.0], ids=["while bytes come", "while none come"])
@pytest.mark.usefixtures("here")
def test_an_interrupted_one_can_be_gone_on_with(call: Call, hub: HubServer, tmp_path: Path, delay_s: float) -> None:
    hub.break_next(SHARD, Fault(cut=50_000), Fault(delay_s=delay_s))
    process = start("fetch", REPO, str(tmp_path / "m"), env=environment(tmp_path / "home", hub.url))
    end = time.monotonic() + 30
    while len(hub.ranges(SHARD)) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    result = finish(process)
    assert time.monotonic() - began < 5
    assert (result.code, result.out) == (130, "")
    assert not (tmp_path / "m" / SHARD).exists()
    assert call("fetch", REPO, str(tmp_path / "m")).code == 0
    begin = int((hub.ranges(SHARD)[-1] or "").removeprefix("bytes=").partition("-")[0])
    assert begin >= 50_000
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == checkpoint_files()

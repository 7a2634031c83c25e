"""Settings and presets: parsing, overriding, and errors that name the nearest key."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from waste.errors import InputError
from waste.presets import load_preset, preset_names, resolve
from waste.settings import KEYS, Settings, parse_settings, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (17, 17),
        ("17", 17),
        ("1KiB", 1024),
        ("1.5 MiB", 3 << 19),
        ("8GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("2KB", 2000),
        ("2MB", 2_000_000),
        ("2GB", 2_000_000_000),
        ("1TiB", 1 << 40),
        ("1.5TB", 1_500_000_000_000),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1PiB", "-1", "1e3", "8 G", -1, 1 << 62, 1.5, True, None, "auto"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        parse_size(text)


def test_every_key_is_a_field_and_every_field_a_key() -> None:
    assert {key.replace(".", "_") for key in KEYS} == {field.name for field in fields(Settings)}


@pytest.mark.parametrize(
    ("key", "value", "parsed"),
    [
        ("ram", "auto", None),
        ("ram", "2GiB", 2 << 30),
        ("trunk.tile", "64KiB", 1 << 16),
        ("ram.share", "15/16", Fraction(15, 16)),
        ("ram.share", 0.5, Fraction(1, 2)),
        ("reserve", "1MiB", 1 << 20),
        ("prefill.chunk", "auto", None),
        ("prefill.chunk", "7", 7),
        ("io.direct", False, "off"),  # YAML's reading of a bare `off`
        ("io.direct", "auto", "auto"),
        ("verify", "on", True),
        ("verify", 0, False),
    ],
)
def test_values(key: str, value: object, parsed: object) -> None:
    assert parse_settings({key: value}) == {key.replace(".", "_"): parsed}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("io.queue_depth", 2000),
        ("compute.threads", 10**6),
        ("ram", "lots"),
        ("ram.share", "0"),
        ("ram.share", "9/8"),
        ("ram.share", "1/0"),
        ("ram.share", "1e-999999999"),
        ("trunk.tile", 0),
        ("trunk.tile", "0MiB"),
        ("context", 0),
        ("context", True),
        ("io.queue_depth", "x"),
        ("verify", "maybe"),
        ("ram", [1]),
    ],
)
def test_bad_values_name_the_key_and_what_was_expected(key: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"{key} is .*, expected"):
        parse_settings({key: value})


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean .io\.queue_depth."):
        parse_settings({"io.queue_dept": 1})


def test_the_shipped_presets_all_load() -> None:
    assert preset_names() == ["auto", "desktop", "laptop", "max", "server", "workstation"]
    sizes = {name: resolve(name).ram for name in preset_names()}
    assert sizes == {
        "auto": None,
        "max": None,
        "laptop": 8 << 30,
        "desktop": 32 << 30,
        "workstation": 64 << 30,
        "server": 128 << 30,
    }


def test_max_takes_more_of_the_machine_than_auto() -> None:
    assert resolve("max").ram_share > resolve("auto").ram_share == Fraction(7, 8)


def test_the_last_word_wins() -> None:
    assert resolve("laptop", ram="1GiB").ram == 1 << 30
    assert resolve("laptop", ram="1GiB", overrides={"ram": "2GiB"}).ram == 2 << 30
    assert resolve(overrides={"context": 77}).context == 77


def test_an_unknown_preset_names_the_nearest_and_the_choices() -> None:
    with pytest.raises(InputError, match=r"'labtop'; did you mean 'laptop'\? There are auto, .*workstation"):
        load_preset("labtop")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("- 1\n", "holds list"),
        ("ram: [\n", "while parsing"),
        ("rma: 1\n", "did you mean 'ram'"),
        ("io: {queue_dept: 1}\n", "did you mean 'io.queue_depth'"),
        ("io: 3\n", "no setting 'io'"),
        ("ram: much\n", "ram is 'much'"),
        ("1: 2\n", "no setting '1'"),
    ],
)
def test_a_bad_preset_file_is_one_clear_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=complaint) as caught:
        resolve(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_preset_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nram: 3GiB\nio: {backend: threads, direct: off}\n", encoding="utf-8")
    mine = resolve(str(path))
    assert (mine.ram, mine.io_backend, mine.io_direct) == (3 << 30, "threads", "off")
    with pytest.raises(InputError, match="No such file"):
        resolve(str(tmp_path / "none.yaml"))

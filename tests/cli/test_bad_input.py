"""Bad input gets one clear line and an exit code, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import GOLDEN, PROMPT, Call, assert_one_line, finish, start

MODEL = str(GOLDEN / "tiny-groups")
SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"

REQUESTS: dict[str, tuple[list[str], int, tuple[str, ...]]] = {
    "missing model": (["run", "nowhere", "x"], 2, ("nowhere",)),
    "empty prompt": (["run", "demo", ""], 2, ("prompt is empty",)),
    "prompt of nothing piped": (["run", "demo"], 2, ("prompt is empty",)),
    "nothing to evaluate": (["eval", "demo", "--ids", " "], 2, ("at least one",)),
    "two prompts": (["run", "demo", "x", "--ids", "1"], 2, ("an argument", "--ids")),
    "ids out of range": (["run", MODEL, "--ids", "1,99999"], 2, ("99999", "position 1")),
    "evaluated ids out of range": (["eval", MODEL, "--ids", "99999"], 2, ("99999", "position 0")),
    "ids that are none": (["run", MODEL, "--ids", "1,zwei"], 2, ("'zwei'", "3,17,5")),
    "an id left out": (["run", MODEL, "--ids", "1,,2"], 2, ("''", "3,17,5")),
    "negative ids": (["run", MODEL, "--ids", "-1"], 2, ("'-1'",)),
    "huge ids": (["run", MODEL, "--ids", "9" * 5000], 2, ("not a token id",)),
    "text without a tokenizer": (["run", MODEL, "x"], 2, ("no tokenizer", "ids")),
    "context overflow": (["run", "demo", PROMPT * 9, "--set", "context=16"], 2, ("context of 16",)),
    "evaluated context overflow": (["eval", MODEL, "--ids", "1," * 17, "--set", "context=16"], 2, ("context of 16",)),
    "no such file": (["run", "demo", "--file", "nowhere.txt"], 2, ("nowhere.txt",)),
    "a folder as file": (["run", "demo", "--file", str(GOLDEN)], 2, ("folder", "text file")),
    "not UTF-8": (["run", "demo", "--file", str(GOLDEN / "tiny-k3" / "golden.npz")], 2, ("UTF-8",)),
    "unknown preset": (["run", "demo", "x", "--preset", "lapptop"], 2, ("'lapptop'", "'laptop'")),
    "unknown setting": (["info", "demo", "--set", "io.queue_dept=3"], 2, ("io.queue_dept", "'io.queue_depth'")),
    "setting without value": (["plan", "demo", "--set", "context"], 2, ("'context'", "KEY=VALUE")),
    "bad setting": (["eval", "demo", "--text", "x", "--set", "context=many"], 2, ("context", "'many'")),
    "bad size": (["plan", "demo", "--ram", "8GB?"], 2, ("ram", "8GiB")),
    "a picture of no sweep": (["plan", "demo", "--plot", "a.png"], 2, ("--sweep",)),
    "no tile": (["plan", "demo", "--set", "trunk.tile=0"], 2, ("trunk.tile", "not 0")),
    "unknown backend described": (["info", "demo", "--set", "io.backend=bogus"], 2, ("'bogus'", "threads")),
    "unknown policy described": (["info", "demo", "--set", "cache.policy=bogus"], 2, ("'bogus'", "lfru")),
    "unknown faults described": (["info", "demo", "--set", "io.faults=bogus"], 2, ("'bogus'", "simulated")),
    "unknown backend": (["run", "demo", "x", "--set", "io.backend=thread"], 2, ("'thread'", "'threads'")),
    "unknown kernels": (["run", "demo", "x", "--set", "compute.kernels=cuda"], 2, ("'cuda'", "numba")),
    "budget below the floor": (["run", "demo", "x", "--ram", "1MiB"], 3, ("budget", "floor")),
    "plan below the floor": (["plan", "demo", "--ram", "1MiB"], 3, ("budget", "floor")),
    "too many to show": (["eval", "demo", "--ids", "1", "--top-k", "20000"], 2, ("--top-k", "1024")),
    "bad temperature": (["run", "demo", "x", "--temperature", "-1"], 2, ("temperature",)),
    "bad top-p": (["run", "demo", "x", "--top-p", "2"], 2, ("top_p",)),
    "empty stop": (["run", "demo", "x", "--stop", ""], 2, ("stop",)),
    "no tokens wanted": (["run", "demo", "x", "-n", "0"], 2, ("--max-tokens", "waste run --help")),
    "not a number": (["run", "demo", "x", "--seed", "x"], 2, ("--seed",)),
    "no model": (["info"], 2, ("MODEL",)),
    "unknown option": (["info", "demo", "--jsn"], 2, ("--jsn",)),
    "unknown command": (["runn"], 2, ("runn", "'run'")),
    "output in no folder": (["eval", "demo", "--text", "x", "--logits-out", "no/where.npy"], 2, ("no/where.npy",)),
    "output is a folder": (["eval", "demo", "--text", "x", "--logits-out", str(GOLDEN)], 2, ("regular file",)),
    "ids to no text": (["detokenize", "demo", "70000"], 2, ("70000",)),
    "no tokenizer": (["tokenize", MODEL, "x"], 2, ("no tokenizer",)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_refused_in_one_line(name: str, call: Call) -> None:
    arguments, code, words = REQUESTS[name]
    assert_one_line(call(*arguments), code, *words)


def test_a_text_that_no_context_holds_is_not_read_to_its_end(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)  # holes, which read as zeros
    for command in ("run", "eval"):
        result = call(command, "demo", "--file", str(path), "--set", "context=64")
        assert_one_line(result, 2, "long.txt", "more than 262,144 bytes", "context of 64")
    result = call("run", "demo", "--set", "context=64", stdin=b"x" * 300_000)
    assert_one_line(result, 2, "standard input", "context of 64")


@pytest.mark.parametrize("command", ["run", "eval"])
def test_what_a_command_holds_is_in_its_plan(call: Call, tmp_path: Path, command: str) -> None:
    """Texts and reports that are larger than usual raise the floor; usual ones do not."""
    floor = call("plan", "demo", "--json", "--disk", "1GB").json["floor_bytes"]
    ram = ("--ram", str(floor))
    usual = ("--ids", "1,2", *(("-n", "2") if command == "run" else ()))
    assert call(command, "demo", *usual, *ram).code == 0
    wide = ("--logprobs", "1024", "-n", "100") if command == "run" else ("--top-k", "1024")
    assert_one_line(call(command, "demo", "--ids", "1,2", *wide, *ram), 3, "below the floor")
    (tmp_path / "long.txt").write_text("word " * 500_000, encoding="utf-8")
    assert_one_line(call(command, "demo", "--file", str(tmp_path / "long.txt"), *ram), 3, "below the floor")
    roomy = ("--ram", str(floor + (4 << 20)))
    result = call(command, "demo", "--file", str(tmp_path / "long.txt"), *roomy)
    assert_one_line(result, 2, "2,500,000 characters", "tokens or more", "context of 4096")


def _edit_index(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    names = index["weight_map"]
    names["model.extra.weight"] = names[next(iter(names))]
    (folder / INDEX).write_text(json.dumps(index))


def _edit_config(key: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        assert key in config
        (folder / "config.json").write_text(json.dumps(config | {key: value}))

    return edit


def _edit_shard(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / SHARD).write_bytes(change((folder / SHARD).read_bytes()))

    return edit


LFS_STUB = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
DAMAGES: dict[str, tuple[Callable[[Path], None], int, tuple[str, ...]]] = {
    "truncated shard": (_edit_shard(lambda data: data[:-1000]), 4, (SHARD,)),
    "shard too short for a header": (_edit_shard(lambda data: data[:5]), 4, (SHARD,)),
    "empty shard": (_edit_shard(lambda data: b""), 4, (SHARD,)),
    "missing shard": (lambda folder: (folder / SHARD).unlink(), 2, (SHARD,)),
    "absurd header length": (_edit_shard(lambda data: b"\xff" * 7 + b"\x7f" + data[8:]), 4, (SHARD,)),
    "LFS stub": (_edit_shard(lambda data: LFS_STUB), 4, (SHARD, "LFS")),
    "index against headers": (_edit_index, 4, ("model.extra.weight",)),
    "contradictory config": (_edit_config("num_experts_per_token", 1000), 2, ("num_experts_per_token", "1000")),
    "config against tensors": (_edit_config("hidden_size", 72), 2, ("72",)),
    "config that is no JSON": (lambda folder: (folder / "config.json").write_text("{"), 4, ("config.json",)),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("command", [["run", "--ids", "1"], ["info"]], ids=lambda command: command[0])
def test_damaged_model_is_refused_in_one_line(name: str, command: list[str], tmp_path: Path, call: Call) -> None:
    damage, code, words = DAMAGES[name]
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    damage(model)
    assert_one_line(call(command[0], str(model), *command[1:]), code, *words)


@pytest.mark.parametrize("kind", ["an empty folder", "a .gguf file", "a .safetensors file", "a folder of something"])
def test_what_is_no_model_is_refused_in_one_line(kind: str, tmp_path: Path, call: Call) -> None:
    path = tmp_path / "model"
    if "folder" in kind:
        path.mkdir()
        if "something" in kind:
            (path / "notes.txt").write_text("x")
    else:
        path = tmp_path / f"model{kind.split()[1]}"
        path.write_bytes(b"GGUF\x03\0\0\0")
    assert_one_line(call("run", str(path), "x"), 2, str(path), "config.json")


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    _edit_shard(lambda data: data[:-1000])(tmp_path / "model")
    processes = {
        2: start("run", "nowhere", "x"),
        3: start("run", "demo", "x", "--ram", "1MiB"),
        4: start("run", str(tmp_path / "model"), "--ids", "1"),
    }
    for code, process in processes.items():
        assert_one_line(finish(process), code)


def test_unexpected_error_is_one_line_that_names_the_way_to_more(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("gone\nwrong")

    monkeypatch.setattr("waste.presets.preset_names", fail)
    assert_one_line(call("presets"), 1, "RuntimeError: gone wrong", "WASTE_DEBUG=1")
    monkeypatch.setenv("WASTE_DEBUG", "1")
    result = call("presets")
    assert result.code == 1
    assert "Traceback" in result.err

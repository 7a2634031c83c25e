"""Containers: the numbers of an exact dequantization, the same bits whatever may not matter, no answer from damage."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import GOLDEN, STREAMING, all_logits, assert_same_bits, logits_in_chunks, open_model
from tests.io.containers import (
    CONTAINERS,
    another,
    copy_container,
    lossless,
    mutate,
    overwrite,
    read_manifest_json,
)
from waste.errors import DamagedError, WasteError
from waste.model.scratch import FloatArray

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TOLERANCE = {"tiny-k3-vq4p.waste": 1e-4}
IDS = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 264, 33, 83, 27, 95]


def golden_of(name: str) -> dict[str, Any]:
    with np.load(GOLDEN / name / "golden.npz") as data:
        return {key: data[key] for key in data.files}


async def logits_of(path: Path, ids: list[int], **settings: object) -> FloatArray:
    async with open_model(path, **settings) as engine:
        return await all_logits(engine, ids)


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("name", CONTAINERS)
async def test_numbers(name: str, kernels: str) -> None:
    golden = golden_of(name)
    async with open_model(GOLDEN / name, verify=True, **{"compute.kernels": kernels}) as engine:
        logits = await all_logits(engine, golden["ids"].tolist())
        error = np.linalg.norm(logits - golden["logits"], axis=1) / np.linalg.norm(golden["logits"], axis=1)
        assert error.max() <= TOLERANCE.get(name, 2e-5)
        count = len(golden["greedy"])
        assert [token.id async for token in engine.generate(golden["ids"].tolist(), max_tokens=count)] == (
            golden["greedy"].tolist()
        )


@pytest.mark.parametrize("name", [*CONTAINERS, "another", "lossless"])
async def test_identity(name: str, tmp_path: Path) -> None:
    make = {"another": another, "lossless": lambda folder: lossless(GOLDEN / "tiny-k3", folder)}
    path = make[name](tmp_path / "model.waste") if name in make else GOLDEN / name
    whole = await logits_of(path, IDS)
    assert np.isfinite(whole).all()
    async with open_model(path, **STREAMING, **{"compute.threads": 3}) as engine:
        assert engine.plan.pinned_tiles == 0
        for chunk in (1, 4, 15):
            assert_same_bits(await logits_in_chunks(engine, IDS, chunk), whole)
    # What no golden numbers exist for, the numpy kernels vouch for.
    plain = await logits_of(path, IDS, **{"compute.kernels": "numpy"})
    assert np.abs(whole - plain).max() <= 1e-4 * np.abs(plain).max()


async def test_lossless_containers_have_the_bits_of_their_checkpoint(tmp_path: Path) -> None:
    path = lossless(GOLDEN / "tiny-k3", tmp_path / "model.waste")
    assert_same_bits(await logits_of(path, IDS, verify=True), await logits_of(GOLDEN / "tiny-k3", IDS))


async def test_every_byte_is_read_through_the_scheduler() -> None:
    name = "nano-k3.waste"
    async with open_model(GOLDEN / name, **STREAMING) as engine:
        await all_logits(engine, IDS)
        read = engine.stats().bytes_read
        codebooks = (GOLDEN / name / "codebooks.bin").stat().st_size
        assert codebooks <= read["other"] <= codebooks + 6 * 2 * 4096
        assert engine.plan.parts["codebooks"] >= 2 * codebooks - 6 * 9 * 16 * 2
        assert read["experts"] % (28 * 1024) == 0  # one record, one read
        assert read["trunk"] > (GOLDEN / name / "trunk.bin").stat().st_size * 0.9


def used_record(folder: Path, layer: int) -> tuple[Path, int]:
    """The file of a layer's records, and the size of one."""
    entry = read_manifest_json(folder)["layers"][str(layer)]
    return folder / entry["file"], entry["bytes"] // entry["experts"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path, begin: overwrite(path, begin, b"\0"), "magic"),
        (lambda path, begin: overwrite(path, begin + 4, b"\x09"), "layer is 9, expected 2"),
        (lambda path, begin: overwrite(path, begin + 20, b"\x31"), "gate offset is 49, expected 48"),
        (lambda path, begin: overwrite(path, begin + 27696, b"\0\x7c"), "scale 0 of w1 is infinite or NaN"),
        (lambda path, begin: overwrite(path, begin + 27697 + 2 * 300, b"\xff"), "scale 44 of w2 is infinite or NaN"),
    ],
)
async def test_damaged_records_are_named(damage: Callable[[Path, int], None], says: str, tmp_path: Path) -> None:
    folder = copy_container("nano-k3.waste", tmp_path)
    path, size = used_record(folder, 2)
    for expert in range(16):
        damage(path, expert * size)
    async with open_model(folder) as engine:
        with pytest.raises(DamagedError, match=rf"layer 2, expert \d+: .*{says}"):
            await all_logits(engine, IDS)


async def test_payloads_are_verified_on_request(tmp_path: Path) -> None:
    folder = copy_container("nano-k3.waste", tmp_path)
    path, size = used_record(folder, 5)
    for expert in range(16):
        overwrite(path, expert * size + 5000, b"\x55\xaa\x55")
    assert np.isfinite(await logits_of(folder, IDS)).all()
    async with open_model(folder, verify=True) as engine:
        with pytest.raises(DamagedError, match=r"layer 5, expert \d+: the record's bytes have the checksum"):
            await all_logits(engine, IDS)


@pytest.mark.parametrize(
    ("at", "data", "says"),
    [
        (9 * 4112, b"\0", "codebook 9: magic"),
        (10 * 4112 + 4, b"\x0b", "codebook 10: .*expected"),
        (11 * 4112 + 7, b"\4", "codebook 11"),
        (12 * 4112 + 8, b"\xff", "codebook 12"),
        (13 * 4112 + 17, b"\x7c", "codebook 13 holds infinities or NaN"),
    ],
)
async def test_damaged_codebooks_are_named(at: int, data: bytes, says: str, tmp_path: Path) -> None:
    folder = copy_container("nano-k3.waste", tmp_path)
    overwrite(folder / "codebooks.bin", at, data)
    with pytest.raises(DamagedError, match=rf"layer 2: codebooks\.bin at .*{says}"):
        async with open_model(folder):
            pass


async def test_a_mutated_index_is_refused_or_makes_no_difference(tmp_path: Path) -> None:
    """All of the manifest but the model's config, which only says what model it is."""
    folder = copy_container("nano-kl.waste", tmp_path)
    expected = await logits_of(folder, IDS[:5])
    manifest = read_manifest_json(folder)
    index = {key: value for key, value in manifest.items() if key != "config"}
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(60):
        mutated = copy.deepcopy(index)
        mutate(mutated, rng)
        if isinstance(mutated.get("expert_quant"), dict):
            # Of the two orders that indices may have, nothing else in a container depends on which it is.
            mutated["expert_quant"]["index_block"] = 64
        (folder / "manifest.json").write_text(json.dumps({**mutated, "config": manifest["config"]}))
        try:
            assert_same_bits(await logits_of(folder, IDS[:5]), expected)
        except WasteError:
            refused += 1
    assert 20 < refused < 60


async def test_mutated_headers_are_refused_or_make_no_difference(tmp_path: Path) -> None:
    folder = copy_container("nano-kl.waste", tmp_path)
    expected = await logits_of(folder, IDS[:5])
    path, size = used_record(folder, 1)
    whole = path.read_bytes()
    rng = np.random.default_rng(4)
    refusals: list[str] = []
    for _ in range(40):
        at, flip = int(rng.integers(48)), 1 << int(rng.integers(8))
        damaged = bytearray(whole)
        for expert in range(16):
            damaged[expert * size + at] ^= flip
        path.write_bytes(damaged)
        try:
            assert_same_bits(await logits_of(folder, IDS[:5]), expected)
        except DamagedError as error:
            refusals.append(str(error))
    assert 20 < len(refusals) < 40
    assert all(text.startswith("layer 1, expert ") for text in refusals)

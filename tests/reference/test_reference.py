"""The reference model against numbers that were computed elsewhere, in float64 on the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.reference.loader import E2M1, Weights, decode_bf16, decode_mxfp4
from tests.reference.model import Output, ReferenceModel

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
DEMO = ROOT / "waste" / "demo"
NAMES = ("tiny-k3", "tiny-kimi-linear", "tiny-groups")


@pytest.fixture(scope="module")
def models() -> dict[str, ReferenceModel]:
    return {name: ReferenceModel(Weights(GOLDEN / name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_golden_numbers(models: dict[str, ReferenceModel], name: str) -> None:
    with np.load(GOLDEN / name / "golden.npz") as stored:
        golden = dict(stored)
    output = models[name](golden["ids"])
    # The stored numbers are rounded to float32, half an ulp of which is 6e-8 of the value.
    np.testing.assert_allclose(output.logits, golden["logits"], rtol=6e-8, atol=1e-9)
    np.testing.assert_allclose(output.hidden, golden["hidden"], rtol=6e-8, atol=1e-9)
    np.testing.assert_allclose(output.topk_weights, golden["topk_weights"], rtol=6e-8, atol=1e-9)
    np.testing.assert_array_equal(output.topk_ids, golden["topk_ids"])


@pytest.mark.parametrize("name", NAMES)
def test_golden_continuation(models: dict[str, ReferenceModel], name: str) -> None:
    with np.load(GOLDEN / name / "golden.npz") as golden:
        ids, greedy = golden["ids"].tolist(), golden["greedy"].tolist()
    assert continuation(models[name](ids + greedy), len(ids)) == greedy


@pytest.mark.parametrize("prompt", ["genesis", "bug", "pass"])
def test_demo_model(prompt: str) -> None:
    with np.load(DEMO / "golden.npz") as golden:
        ids, logits, greedy = (golden[f"{prompt}_{part}"] for part in ("ids", "logits", "greedy"))
    output = ReferenceModel(Weights(DEMO))([*ids.tolist(), *greedy.tolist()])
    np.testing.assert_allclose(output.logits[: len(ids)], logits, rtol=6e-8, atol=1e-8)
    assert continuation(output, len(ids)) == greedy.tolist()


def continuation(output: Output, prompt: int) -> list[int]:
    """The greedy choice after the prompt and after each token of a continuation that was fed along with it.

    It is the continuation itself exactly if that is greedy, since no row depends on later tokens.
    """
    chosen: list[int] = output.logits[prompt - 1 : -1].argmax(axis=-1).tolist()
    return chosen


def test_no_row_depends_on_later_tokens(models: dict[str, ReferenceModel]) -> None:
    ids = [5, 9, 200, 17, 31, 8, 120]
    whole = models["tiny-k3"](ids)
    np.testing.assert_allclose(models["tiny-k3"](ids[:4]).logits, whole.logits[:4], rtol=1e-12, atol=1e-12)


def test_softmax_router() -> None:
    """No golden model has it: without bias and groups it is the softmax's own top-k, renormalized."""
    model = ReferenceModel(Weights(GOLDEN / "tiny-groups"))
    model.c |= {"moe_router_activation_func": "softmax", "num_expert_group": 1, "topk_group": 1}
    name = "layers.1.block_sparse_moe.gate"
    x = np.random.default_rng(0).normal(size=(6, model.c["hidden_size"]))
    ids, weights = model.route(name, x)
    odds = np.exp(x @ model.w[name].T)
    chosen = odds / odds.sum(axis=-1, keepdims=True) + model.w[f"{name}.e_score_correction_bias"]
    for t in range(6):
        assert set(ids[t]) == set(np.argsort(-chosen[t])[:4])
        expected = odds[t, ids[t]] / odds[t, ids[t]].sum() * 2.446
        np.testing.assert_allclose(weights[t], expected)


def test_every_code_and_scale_of_mxfp4() -> None:
    packed = np.tile(np.arange(16, dtype=np.uint8) + 16 * np.arange(15, -1, -1, dtype=np.uint8), (255, 1))
    scale = np.arange(255, dtype=np.uint8)[:, None]
    decoded = decode_mxfp4(packed, scale)
    assert decoded.shape == (255, 32)
    for e in (0, 1, 126, 127, 128, 254):
        assert decoded[e, ::2].tolist() == [value * 2.0 ** (e - 127) for value in E2M1]
        assert decoded[e, 1::2].tolist() == [value * 2.0 ** (e - 127) for value in E2M1[::-1]]


def test_bfloat16() -> None:
    bits = np.array([0x0000, 0x3F80, 0xC000, 0x3EAB, 0x0001], dtype=np.uint16)
    assert decode_bf16(bits).tolist() == [0.0, 1.0, -2.0, 0.333984375, 2.0**-133]

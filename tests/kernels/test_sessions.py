"""Rule 1 over time: a prompt in chunks, in one piece or token by token leaves the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from waste.kernels.kernel_set import Kernel

from .cases import normal, scan_inputs

TOKENS = 11
CHUNKINGS = [[TOKENS], [1] * TOKENS, [3, 8], [1, 1, 6, 1, 2], [5, 1, 1, 1, 3]]


def ranges(chunks: list[int]) -> list[tuple[int, int]]:
    ends = np.cumsum(chunks).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("chunks", CHUNKINGS, ids=str)
def test_scan(chunks: list[int], compiled: dict[str, Kernel]) -> None:
    """One-token steps only read the state and owe their update to the next step; chunks write theirs."""
    rng = np.random.default_rng(5)
    a = scan_inputs(rng, TOKENS)
    qkv, decay, beta = a["qkv"], a["decay"], a["beta"]
    heads, channels = a["state"].shape[0], decay.shape[1]

    def scan(state: np.ndarray, after: np.ndarray, owed: np.ndarray | None, begin: int, end: int, write: int) -> None:
        carried = np.empty(3 * channels + heads, np.float32) if owed is None else owed
        arguments = (state, after, carried, owed is not None, qkv, decay, beta, begin, end, write)
        for first, last in ((0, 1), (1, heads)):
            compiled["scan"](*arguments, first, last, out)

    out = np.empty_like(a["out"])
    final = np.empty_like(a["state"])
    scan(a["state"].copy(), final, None, 0, TOKENS, 1)
    expected = out.tobytes()

    out = np.full_like(a["out"], np.nan)
    state, owed = a["state"].copy(), None
    for begin, end in ranges(chunks):
        after = np.full_like(state, np.nan)
        if end - begin == 1:
            scan(state, after, owed, begin, end, 0)
            assert np.isnan(after).all()
            owed = np.concatenate([qkv[begin, channels:], decay[begin], beta[begin]])
        else:
            scan(state, after, owed, begin, end, 1)
            state, owed = after, None
    if owed is not None:
        scan(state, state, owed, 0, 0, 0)
    assert out.tobytes() == expected
    assert state.tobytes() == final.tobytes()


def test_scan_without_owed_update_leaves_the_state(compiled: dict[str, Kernel]) -> None:
    a = scan_inputs(np.random.default_rng(6), 3)
    before, after = a["state"].copy(), np.empty_like(a["state"])
    tail = (a["qkv"], a["decay"], a["beta"], 0, 3, 1, 0, 3, a["out"])
    compiled["scan"](a["state"], after, a["owed"], 0, *tail)
    assert a["state"].tobytes() == before.tobytes()


@pytest.mark.parametrize("chunks", CHUNKINGS, ids=str)
def test_short_convolution(chunks: list[int], compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(7)
    x, taps, past = normal(rng, TOKENS, 48), normal(rng, 4, 48), normal(rng, 3, 48)
    whole, pieces = np.empty_like(x), np.empty_like(x)
    compiled["short_convolution"](x, past, taps, 0, TOKENS, 0, 48, whole)
    for begin, end in ranges(chunks):
        compiled["short_convolution"](x, past, taps, begin, end, 0, 16, pieces)
        compiled["short_convolution"](x, past, taps, begin, end, 16, 48, pieces)
        past = np.concatenate([past, x[begin:end]])[-3:]
    assert pieces.tobytes() == whole.tobytes()


@pytest.mark.parametrize("start", [0, 1, 50, 60, 63, 64, 65, 120, 200])
def test_attend(start: int, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(8)
    cache, query = normal(rng, start + TOKENS, 40), normal(rng, TOKENS, 40, scale=2)
    whole, pieces = np.empty((TOKENS, 32), np.float32), np.empty((TOKENS, 32), np.float32)
    compiled["attend"](cache, start, query, 0.2, 0, TOKENS, whole)
    for begin, end in ranges([1, 1, 6, 1, 2]):
        # Rows after the token's own hold nothing yet.
        known = np.concatenate([cache[: start + end], np.full((5, 40), np.nan, np.float32)])
        compiled["attend"](known, start + begin, query, 0.2, begin, end, pieces)
    assert pieces.tobytes() == whole.tobytes()


def test_attend_far_scores(compiled: dict[str, Kernel]) -> None:
    """A later block raises the maximum so far that all before it vanishes, or adds nothing itself."""
    cache, query = np.zeros((130, 16), np.float32), np.ones((1, 16), np.float32)
    cache[:, 8] = np.arange(130) // 64 * 300.0
    cache[:, 0] = np.arange(130)
    query[0, :8] = 0
    out = np.empty((1, 8), np.float32)
    compiled["attend"](cache, 129, query, 1.0, 0, 1, out)
    assert out[0, 0] == 128.5
    query[0, 8] = -1
    compiled["attend"](cache, 129, query, 1.0, 0, 1, out)
    assert out[0, 0] == 31.5


@pytest.mark.parametrize("cut", range(6))
def test_token_ranges_may_be_split_anywhere(cut: int, compiled: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(9)
    x, weight, stream, query = normal(rng, 5, 40), normal(rng, 40), normal(rng, 4, 5, 40), normal(rng, 40)
    for kernel, arguments in (
        ("rms_norm", (x, 0, 40, weight, 1e-5)),
        ("mix_residuals", (stream, 4, weight, query, 1e-5)),
    ):
        whole, split = np.empty_like(x), np.empty_like(x)
        compiled[kernel](*arguments, whole, 0, 5)
        compiled[kernel](*arguments, split, 0, cut)
        compiled[kernel](*arguments, split, cut, 5)
        assert split.tobytes() == whole.tobytes()

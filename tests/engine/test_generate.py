"""`generate`: what it yields, what ends it, and that a session goes on from wherever it was left."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import STREAMING, all_logits, assert_idle, load_golden, open_model
from waste.engine import Engine
from waste.errors import ContextLengthError, InputError, UnsupportedError
from waste.generate import Token
from waste.model.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("leaves_nothing")

IDS = load_golden("tiny-k3").ids
TEXT = "In the beginning"


@pytest.fixture
async def tiny() -> AsyncIterator[Engine]:
    """tiny-k3: ids only. A context of 32."""
    async with open_model("tiny-k3", context=32) as engine:
        yield engine
        await assert_idle(engine)


@pytest.fixture
async def demo() -> AsyncIterator[Engine]:
    async with open_model("demo") as engine:
        yield engine
        await assert_idle(engine)


async def collect(engine: Engine, prompt: str | Sequence[int], **options: Any) -> list[Token]:
    return [token async for token in engine.generate(prompt, **options)]


def text_of(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens)


def ids_of(tokens: Sequence[Token]) -> list[int]:
    return [token.id for token in tokens]


class TestEnds:
    async def test_length(self, tiny: Engine) -> None:
        for count in (1, 4):
            tokens = await collect(tiny, IDS[:5], max_tokens=count)
            assert [token.finish_reason for token in tokens] == [None] * (count - 1) + ["length"]
            stats = tokens[-1].stats
            assert stats is not None
            assert (stats.prompt_tokens, stats.generated_tokens) == (5, count)
            assert all(token.stats is None for token in tokens[:-1])

    async def test_context(self, tiny: Engine) -> None:
        tokens = await collect(tiny, IDS[:25])
        # 25 of 32 positions are the prompt's; the last token needs none of its own.
        assert [token.finish_reason for token in tokens] == [None] * 7 + ["context"]

    async def test_prompt_of_the_whole_context(self, tiny: Engine) -> None:
        async with tiny.session() as session:
            tokens = await collect(tiny, IDS[:32], session=session)
            assert [token.finish_reason for token in tokens] == ["context"]
            assert session.length == session.context == 32
            with pytest.raises(ContextLengthError, match="after 32 do not fit a context of 32"):
                await collect(tiny, [1], session=session)
        logits = await all_logits(tiny, IDS[:32])
        assert tokens[0].id == int(np.argmax(logits[-1]))

    async def test_end_id(self, tiny: Engine) -> None:
        """Any id may be the end: the one that comes third ends the text there."""
        free = ids_of(await collect(tiny, IDS[:5], max_tokens=6))
        end = next(token for token in free if free.index(token) == 2)
        object.__setattr__(tiny.model, "end_ids", frozenset({end}))
        tokens = await collect(tiny, IDS[:5], max_tokens=6)
        assert ids_of(tokens) == free[:3]
        assert tokens[-1].finish_reason == "end"

    async def test_stop_across_tokens(self, demo: Engine) -> None:
        free = await collect(demo, TEXT, max_tokens=14)
        whole = text_of(free)
        # From the middle of one token to the middle of a later one.
        starts = np.cumsum([len(token.text) for token in free])
        cut = int(starts[7]) + 1
        stop = whole[cut : int(starts[9]) + 2]
        assert len(stop) > 3
        assert whole.index(stop) == cut
        tokens = await collect(demo, TEXT, max_tokens=14, stop=["no such text", stop])
        assert text_of(tokens) == whole[:cut]
        assert tokens[-1].finish_reason == "stop"
        assert len(tokens) < len(free)

    async def test_held_back_text_comes_in_the_end(self, demo: Engine) -> None:
        free = await collect(demo, TEXT, max_tokens=8)
        beginning = text_of(free)[-3:]
        tokens = await collect(demo, TEXT, max_tokens=8, stop=[beginning + "\x00"])
        assert text_of(tokens) == text_of(free)
        assert tokens[-1].finish_reason == "length"


class TestText:
    async def test_whole_characters_only(self, demo: Engine) -> None:
        """At a high temperature tokens are odd bytes; what is shown adds up to all of them decoded at once."""
        tokenizer = demo.model.tokenizer
        assert tokenizer is not None
        incomplete = 0
        samplings = [SamplingParams(temperature=1000.0, seed=seed) for seed in range(4)]
        texts = await asyncio.gather(*(collect(demo, TEXT, sampling=s, max_tokens=24) for s in samplings))
        for tokens in texts:
            data = b"".join(tokenizer.token_bytes(token.id) for token in tokens if token.finish_reason != "end")
            assert text_of(tokens) == data.decode("utf-8", "replace")
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for token in tokens[:-1]:
                assert token.text == decoder.decode(tokenizer.token_bytes(token.id))
                incomplete += bool(decoder.getstate()[0])
        assert incomplete

    async def test_text_and_ids_are_the_same_prompt(self, demo: Engine) -> None:
        ids = demo.encode(TEXT)
        assert ids[0] == demo.model.config.bos_token_id
        for prompt in (ids, tuple(ids), np.array(ids), list(np.array(ids))):
            assert await collect_ids(demo, prompt) == await collect_ids(demo, TEXT)

    async def test_only_the_first_prompt_gets_a_bos(self, demo: Engine) -> None:
        bos = demo.model.config.bos_token_id
        assert bos is not None
        async with demo.session() as session:
            await collect(demo, TEXT, session=session, max_tokens=2)
            await collect(demo, " and", session=session, max_tokens=1)
            assert list(session.ids).count(bos) == 1
            assert session.ids[0] == bos


async def collect_ids(engine: Engine, prompt: Any) -> list[int]:
    return ids_of(await collect(engine, prompt, max_tokens=4))


class TestSampling:
    async def test_seeds(self, tiny: Engine) -> None:
        async def draw(seed: int | None) -> list[int]:
            sampling = SamplingParams(temperature=1.5, top_k=100, top_p=0.95, seed=seed)
            return ids_of(await collect(tiny, IDS[:5], sampling=sampling, max_tokens=6))

        assert await draw(1) == await draw(1)
        assert await draw(1) != await draw(2)
        assert await draw(None) != await draw(None)

    async def test_logprobs(self, tiny: Engine) -> None:
        sampling = SamplingParams(temperature=2.0, seed=5, logprobs=7)
        tokens = await collect(tiny, IDS[:5], sampling=sampling, max_tokens=6)
        logits = (await all_logits(tiny, IDS[:5] + ids_of(tokens)[:-1]))[4:].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        for token, row in zip(tokens, logprobs, strict=True):
            assert token.logprob == pytest.approx(row[token.id], abs=1e-5)
            best = np.argsort(-row, kind="stable")[:7]
            assert [alternative for alternative, _ in token.alternatives] == best.tolist()
            assert [logprob for _, logprob in token.alternatives] == pytest.approx(row[best], abs=1e-5)


class TestContinuing:
    @pytest.mark.parametrize("cut", [1, 3])
    async def test_two_calls_are_one(self, tiny: Engine, cut: int) -> None:
        """The token that was generated last and not fed back goes before the next prompt."""
        whole = await collect(tiny, IDS[:5], max_tokens=8)
        async with tiny.session() as session:
            first = await collect(tiny, IDS[:5], session=session, max_tokens=cut)
            assert session.length == 5 + cut - 1
            assert session.pending == [first[-1].id]
            second = await collect(tiny, [], session=session, max_tokens=8 - cut)
            assert list(session.ids) == IDS[:5] + ids_of(whole)[:-1]
        assert ids_of(first + second) == ids_of(whole)
        assert [t.logprob for t in first + second] == [t.logprob for t in whole]

    async def test_next_prompt(self, tiny: Engine) -> None:
        async with tiny.session() as session:
            first = await collect(tiny, IDS[:5], session=session, max_tokens=3)
            second = await collect(tiny, IDS[5:9], session=session, max_tokens=3)
        history = IDS[:5] + ids_of(first) + IDS[5:9]
        assert ids_of(second) == ids_of(await collect(tiny, history, max_tokens=3))

    async def test_broken_off(self, tiny: Engine) -> None:
        whole = ids_of(await collect(tiny, IDS[:5], max_tokens=6))
        async with tiny.session() as session:
            found = []
            async for token in tiny.generate(IDS[:5], session=session):
                found.append(token.id)
                if len(found) == 2:
                    break
            found += ids_of(await collect(tiny, [], session=session, max_tokens=4))
        assert found == whole

    @pytest.mark.parametrize("chunk", [1, 5, 7])
    async def test_prompt_in_chunks(self, tiny: Engine, chunk: int) -> None:
        whole = await collect(tiny, IDS[:15], max_tokens=3)
        async with open_model("tiny-k3", **STREAMING, **{"prefill.chunk": chunk}) as engine:
            parts = await collect(engine, IDS[:15], max_tokens=3)
        assert [(token.id, token.logprob) for token in parts] == [(token.id, token.logprob) for token in whole]

    async def test_prompt_progress(self, tiny: Engine) -> None:
        async with open_model("tiny-k3", **{"prefill.chunk": 4}) as engine:
            seen: list[tuple[int, int]] = []
            await collect(engine, IDS[:10], max_tokens=2, progress=lambda done, total: seen.append((done, total)))
        assert seen == sorted(seen)
        assert {(4, 10), (8, 10), (10, 10)} <= set(seen)
        assert len(set(seen)) > 3  # layers count as parts of a chunk


class TestBadRequests:
    @pytest.mark.parametrize(
        ("prompt", "options", "error", "message"),
        [
            ([], {}, InputError, "the prompt is empty"),
            ([1, 320], {}, InputError, "id 320 at position 1 is out of range, expected 0 to 319"),
            ([-1], {}, InputError, "id -1 at position 0"),
            ([True], {}, InputError, "id True"),
            ([1.0], {}, InputError, "id 1.0"),
            (["a"], {}, InputError, "id 'a'"),
            (None, {}, InputError, "text or a list of ids, not NoneType"),
            (7, {}, InputError, "not int"),
            (b"ab", {}, InputError, "not bytes"),
            ("text", {}, InputError, "has no tokenizer"),
            ([{"role": "user"}], {}, UnsupportedError, "messages"),
            (IDS[:33], {}, ContextLengthError, "33 tokens after 0 do not fit a context of 32"),
            ([1], {"max_tokens": 0}, InputError, "max_tokens is 0"),
            ([1], {"max_tokens": "5"}, InputError, "max_tokens is '5'"),
            ([1], {"max_tokens": True}, InputError, "max_tokens is True"),
            ([1], {"stop": "end"}, InputError, "stop is 'end'"),
            ([1], {"stop": [""]}, InputError, "stop is"),
        ],
        ids=str,
    )
    async def test_refused_and_usable(
        self, tiny: Engine, prompt: Any, options: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        expected = ids_of(await collect(tiny, IDS[:5], max_tokens=4))
        with pytest.raises(error, match=message):
            await collect(tiny, prompt, **options)
        assert tiny.stats().sessions_open == 0
        async with tiny.session() as session:
            found = ids_of(await collect(tiny, IDS[:5], session=session, max_tokens=2))
            if prompt != []:  # which asks for what is pending
                with pytest.raises(error):
                    await collect(tiny, prompt, session=session, **options)
            assert found + ids_of(await collect(tiny, [], session=session, max_tokens=2)) == expected

    async def test_logits(self, tiny: Engine) -> None:
        for ids, error in [([], InputError), ([999], InputError), (IDS[:33], ContextLengthError), ("a", InputError)]:
            with pytest.raises(error):
                tiny.logits(ids)  # type: ignore[arg-type]
        assert tiny.stats().sessions_open == 0
        assert len(await all_logits(tiny, IDS[:32])) == 32

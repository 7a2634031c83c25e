"""What `run` shows of a generation: text as it comes and a summary, or all of it as one JSON object."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

from waste.cli.output import format_table, print_json, quote, summarize, write_text

if TYPE_CHECKING:
    from waste.engine import Engine
    from waste.generate import Token


class Transcript:
    """Of one call of `generate`. `begin` it when the engine is open; `finish` counts once.

    Interrupted, it is finished at once, before the engine closes, so that what there is is kept whatever happens next.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._engine: Engine | None = None
        self._prompt_ids: list[int] = []
        self._tokens: list[Token] = []
        self._texts: list[str] = []
        self._is_finished = False

    def begin(self, engine: Engine, prompt_ids: list[int]) -> None:
        self._engine = engine
        self._prompt_ids = prompt_ids
        self._began = self._prompted = self._latest = perf_counter()

    def add(self, token: Token) -> None:
        """Show what a token lets out."""
        self._latest = perf_counter()
        if not self._tokens:
            self._prompted = self._latest
        text = self._shown(token)
        self._tokens.append(token)
        self._texts.append(text)
        if not self._as_json:
            write_text(text)

    def interrupt(self) -> None:
        self.finish("interrupted")

    def break_off(self) -> None:
        """An error is to follow: let it begin a line of its own."""
        self._is_finished = True
        if self._tokens and not self._as_json:
            write_text("\n")

    def finish(self, reason: str | None = None) -> None:
        """End the text and sum up. reason: why it ended, where the last token does not say."""
        if self._is_finished or self._engine is None:
            return
        self._is_finished = True
        if self._as_json:
            print_json(self._as_object(self._engine, reason))
            return
        write_text("\n")
        if any(token.alternatives for token in self._tokens):
            print(format_table(self._alternatives()), end="", file=sys.stderr)
        print(
            f"{self._progress()} | prompt {len(self._prompt_ids)} tokens, "
            f"{'' if self._tokens else 'not done in '}{self._prompt_s:.2f} s | {summarize(self._engine.stats())}",
            file=sys.stderr,
        )

    def _progress(self) -> str:
        """How many tokens there are, and how fast they came; of one that came with the prompt there is no rate."""
        count = len(self._tokens)
        if count > 1:
            return f"{count} tokens, {self._tokens_per_s:.2f} tok/s"
        return "1 token" if count else "0 tokens"

    @property
    def _prompt_s(self) -> float:
        """Until the first token; so far, if it never came."""
        return (self._prompted if self._tokens else perf_counter()) - self._began

    @property
    def _tokens_per_s(self) -> float:
        """Of decoding; the first token comes with the prompt."""
        elapsed = self._latest - self._prompted
        return (len(self._tokens) - 1) / elapsed if elapsed > 0 else 0.0

    def _shown(self, token: Token) -> str:
        """Its text, or its id where the model has no tokenizer: "3,17,5" over all tokens."""
        assert self._engine is not None
        if self._engine.model.tokenizer is not None:
            return token.text
        return f",{token.id}" if self._tokens else str(token.id)

    def _text_of(self, token_id: int) -> str:
        assert self._engine is not None
        tokenizer = self._engine.model.tokenizer
        return "" if tokenizer is None else tokenizer.decode([token_id])

    def _alternatives(self) -> list[list[str]]:
        """A line a token: what was chosen, then the likeliest with their log-probabilities."""
        lines = []
        for token in self._tokens:
            pairs = [(token.id, token.logprob), *token.alternatives]
            lines.append([f"{self._name(token_id)} {logprob:.3f}" for token_id, logprob in pairs])
        return lines

    def _name(self, token_id: int) -> str:
        return quote(self._text_of(token_id)) or str(token_id)

    def _as_object(self, engine: Engine, reason: str | None) -> dict[str, Any]:
        tokens = self._tokens
        value: dict[str, Any] = {
            "model": str(engine.model.path),
            "text": "".join(self._texts) if engine.model.tokenizer is not None else "",
            "ids": [token.id for token in tokens],
            "prompt_ids": self._prompt_ids,
            "finish_reason": (tokens[-1].finish_reason if tokens else None) or reason,
            "stats": {
                "prompt_tokens": len(self._prompt_ids),
                "generated_tokens": len(tokens),
                "prompt_s": self._prompt_s,
                "decode_s": self._latest - self._prompted,
                "tokens_per_s": self._tokens_per_s,
                **engine.stats().as_dict(),
            },
        }
        if any(token.alternatives for token in tokens):
            value["logprobs"] = [
                {
                    "id": token.id,
                    "text": self._text_of(token.id),
                    "logprob": token.logprob,
                    "top": [
                        {"id": token_id, "text": self._text_of(token_id), "logprob": logprob}
                        for token_id, logprob in token.alternatives
                    ],
                }
                for token in tokens
            ]
        return value

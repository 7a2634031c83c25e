"""Rule 10: the event loop never computes and never blocks. And asyncio's own loop is not the only one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import uvloop

import waste.opening
from tests.engine.harness import (
    STREAMING,
    all_logits,
    assert_clean,
    assert_idle,
    insides,
    load_golden,
    open_model,
)
from waste.kernels import KernelSet, load_kernels, prepare
from waste.kernels.kernel_set import FormatKernels
from waste.model.sampling import Sampler
from waste.model.tokenizer import Tokenizer

GOLDEN = load_golden("tiny-k3")


def watched(kernels: KernelSet, threads: set[threading.Thread]) -> KernelSet:
    """The same kernels, noting which threads call them."""

    def watch(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            threads.add(threading.current_thread())
            return kernel(*arguments)

        return call

    def all_of(of: Any) -> dict[str, Any]:
        values = {field.name: getattr(of, field.name) for field in fields(of)}
        return {name: watch(value) for name, value in values.items() if callable(value)}

    formats: dict[str, FormatKernels] = {
        name: replace(format_kernels, **all_of(format_kernels)) for name, format_kernels in kernels.formats.items()
    }
    return replace(kernels, formats=formats, **all_of(kernels))


async def test_computes_on_compute_threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            threads.add(threading.current_thread())
            return function(*arguments)

        return call

    monkeypatch.setattr(
        waste.opening, "prepare", lambda kernels, progress, **how: prepare(load_kernels(kernels.name), progress, **how)
    )
    monkeypatch.setattr(waste.opening, "load_kernels", lambda name: watched(load_kernels(name), threads))
    monkeypatch.setattr(Sampler, "choose", noting(Sampler.choose))
    monkeypatch.setattr(Tokenizer, "encode", noting(Tokenizer.encode))
    async with open_model("demo") as engine:
        tokens = [token.id async for token in engine.generate("In the beginning", max_tokens=3)]
    assert len(tokens) == 3
    assert {thread.name for thread in threads} <= {"waste-compute-0", "waste-compute-1"}
    assert threads


class Asked(Exception):  # noqa: N818
    """By the test."""


def scenario_generate() -> Any:
    async def main() -> None:
        async with open_model("tiny-k3", **STREAMING) as engine:
            found = [token.id async for token in engine.generate(GOLDEN.ids, max_tokens=3)]
            assert found == GOLDEN.greedy[:3]
            await assert_idle(engine)

    return main


def scenario_break_and_cancel() -> Any:
    async def main() -> None:
        async with open_model("tiny-k3", **STREAMING) as engine:
            async for _ in engine.generate(GOLDEN.ids):
                break
            for turns in (1, 20, 90):
                task = asyncio.ensure_future(all_logits(engine, GOLDEN.ids))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await assert_idle(engine)

    return main


def scenario_error() -> Any:
    async def main() -> None:
        with pytest.raises(Asked):  # noqa: PT012
            async with open_model("tiny-k3") as engine:
                async for _ in engine.generate(GOLDEN.ids):
                    raise Asked
        assert insides(engine).loop.steps

    return main


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("scenario", [scenario_generate, scenario_break_and_cancel, scenario_error])
def test_loops(new_loop: Callable[[], asyncio.AbstractEventLoop], scenario: Callable[[], Any]) -> None:
    """In debug mode; nothing may reach only the loop's handler, no task may be left."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(debug=True, loop_factory=new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.get_loop().slow_callback_duration = 10.0
        runner.run(scenario()())
        assert asyncio.all_tasks(runner.get_loop()) == set()
    assert unhandled == []
    assert_clean()

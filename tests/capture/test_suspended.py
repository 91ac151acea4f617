"""Compiled coroutine functions and generator functions: theirs what eager does, compiled what they call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of


def layer(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
    return torch.relu(x * k - 3).cumsum(-1)


X = torch.arange(6.0).reshape(2, 3)


def graphs(compiled: Any) -> int:
    log = log_of(compiled)
    assert log is not None
    return len(log.graphs)


async def fetch(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    log.append("start")
    y = layer(x)
    await asyncio.sleep(0)
    try:
        z = layer(y, 3.0)
        await asyncio.wait_for(asyncio.sleep(10 if x.sum() > 1000 else 0), 0.05)
    finally:
        log.append("end")
    return z


def test_a_coroutine_function_stays_one_and_what_it_calls_is_compiled() -> None:
    compiled = braze.compile(fetch, backend="eager")
    assert inspect.iscoroutinefunction(compiled) and compiled.__name__ == "fetch"
    want, got = [], []
    assert torch.equal(asyncio.run(compiled(X, got)), asyncio.run(fetch(X, want)))
    assert want == got and graphs(compiled) == 2
    breaks = log_of(compiled).breaks  # type: ignore[union-attr]
    assert "a coroutine" in breaks[0].reason and breaks[0].loc is not None and breaks[0].hint


def test_coroutines_that_take_turns() -> None:
    compiled = braze.compile(fetch, backend="eager")

    async def many(f: Any) -> Any:
        return await asyncio.gather(*(f(X * i, []) for i in range(4)))

    assert all(map(torch.equal, asyncio.run(many(compiled)), asyncio.run(many(fetch))))
    assert graphs(compiled) == 2


def test_a_coroutine_that_is_cancelled_or_fails() -> None:
    compiled = braze.compile(fetch, backend="eager")
    log: list[str] = []
    with pytest.raises(TimeoutError):
        asyncio.run(compiled(X + 1000, log))
    assert log == ["start", "end"]

    async def cancelled() -> list[str]:
        log: list[str] = []
        task = asyncio.ensure_future(compiled(X + 1000, log))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return log

    assert asyncio.run(cancelled()) == ["start", "end"]


def test_the_hook_is_off_while_a_coroutine_waits() -> None:
    seen = []

    def outside(x: torch.Tensor) -> torch.Tensor:
        seen.append(braze.is_compiling())
        return x.sin() + 1

    @braze.compile(backend="eager")
    async def waits(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return layer(x)

    async def both() -> None:
        task = asyncio.ensure_future(waits(X))
        await asyncio.sleep(0)
        outside(X)
        await task

    asyncio.run(both())
    assert graphs(waits) == 1 and seen == [False]


def produce(x: torch.Tensor, log: list[str]) -> Iterator[torch.Tensor]:
    try:
        for i in range(3):
            sent = yield layer(x, float(i))
            if sent is not None:
                x = x + sent
    except ValueError:
        yield x * 100
    finally:
        log.append("end")
    return "result"  # type: ignore[return-value]


def drive(f: Any) -> list[Any]:
    log: list[str] = []
    out: list[Any] = [*f(X, log)]
    g = f(X, log)
    out += [next(g), g.send(torch.ones(3)), g.throw(ValueError("stop"))]
    try:
        next(g)
    except StopIteration as stop:
        out.append(stop.value)
    for t in f(X, log):
        out.append(t)
        break
    log.append("after")
    return [*out, log]


def test_a_generator_function() -> None:
    compiled = braze.compile(produce, backend="eager")
    assert inspect.isgeneratorfunction(compiled)
    want, got = drive(produce), drive(compiled)
    assert len(want) == len(got)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(want, got))
    assert graphs(compiled) >= 1


async def stream(x: torch.Tensor, log: list[str]) -> AsyncIterator[torch.Tensor]:
    try:
        for i in range(3):
            await asyncio.sleep(0)
            yield layer(x, i + 1.5)
    finally:
        log.append("end")


async def consume(f: Any) -> list[Any]:
    log: list[str] = []
    out: list[Any] = [t async for t in f(X, log)]
    g = f(X, log)
    out.append(await g.__anext__())
    await g.aclose()
    return [*out, log]


def test_an_async_generator_function() -> None:
    compiled = braze.compile(stream, backend="eager")
    assert inspect.isasyncgenfunction(compiled)
    want, got = asyncio.run(consume(stream)), asyncio.run(consume(compiled))
    assert len(want) == len(got)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(want, got))


def test_fullgraph_refuses() -> None:
    with pytest.raises(braze.errors.Unsupported, match="a coroutine"):
        braze.compile(fetch, fullgraph=True)

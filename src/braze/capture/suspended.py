"""Coroutines and generators: run step by step with the frame hook on.

Calling one runs nothing of it; its code runs between one suspension and the next. The hook is on for each such step
and off while it is suspended, so that what it calls is compiled and what runs meanwhile is left alone. Its own code
stays Python.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Generator
from typing import Any

REASON = "{0}, whose own code runs in Python: the functions and modules that it calls are compiled"
HINT = "move what computes into a function or a module that it calls"


def suspends(function: Any) -> str:
    """What a function makes when it is called: "a coroutine", "a generator", "an async generator", "" for others."""
    if inspect.iscoroutinefunction(function):
        return "a coroutine"
    if inspect.isasyncgenfunction(function):
        return "an async generator"
    return "a generator" if inspect.isgeneratorfunction(function) else ""


def steps(call: Callable[..., Any], inner: Any) -> Generator[Any, Any, Any]:
    """A generator that does what ``inner`` (a coroutine or a generator) does, with ``call`` around each step of it."""
    step, given = inner.send, None
    while True:
        try:
            out = call(step, given)
        except StopIteration as stop:
            return stop.value
        try:
            step, given = inner.send, (yield out)
        except GeneratorExit:
            call(inner.close)
            raise
        except BaseException as e:
            step, given = inner.throw, e


def stepwise(fn: Callable[..., Any], target: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """``target`` (as ``fn`` presents itself) as a function of its kind, its steps run by ``call(step, value)``."""
    if inspect.iscoroutinefunction(target):
        awaited = types.coroutine(steps)

        @functools.wraps(fn)
        async def compiled(*args: Any, **kwargs: Any) -> Any:
            return await awaited(call, target(*args, **kwargs))

        return compiled
    if inspect.isasyncgenfunction(target):

        @functools.wraps(fn)
        async def compiled_generator(*args: Any, **kwargs: Any) -> Any:
            inner = target(*args, **kwargs)
            advance, given = inner.asend, None
            awaited = types.coroutine(steps)
            while True:
                try:
                    out = await awaited(call, _coroutine(advance, given))
                except StopAsyncIteration:
                    return
                try:
                    advance, given = inner.asend, (yield out)
                except GeneratorExit:
                    await awaited(call, _coroutine(lambda _: inner.aclose(), None))
                    raise
                except BaseException as e:
                    advance, given = inner.athrow, e

        return compiled_generator

    @functools.wraps(fn)
    def compiled_steps(*args: Any, **kwargs: Any) -> Any:
        return (yield from steps(call, target(*args, **kwargs)))

    return compiled_steps


async def _coroutine(advance: Callable[[Any], Any], given: Any) -> Any:
    return await advance(given)

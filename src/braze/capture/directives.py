"""What a program says to the compiler about its own functions: disable, allow_in_graph, graph_break, and so on.

The functions here are ordinary Python when nothing is compiled; capture knows them by identity or by the mark that they
leave in a function's ``__dict__``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from braze import _C  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])
DISABLED, ALLOWED, CONSTANT = "_braze_disabled", "_braze_allowed", "_braze_constant"
SKIP, QUIET = 1, 2  # what the hook does with a marked code object: leave the frame alone; that and all below it


def disable(fn: Any = None, *, recursive: bool = True) -> Any:
    """A function (or module) that braze leaves to Python, with everything that it calls. Also a decorator.

    ``recursive=False`` leaves only the function itself alone: what it calls is compiled where it can be; the function
    is marked and returned. A call inside compiled code is a graph break. A module is changed in place. TypeError for
    what is not callable.
    """
    if fn is None:
        return lambda f: disable(f, recursive=recursive)
    if isinstance(fn, nn.Module):
        fn.forward = disable(fn.forward, recursive=recursive)
        return fn
    if not callable(fn) or isinstance(fn, type):
        raise TypeError(f"braze.disable takes a function or a module, got {fn!r}")
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if not recursive and code is not None and not hasattr(fn, "__func__"):
        _C.skip(code, SKIP)
        fn.__dict__[DISABLED] = True
        return fn

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    _C.skip(disabled.__code__, QUIET if recursive else SKIP)  # type: ignore[attr-defined]
    disabled.__dict__[DISABLED] = True
    return disabled


def allow_in_graph(fn: Any) -> Any:
    """Make calls of a function single calls of the graph: its Python code is not interpreted. Also a decorator, and for
    a list of functions.

    The function must take and give tensors, numbers and containers of them, and compute with torch alone; it is run on
    tensors without data while compiling. TypeError for what is not a Python function.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(f) for f in fn]
    return _marked(fn, ALLOWED, "allow_in_graph")


def assume_constant(fn: F) -> F:
    """Promise that a function gives the same result whenever it gets the same arguments. Compiled code calls it once,
    while compiling, and keeps the result. The arguments must be known then. TypeError for what is not a function."""
    return _marked(fn, CONSTANT, "assume_constant")


def _marked(fn: F, mark: str, name: str) -> F:
    if not hasattr(fn, "__code__"):
        raise TypeError(f"braze.{name} takes a Python function, got {fn!r}")
    fn.__dict__[mark] = True
    return fn


def graph_break(reason: str = "") -> None:
    """End the graph here, and begin another one after it. Does nothing in eager code."""


def is_compiling() -> bool:
    """True while braze traces the calling code."""
    return False

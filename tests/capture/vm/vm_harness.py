"""Runs a function through ``capture_frame`` with the graph's interpreter as compiler, and compares with eager."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch

from braze.capture import Captured, Skip, capture_frame
from braze.capture.source import FrameValues
from braze.capture.vm.resume import Tail, is_continuation, resume
from braze.ir import Graph, interpret, load_python, verify


@dataclass
class Log:
    """What captures of one run gave: graphs, breaks, skipped frames, guard sets."""

    graphs: list[Graph] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    captured: list[Captured] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(len(g.calls) for g in self.graphs)


def slots_of(f: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The values of a function's argument slots for a call."""
    if is_continuation(f.__code__):
        return list(args)
    bound = inspect.signature(f, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    code = f.__code__
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return [bound.arguments[name] for name in code.co_varnames[:n]]


def compiled(f: FunctionType, log: Log, fullgraph: bool = False) -> Callable[..., Any]:
    """``f`` captured anew in each call; continuation functions after a break are captured as well."""

    def compile_graph(graph: Graph, types: Any, inputs: Any) -> Callable[..., Any]:
        verify(graph)
        run = load_python(graph)
        log.graphs.append(graph)
        assert [n.val for n in graph.inputs] == list(types)
        return lambda *tensors: interpret(graph, tensors) if len(log.graphs) % 2 else run(*tensors)

    def call(*args: Any, **kwargs: Any) -> Any:
        slots = slots_of(f, args, kwargs)
        out = capture_frame(f.__code__, f, slots, compile_graph=compile_graph, fullgraph=fullgraph)
        if isinstance(out, Skip):
            log.skips.append(out.reason)
            return f(*args, **kwargs)
        log.captured.append(out)
        log.breaks += [reason for reason, _ in out.breaks]
        frame = FrameValues(f, slots)
        assert out.guards.explain_failure(frame) is None
        reads = tuple(source.get(frame) for source in out.sources)
        new = FunctionType(_instrument(out.code, log), f.__globals__, f.__name__, None, f.__closure__)
        return new(*slots, reads)

    return call


def _instrument(code: CodeType, log: Log) -> CodeType:
    """Replacement code whose continuation functions are captured in turn."""

    def run(*call: Any) -> Any:
        function, *args = call
        out = compiled(function, log)(*args)
        while type(out) is Tail:
            function, *args = out
            out = compiled(function, log)(*args)
        return out

    return code.replace(co_consts=tuple(run if c is resume else c for c in code.co_consts))


def same(a: Any, b: Any, seen: set[int] | None = None) -> bool:
    """Deep equality, tensors by value and type, objects by class and ``__dict__``."""
    seen = set() if seen is None else seen
    if id(a) in seen:
        return True
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True)
            and (a.requires_grad == b.requires_grad)
        )
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return False
    if type(a) is not type(b):
        return False
    seen.add(id(a))
    if isinstance(a, torch.nn.Module):
        return same(vars(a), vars(b), seen)
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items())
        if len(a) != len(b) or not all(same(j, k, seen) and same(v, w, seen) for (j, v), (k, w) in pairs):
            return False
        return not hasattr(a, "__dict__") or same(vars(a), vars(b), seen)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, seen) for x, y in zip(a, b))
    if isinstance(a, BaseException):
        return same(a.args, b.args, seen)
    if isinstance(a, FunctionType):
        return a.__code__ is b.__code__
    if isinstance(a, type):
        return a is b
    slots = [s for c in type(a).__mro__ for s in c.__dict__.get("__slots__", ()) if isinstance(s, str)]
    if hasattr(a, "__dict__") or slots:
        missing = object()
        return same(getattr(a, "__dict__", 0), getattr(b, "__dict__", 0), seen) and all(
            same(getattr(a, s, missing), getattr(b, s, missing), seen) for s in slots
        )
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    return bool(a == b)


@dataclass
class Outcome:
    """A call's result or exception, what it printed, and the arguments afterwards."""

    result: Any
    error: BaseException | None
    printed: str
    args: Any


def outcome(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    torch.manual_seed(0)
    args, kwargs = copy.deepcopy((args, kwargs))
    out = io.StringIO()
    result, error = None, None
    with contextlib.redirect_stdout(out):
        try:
            result = f(*args, **kwargs)
        except Exception as e:
            error = e
    return Outcome(result, error, out.getvalue(), (args, kwargs))


def check(f: Callable[..., Any], *args: Any, breaks: int | None = 0, graphs: int | None = None, **kwargs: Any) -> Log:
    """The captured function does what eager does; ``breaks`` graph breaks and no skipped frame (None: do not count)."""
    log = Log()
    want = outcome(f, args, kwargs)
    got = outcome(compiled(f, log), args, kwargs)
    if got.error is not None and want.error is None:
        raise got.error
    assert type(got.error) is type(want.error), (got.error, want.error, log)
    if want.error is not None:
        assert str(got.error) == str(want.error)
    assert got.printed == want.printed
    assert same(got.result, want.result), (got.result, want.result)
    assert same(got.args, want.args), (got.args, want.args)
    if breaks is not None:
        assert len(log.breaks) == breaks and (breaks or not log.skips), (log.breaks, log.skips)
    if graphs is not None:
        assert len(log.graphs) == graphs
    return log

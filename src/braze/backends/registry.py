"""Backends by name: what turns a captured graph into a callable.

A backend follows torch.compile's convention, ``backend(gm: torch.fx.GraphModule, example_inputs) -> callable``. The
built-in ones take braze's own graph instead (a :class:`GraphBackend`) and skip fx.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from braze.config import Config
from braze.events import GraphRecord
from braze.ir import Graph, IntLike, TensorType, load_python

Compiled = Callable[..., Any]
Started = Callable[[], Compiled]  # waits for the compilers, and gives what is called
FxBackend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Compiled]


@dataclass(frozen=True)
class Request:
    """One graph to compile. ``inputs`` are the real tensors of the first call (for tuning and user backends); for an
    input that is a symbolic size, the type is its symbol and the input its value."""

    graph: Graph
    types: tuple[TensorType | IntLike, ...]
    inputs: Sequence[Any]
    config: Config
    record: GraphRecord


GraphBackend = Callable[[Request], Compiled]
GROUP = "braze.backends"  # the entry points of other packages' backends
_BUILT_IN: dict[str, GraphBackend] = {}
_REGISTERED: dict[str, FxBackend] = {}
_WHY_NOT: dict[str, Callable[[], str]] = {}  # built-in name -> why it cannot run here, "" if it can


def built_in(name: str, why_not: Callable[[], str] = lambda: "") -> Callable[[GraphBackend], GraphBackend]:
    """Register a built-in backend. ``why_not()`` says why it cannot run on this machine ("" if it can)."""

    def add(backend: GraphBackend) -> GraphBackend:
        _BUILT_IN[name] = backend
        _WHY_NOT[name] = why_not
        return backend

    return add


def register_backend(backend: FxBackend | None = None, name: str | None = None) -> Any:
    """Make ``backend`` available by name; also a decorator. ValueError if the name is taken by a built-in one."""
    if backend is None:
        return lambda f: register_backend(f, name)
    key = str(name or getattr(backend, "__name__", type(backend).__name__))
    if key in _BUILT_IN:
        raise ValueError(f"{key!r} is a built-in backend of braze; register yours under another name")
    _REGISTERED[key] = backend
    return backend


def list_backends() -> list[str]:
    """Names that ``compile(backend=…)`` accepts on this machine, built-in ones first."""
    return [name for name, reason in _known().items() if not reason]


def unavailable_backends() -> dict[str, str]:
    """Backends that exist but cannot run here, and why: a missing package, no CUDA, a version that does not fit."""
    return {name: reason for name, reason in _known().items() if reason}


def _known() -> dict[str, str]:
    out = {name: _WHY_NOT[name]() for name in sorted(_BUILT_IN)}
    for name in [*sorted(_REGISTERED), *sorted(e.name for e in entry_points(group=GROUP))]:
        out.setdefault(name, "")
    return out


def lookup(backend: str | FxBackend) -> GraphBackend:
    """The backend of a name, or a user's callable wrapped. ValueError says why a name is not available and lists what
    there is."""
    if isinstance(backend, str):
        return _by_name(backend)
    if callable(backend):
        return _through_fx(backend)
    raise ValueError(f"backend must be a name or a callable, got {backend!r}")


def _by_name(name: str) -> GraphBackend:
    if name in _BUILT_IN:
        reason = _WHY_NOT[name]()
        if reason:
            raise ValueError(f"backend {name!r} is not available: {reason}. {_what_there_is()}")
        return _BUILT_IN[name]
    if name in _REGISTERED:
        return _through_fx(_REGISTERED[name])
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _through_fx(_load(entry))
    near = difflib.get_close_matches(name, list(_known()), 1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"unknown backend {name!r}{guess} {_what_there_is()}")


def _load(entry: EntryPoint) -> FxBackend:
    try:
        loaded: FxBackend = entry.load()
    except Exception as e:
        where = f"{entry.value}, from {entry.dist.name}" if entry.dist is not None else entry.value
        why = f"{type(e).__name__}: {e}"
        raise ValueError(
            f"backend {entry.name!r} ({where}) cannot be loaded: {why}. {_what_there_is(entry.name)}"
        ) from e
    return loaded


def _what_there_is(broken: str = "") -> str:
    text = f"Available: {', '.join(n for n in list_backends() if n != broken)}"
    others = "; ".join(f"{name}: {reason}" for name, reason in unavailable_backends().items())
    return text + (f". Not available here: {others}" if others else "")


def _through_fx(backend: FxBackend) -> GraphBackend:
    from .fx import to_fx

    def compile_fx(request: Request) -> Compiled:
        compiled = backend(to_fx(request.graph), list(request.inputs))
        if not callable(compiled):
            raise TypeError(f"the backend {backend!r} returned {compiled!r}, which is not callable")
        return compiled

    return compile_fx


@built_in("eager")
def eager(request: Request) -> Compiled:
    """The captured graph run as Python, call by call."""
    compiled: Compiled = load_python(request.graph)
    return compiled

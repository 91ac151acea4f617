"""Backends by name: what turns a captured graph into a callable.

A backend follows torch.compile's convention, ``backend(gm: torch.fx.GraphModule, example_inputs) -> callable``. The
built-in ones take braze's own graph instead (a :class:`GraphBackend`) and skip fx.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import torch

from braze.config import Config
from braze.events import GraphRecord
from braze.ir import Graph, TensorType, load_python, type_of

Compiled = Callable[..., Any]
FxBackend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Compiled]


@dataclass(frozen=True)
class Request:
    """One graph to compile. ``inputs`` are the real tensors of the first call (for tuning and user backends)."""

    graph: Graph
    types: tuple[TensorType, ...]
    inputs: Sequence[Any]
    config: Config
    record: GraphRecord


GraphBackend = Callable[[Request], Compiled]
_BUILT_IN: dict[str, GraphBackend] = {}
_REGISTERED: dict[str, FxBackend] = {}


def built_in(name: str) -> Callable[[GraphBackend], GraphBackend]:
    """Register a built-in backend."""

    def add(backend: GraphBackend) -> GraphBackend:
        _BUILT_IN[name] = backend
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
    """Names that ``compile(backend=…)`` accepts, built-in ones first."""
    plugins = [e.name for e in entry_points(group="braze.backends")]
    return list(dict.fromkeys([*sorted(_BUILT_IN), *sorted(_REGISTERED), *sorted(plugins)]))


def lookup(backend: str | FxBackend) -> GraphBackend:
    """The backend of a name, or a user's callable wrapped. ValueError lists what there is."""
    if callable(backend):
        return _through_fx(backend)
    if not isinstance(backend, str):
        raise ValueError(f"backend must be a name or a callable, got {backend!r}")
    if backend in _BUILT_IN:
        return _BUILT_IN[backend]
    if backend in _REGISTERED:
        return _through_fx(_REGISTERED[backend])
    for entry in entry_points(group="braze.backends"):
        if entry.name == backend:
            return _through_fx(entry.load())
    near = difflib.get_close_matches(backend, list_backends(), 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown backend {backend!r}{guess} Available: {', '.join(list_backends())}")


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


def torch_compile_backend(gm: torch.fx.GraphModule, example_inputs: list[Any], **options: Any) -> Compiled:
    """braze's back half under torch.compile's capture: ``torch.compile(model, backend="braze")``."""
    from .fx import from_fx

    real = [x if isinstance(x, torch.Tensor) else None for x in example_inputs]
    if any(x is None for x in real):
        raise ValueError("backend 'braze' needs static shapes: call torch.compile(..., dynamic=False)")
    types = tuple(type_of(x) for x in real if x is not None)
    graph = from_fx(gm, types)
    record = GraphRecord("graph_0", graph)
    return lookup("inductor")(Request(graph, types, example_inputs, Config.from_env(), record))

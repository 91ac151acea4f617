"""``braze.compile`` and its neighbours: the public surface."""

from __future__ import annotations

import copy
import functools
import linecache
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .capture import frames
from .capture.skip import wrapper_file
from .capture.suspended import HINT, REASON, stepwise, suspends
from .config import Config
from .errors import Unsupported
from .events import CompileLog
from .ir import Loc
from .pipeline import Pipeline, Settings

MODES: dict[str, dict[str, bool]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"cudagraphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = True,
) -> Any:
    """Compile a function or an ``nn.Module``; also a decorator. The arguments are torch.compile's.

    ``fullgraph=True`` makes a graph break an error. ``mode`` is "default", "reduce-overhead", "max-autotune" or
    "max-autotune-no-cudagraphs"; ``options`` sets fields of :class:`braze.Config` by name instead. ``backend`` is a
    name from :func:`braze.list_backends` or a callable ``backend(gm, example_inputs) -> callable``; None is "inductor".
    ``name`` is what reports call it. ``recompile_limit``: versions of one frame before it runs in eager.
    ``isolate_recompiles`` changes nothing: calls of ``compile`` never share versions.

    A compiled module shares the original's parameters and attributes, keeps its class (``isinstance``), its
    ``state_dict`` keys, and can be pickled and deep-copied.

    Raises TypeError when ``model`` is not callable, ValueError for an unknown mode, backend or option.
    """
    if model is None:
        return lambda m: compile(
            m,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            name=name,
            disable=disable,
            recompile_limit=recompile_limit,
        )
    if not callable(model):
        raise TypeError(f"braze.compile takes a function or an nn.Module, got {type(model).__name__}: {model!r}")
    if isinstance(model, type):
        raise TypeError(
            f"braze.compile takes a function or an instance, got the class {model.__name__}; compile its instance"
        )
    settings = make_settings(fullgraph, dynamic, "inductor" if backend is None else backend, mode, options)
    if recompile_limit is not None:
        if not isinstance(recompile_limit, int) or recompile_limit < 1:
            raise ValueError(f"recompile_limit must be a positive whole number, got {recompile_limit!r}")
        settings = replace(settings, config=replace(settings.config, recompile_limit=recompile_limit))
    if disable:
        return model
    compiled = _compile(model, settings)
    compiled._braze_session.log.name = name or ""
    return compiled


def make_settings(
    fullgraph: bool, dynamic: bool | None, backend: Any, mode: str | None, options: dict[str, Any] | None
) -> Settings:
    """The arguments of ``compile``, checked. ValueError says what is wrong and what is allowed."""
    if mode is not None and options is not None:
        raise ValueError("give mode or options, not both: a mode is a named set of options")
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}. Available: {', '.join(MODES)}")
    if dynamic not in (None, True, False):
        raise ValueError(f"dynamic must be None, True or False, got {dynamic!r}")
    changes: dict[str, Any] = dict(MODES[mode] if mode else options or {})
    unknown = sorted(set(changes) - set(Config.__dataclass_fields__))
    if unknown:
        known = ", ".join(Config.__dataclass_fields__)
        raise ValueError(f"unknown option {', '.join(map(repr, unknown))}. Available: {known}")
    return Settings(backend, mode, fullgraph, dynamic, replace(Config.from_env(), **changes))


_anomaly = torch.is_anomaly_enabled


def _compile(model: Any, settings: Settings) -> Any:
    pipeline = Pipeline(settings)
    session = frames.Session(pipeline)
    if isinstance(model, torch.nn.Module):
        return _compile_module(model, settings, session)
    return _compile_callable(model, session)


def _compile_callable(fn: Callable[..., Any], session: Any) -> Callable[..., Any]:
    target = fn if isinstance(fn, (types.FunctionType, types.MethodType)) else fn.__call__  # type: ignore[operator]

    session.root = getattr(target, "__code__", None)
    call = session.call
    kind = suspends(target)
    if kind:
        return _compile_stepwise(fn, target, session, kind)

    @functools.wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if _anomaly():  # it names the operator's line: the program runs as it is
            return target(*args, **kwargs)
        return call(target, *args, **kwargs)

    compiled._braze_session = session  # type: ignore[attr-defined]
    return compiled


def _compile_stepwise(fn: Any, target: Any, session: Any, kind: str) -> Callable[..., Any]:
    """A coroutine function or a generator function: what it calls is compiled."""
    code = session.root
    where = Loc(code.co_filename, code.co_firstlineno, linecache.getline(code.co_filename, code.co_firstlineno).strip())
    if session.pipeline.settings.fullgraph:
        raise Unsupported(f"fullgraph=True, but the program is {kind}", str(where), HINT)
    session.log.add_break(REASON.format(kind), where, HINT)
    compiled = stepwise(fn, target, session.call)
    compiled._braze_session = session  # type: ignore[attr-defined]
    return compiled


def _rebuild(module: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """Unpickle a compiled module."""
    out: torch.nn.Module = _compile(module, settings)
    return out


def _compile_module(module: torch.nn.Module, settings: Settings, session: Any) -> torch.nn.Module:
    """A twin of the module: a subclass instance over the same ``__dict__``, whose ``forward`` runs under the hook."""
    base = type(module)
    forward = module.forward

    code = getattr(forward, "__code__", None)
    session.root = None if code is not None and wrapper_file(code.co_filename) else code
    call = session.call

    @functools.wraps(base.forward)
    def compiled_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _anomaly():
            return forward(*args, **kwargs)
        return call(forward, *args, **kwargs)

    members = {
        "forward": compiled_forward,
        "__reduce_ex__": lambda self, protocol: (_rebuild, (module, settings)),
        # registries by module (FSDP's states, sets of seen modules) take the twin for the module that it is
        "__hash__": lambda self: hash(module),
        "__eq__": lambda self, other: other is self or other is module,
        "__deepcopy__": lambda self, memo: _compile(copy.deepcopy(module, memo), settings),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "_braze_session": session,
    }
    twin: torch.nn.Module = object.__new__(type(base.__name__, (base,), members))
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def log_of(compiled: Any) -> CompileLog | None:
    """The compile log of what ``compile`` returned, or None."""
    session = getattr(compiled, "_braze_session", None)
    return session.pipeline.log if session is not None else None

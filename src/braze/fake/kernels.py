"""Triton kernels that the user's program launches, ``kernel[grid](x, out, n, BLOCK=64)``, as operators.

A launch on traced tensors becomes one call of an operator made for it. The arguments that the kernel writes are known
from its source: the call is a function of the others, which gives the written ones' new values. Autograd does not see
it, as in eager. ``Launch`` is what stands in a captured graph.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any

import torch

from ..errors import Unsupported
from .registry import register
from .tensor import FakeTensor

_WRITES = ("store", "atomic_", "scatter")
_NO_POINTER = frozenset({"load", "arange", "program_id", "num_programs", "zeros", "full", "sum", "max", "min", "dot"})
_libraries: list[Any] = []
_numbers = count()


def is_kernel(x: Any) -> bool:
    """Whether ``x`` is a Triton kernel: jitted, interpreted, autotuned or with heuristics."""
    cls = type(x)
    return any(c.__name__ == "KernelInterface" and c.__module__ == "triton.runtime.jit" for c in cls.__mro__)


def function_of(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel, below its decorators."""
    while is_kernel(kernel):
        kernel = kernel.fn
    out: Callable[..., Any] = kernel
    return out


def written(kernel: Any) -> frozenset[str]:
    """The parameters that a kernel may write through. All, where its source is not to be had."""
    return _written(function_of(kernel)) - _constexprs(kernel)


@lru_cache(None)
def _written(function: Callable[..., Any]) -> frozenset[str]:
    names = tuple(inspect.signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return frozenset(names)
    reader = _Writes()
    reader.visit(tree)
    found = set(reader.stored)
    while True:  # what a written pointer was computed from is written
        more = {s for t, sources in reader.assigned if t in found for s in sources} - found
        if not more:
            return frozenset(found.intersection(names))
        found |= more


class _Writes(ast.NodeVisitor):
    """Names in the pointers of stores, and which names each name is computed from, wherever that is."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.assigned: list[tuple[str, set[str]]] = []

    def visit_Call(self, node: ast.Call) -> None:
        path = ast.unparse(node.func)
        name = path.rsplit(".", 1)[-1]
        if name.startswith(_WRITES):
            self.stored |= _names(node.args[0] if node.args else node)
            if isinstance(node.func, ast.Attribute):  # descriptor.store(...)
                self.stored |= _names(node.func.value)
            self.stored |= {n for k in node.keywords if k.arg == "pointer" for n in _names(k.value)}
        elif not path.startswith(("tl.", "triton.", "libdevice.", "range", "min", "max")) or "inline_asm" in path:
            self.stored |= _names(node)  # another function may write through what it is given
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for t in node.targets:
            self.assigned += [(n, _names(node.value)) for n in _names(t)]
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.assigned += [(n, _names(node.value)) for n in _names(node.target)]
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assigned += [(n, _names(node.value)) for n in _names(node.target)]
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.assigned += [(n, _names(node.iter)) for n in _names(node.target)]
        self.generic_visit(node)


def _names(node: ast.AST) -> set[str]:
    """The names whose value, a pointer maybe, may be in an expression's."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in _NO_POINTER:
        return set()
    return {n for child in ast.iter_child_nodes(node) for n in _names(child)}


class Launch:
    """``Launch(kernel)(grid, *args, **kwargs)`` is ``kernel[grid](*args, **kwargs)``, on traced tensors too.

    For an autotuned kernel ``grid`` is a list of the grids of its configurations, in their order.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.__name__ = f"launch_{function_of(kernel).__name__}"
        self.__qualname__ = self.__name__
        self.__module__ = __name__

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, grid: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(self.kernel.arg_names, args)), **kwargs}
        if not any(type(x) is FakeTensor for x in given.values()):
            run(self.kernel, grid, given)
            return
        tensors = {k: v for k, v in given.items() if isinstance(v, torch.Tensor)}
        constants = _constexprs(self.kernel)
        numbers = {k: v for k, v in given.items() if _is_number(v) and k not in constants}
        rest = {k: v for k, v in given.items() if k not in tensors and k not in numbers}
        grids = grid if isinstance(grid, list) else [grid]
        flat = [n for g in grids for n in (*g, *(1,) * (3 - len(g)))]
        kinds = tuple((k, type(v) is float) for k, v in numbers.items())
        op = _operator(self.kernel, tuple(tensors), kinds, tuple(rest.items()), isinstance(grid, list))
        with torch._C._AutoDispatchBelowAutograd():
            op(flat, *tensors.values(), *numbers.values())


@lru_cache(None)
def launcher(kernel: Any) -> Launch:
    """The kernel's :class:`Launch`, one for each kernel."""
    return Launch(kernel)


def grids(kernel: Any, given: dict[str, Any], grid: Grid) -> Any:
    """What a :class:`Launch` takes: ``grid(arguments)`` for all arguments of a launch with ``given``; for an autotuned
    kernel the list of it for all configurations. Heuristics are computed on the way, by ``grid.computed``."""
    metas, several = [dict(given)], False
    while kernel is not None and is_kernel(kernel):
        configs, values = getattr(kernel, "configs", None), getattr(kernel, "values", None)
        if configs is not None:
            if several:
                raise Unsupported("a Triton kernel that is autotuned twice")
            metas, several = [{**metas[0], **grid.wrapped(c.kwargs)} for c in configs], True
        elif isinstance(values, dict):
            for meta in metas:
                for name, rule in values.items():
                    meta[name] = grid.computed(rule, dict(meta))
        kernel = getattr(kernel, "fn", None)
    found = [grid(meta) for meta in metas]
    return found if several else found[0]


class Grid:
    """``kernel[grid]``'s grid, a tuple or a function of the arguments, in Python."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def __call__(self, meta: dict[str, Any]) -> Any:
        return tuple(self.grid(meta) if callable(self.grid) else self.grid)

    def computed(self, rule: Any, meta: dict[str, Any]) -> Any:
        """What a heuristic makes of the arguments."""
        return rule(meta)

    def wrapped(self, config: dict[str, Any]) -> dict[str, Any]:
        """A configuration's arguments."""
        return dict(config)


def run(kernel: Any, grid: Any, given: dict[str, Any]) -> None:
    """The launch itself."""
    given = dict(given)
    args = []  # by place as far as it goes: functions that prune configurations look there
    for name in kernel.arg_names:
        if name not in given:
            break
        args.append(given.pop(name))
    if isinstance(grid, list):
        configs = [c.kwargs for c in _tuned(kernel).configs]
        table = dict(zip(map(_key, configs), grid))
        names = set(configs[0]) if configs else set()
        kernel[lambda meta: table[_key({k: meta[k] for k in names if k in meta})]](*args, **given)
    else:
        kernel[tuple(grid)](*args, **given)


def _tuned(kernel: Any) -> Any:
    """The autotuner among a kernel's decorators."""
    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    return kernel


def _key(config: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((k, repr(v)) for k, v in config.items()))


_PLAIN: list[Any] = []  # Triton's own __getitem__, as often as traces are under way
_LOCK = threading.Lock()


def intercept() -> Callable[[], None] | None:
    """From now on ``kernel[grid](...)`` with traced tensors, wherever Python does it, is a call of a :class:`Launch`.

    Gives what ends that; None where Triton is not loaded.
    """
    jit: Any = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return None
    with _LOCK:
        _PLAIN.append(_PLAIN[0] if _PLAIN else jit.KernelInterface.__getitem__)
        jit.KernelInterface.__getitem__ = _launch_of
    wrapped: Any = sys.modules.get("torch._library.triton")  # its wrap_triton makes launches nodes of another tracer
    before = wrapped.is_wrap_triton_enabled() if wrapped is not None else None
    if before:
        wrapped.wrap_triton_enabled.value = False

    def end() -> None:
        if before:
            wrapped.wrap_triton_enabled.value = before
        with _LOCK:
            plain = _PLAIN.pop()
            if not _PLAIN:
                jit.KernelInterface.__getitem__ = plain

    return end


def _launch_of(kernel: Any, grid: Any) -> Any:
    launch = (_PLAIN[0] if _PLAIN else type(kernel).__getitem__)(kernel, grid)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(type(x) is FakeTensor for x in (*args, *kwargs.values())):
            return launch(*args, **kwargs)
        given = {**dict(zip(kernel.arg_names, args)), **kwargs}
        launcher(kernel)(grids(kernel, given, Grid(grid)), *args, **kwargs)

    return call


def _is_number(v: Any) -> bool:
    return type(v) in (int, float) or isinstance(v, torch.SymInt)


@lru_cache(None)
def _constexprs(kernel: Any) -> frozenset[str]:
    found = inspect.signature(function_of(kernel)).parameters.values()
    return frozenset(p.name for p in found if "constexpr" in str(p.annotation)) | {"num_warps", "num_stages"}


@lru_cache(None)
def _operator(
    kernel: Any, tensors: tuple[str, ...], numbers: tuple[tuple[str, bool], ...], rest: tuple[Any, ...], several: bool
) -> Any:
    """The operator of launches with these arguments: ``(grids, *tensors, *numbers) -> ()``."""
    name = f"{function_of(kernel).__name__}_{next(_numbers)}"
    writes = written(kernel)
    parts = ["SymInt[] grid"]
    parts += [f"Tensor({chr(97 + i)}!) {t}_" if t in writes else f"Tensor {t}_" for i, t in enumerate(tensors)]
    parts += [f"{'float' if is_float else 'SymInt'} {k}_" for k, is_float in numbers]
    if len(tensors) > 26:
        raise Unsupported(f"the launch of {name} with more than 26 tensors")
    library: Any = torch.library.Library("braze_kernels", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"{name}({', '.join(parts)}) -> ()")
    _libraries.append(library)

    def call(grid: Any, *args: Any) -> None:
        grids: Any = [tuple(grid[i : i + 3]) for i in range(0, len(grid), 3)]
        given = dict(zip([*tensors, *(k for k, _ in numbers)], args))
        run(kernel, grids if several else grids[0], {**given, **dict(rest)})

    library.impl(name, call, "CompositeExplicitAutograd")
    register(lambda *args: None, [f"braze_kernels::{name}"])
    return getattr(torch.ops.braze_kernels, name).default

"""C functions of the standard library that have a form in Python, too: interpreted in that form.

``heapq`` and ``bisect`` bring theirs, hidden behind the C ones; ``functools.cmp_to_key`` has one here.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import importlib.util
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..registry import HANDLERS, handles
from ..signals import unsupported
from ..values.base import Value
from ..values.functions import PartialValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@functools.cache
def _without_c(name: str) -> ModuleType:
    """A module of the standard library as it is where its C half cannot be imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    half = f"_{name}"
    before = sys.modules.get(half)
    sys.modules[half] = None  # type: ignore[assignment]
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del sys.modules[half]
        else:
            sys.modules[half] = before
    return module


def _register(module: ModuleType) -> None:
    for function in {v for v in vars(module).values() if isinstance(v, BuiltinFunctionType)}:
        if function.__module__ == f"_{module.__name__}":
            HANDLERS[function] = _handler(module.__name__, function.__name__)


def _handler(module: str, name: str) -> Any:
    def call(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if module == "heapq" and not (args and args[0].pytype(vm) is list):
            unsupported(f"{module}.{name}() of something else than a list")
        return vm.wrap_static(getattr(_without_c(module), name)).call(vm, args, kwargs)

    return call


for _module in (heapq, bisect):
    _register(_module)


class _Key:
    """What ``functools.cmp_to_key`` makes of an item: ordered by the program's comparison."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: _Key) -> bool:
        return bool(self.compare(self.obj, other.obj) < 0)

    def __gt__(self, other: _Key) -> bool:
        return bool(self.compare(self.obj, other.obj) > 0)

    def __eq__(self, other: object) -> bool:
        return bool(self.compare(self.obj, other.obj) == 0)  # type: ignore[attr-defined]

    def __le__(self, other: _Key) -> bool:
        return bool(self.compare(self.obj, other.obj) <= 0)

    def __ge__(self, other: _Key) -> bool:
        return bool(self.compare(self.obj, other.obj) >= 0)


@handles(functools.cmp_to_key)
def cmp_to_key(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return PartialValue(vm.wrap_static(_Key), [*args, *kwargs.values()], {})

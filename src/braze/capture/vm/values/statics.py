"""Objects that programs name but do not change: classes, modules, C functions, and Python functions that exist.

They are constants guarded by identity; their attributes are read on demand.
"""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..passing import passes_result
from ..signals import unsupported
from .base import Const, Value

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer
    from .functions import CellValue


class Opaque(Value):
    """An existing object that the interpreter cannot look into: it can only be passed on."""

    __slots__ = ("raw", "reason")

    def __init__(self, raw: Any, source: Source, reason: str) -> None:
        self.source = source
        self.raw, self.reason = raw, reason

    def pytype(self, vm: Tracer) -> type:
        unsupported(self.reason)


class ClassValue(Const):
    """A class."""

    __slots__ = ()
    raw: type

    def truth(self, vm: Tracer) -> bool:
        return vm.protocol_truth(self)

    def get_attr(self, vm: Tracer, name: str) -> Value:
        self.as_const(vm)
        return vm.class_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        unsupported(f"assigning to the class attribute {self.raw.__name__}.{name}")

    def del_attr(self, vm: Tracer, name: str) -> None:
        unsupported(f"deleting the class attribute {self.raw.__name__}.{name}")

    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return vm.construct(self.as_const(vm), args, kwargs, self)

    def get_item(self, vm: Tracer, key: Value) -> Value:
        return vm.protocol_getitem(self, key)

    def length(self, vm: Tracer) -> int:
        return vm.protocol_len(self)

    def contains(self, vm: Tracer, item: Value) -> bool:
        return vm.protocol_contains(self, item)


class PyModule(Const):
    """A module."""

    __slots__ = ()
    raw: ModuleType

    def truth(self, vm: Tracer) -> bool:
        return True

    def get_attr(self, vm: Tracer, name: str) -> Value:
        return vm.module_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        unsupported(f"assigning to {self.raw.__name__}.{name}, an attribute of a module")


class BuiltinValue(Const):
    """A function, method descriptor or other callable written in C, not bound to a Python object of the program."""

    __slots__ = ()

    def truth(self, vm: Tracer) -> bool:
        return True

    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return vm.call_c(self.as_const(vm), args, kwargs)

    def get_attr(self, vm: Tracer, name: str) -> Value:
        made = isinstance(self.raw, _OPERATORS) and not hasattr(type(self.raw), name)  # when asked for, then fixed
        if made or isinstance(self.raw, _CACHED) and name in self.raw.__dict__:
            raw = self.as_const(vm)
            try:
                found = getattr(raw, name)
            except AttributeError as e:
                vm.raise_real(e)
            return vm.wrap(found, vm.sources.const(raw, str(raw)).attr(name))
        return Const.get_attr(self, vm, name)


_CACHED = type(functools.lru_cache(lambda: None))
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class FunctionValue(Const):
    """A Python function that exists. Its defaults and closure cells are read through its source."""

    __slots__ = ("_cells", "called", "coded")

    def __init__(self, raw: FunctionType, source: Source | None = None) -> None:
        Const.__init__(self, raw, source)
        self._cells: list[CellValue] | None = None
        self.called = False  # the guard that calls need is there
        self.coded = False  # the guard on the code that was inlined is there

    @property
    def code(self) -> CodeType:
        return self.function().__code__

    @property
    def globals(self) -> dict[str, Any]:
        return self.function().__globals__

    def function(self) -> FunctionType:
        """The real function."""
        raw: FunctionType = self.raw
        return raw

    def address(self, vm: Tracer) -> Source:
        """The source, or the function held as a constant."""
        return self.source if self.source is not None else vm.sources.const(self.raw, self.raw.__qualname__)

    def defaults(self, vm: Tracer) -> list[Value]:
        found = self.raw.__defaults__
        where = self.address(vm)
        if not found:
            vm.guards.const(where.attr("__defaults__"), found)
            return []
        vm.guards.length(where.attr("__defaults__"), len(found))
        return [vm.wrap_default(d, where, i) for i, d in enumerate(found)]

    def kwdefaults(self, vm: Tracer) -> dict[str, Value]:
        found = self.function().__kwdefaults__
        where = self.address(vm)
        if not found:
            vm.guards.const(where.attr("__kwdefaults__"), found)
            return {}
        vm.guards.keys(where.attr("__kwdefaults__"), found)
        return {k: vm.wrap_default(d, where, k) for k, d in found.items()}

    def cells(self, vm: Tracer) -> list[CellValue]:
        if self._cells is None:
            where = self.address(vm)
            self._cells = [vm.wrap_cell(c, where, i) for i, c in enumerate(self.raw.__closure__ or ())]
        return self._cells

    def truth(self, vm: Tracer) -> bool:
        return True

    def get_attr(self, vm: Tracer, name: str) -> Value:
        return vm.function_get(self, name)

    @passes_result
    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return vm.call_function(self, args, kwargs)

    def own_attrs(self, vm: Tracer) -> Any:
        return vm.instance_dict(self, self.raw)

    def rebuild(self, rb: Rebuilder) -> None:
        rb.load_const(self.raw)

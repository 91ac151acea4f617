"""Callables that carry values: functions made by the traced code, bound methods, partials, super objects, cells."""

from __future__ import annotations

import builtins
import dis
import functools
import operator
from types import (
    BuiltinMethodType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from ..passing import passes_result
from ..signals import unsupported
from .base import Const, Value

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer


class CellValue(Value):
    """A closure cell. ``contents`` is None while it is empty; an existing cell is read on first use."""

    __slots__ = ("contents", "raw", "loaded")

    def __init__(self, contents: Value | None = None, raw: CellType | None = None, source: Source | None = None):
        self.source = source
        self.contents, self.raw = contents, raw
        self.loaded = raw is None

    def pytype(self, vm: Tracer) -> type:
        return CellType

    def read(self, vm: Tracer) -> Value | None:
        if not self.loaded:
            self.loaded = True
            assert self.raw is not None and self.source is not None
            try:
                raw = self.raw.cell_contents
            except ValueError:
                unsupported(
                    "reading a captured variable that is unbound", "give the variable a value on every way to its use"
                )
            self.contents = vm.wrap(raw, self.source.cell_contents())
            vm.found.append(self.contents)
        return self.contents

    def write(self, vm: Tracer, value: Value | None) -> None:
        self.loaded = True
        self.contents = value
        if self.raw is not None:
            vm.effects.touch(self)

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.contents] if self.contents is not None else []

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(CellType, []))
        if self.contents is not None:
            rb.later(lambda: rb.store_attr(self, "cell_contents", self.contents))

    def replay(self, rb: Rebuilder) -> None:
        if self.contents is None:
            rb.delete_attr(self, "cell_contents")
        else:
            rb.store_attr(self, "cell_contents", self.contents)


class LocalClass(Value):
    """A class that the traced code defines: made where the graph ends, and unknown before, so any use breaks."""

    __slots__ = ("args",)

    def __init__(self, args: list[Value]) -> None:
        self.source = None
        self.args = args

    def pytype(self, vm: Tracer) -> type:
        unsupported("the use of a class defined inside the compiled function", "define the class outside")

    def parts(self, vm: Tracer) -> list[Value]:
        return self.args

    def rebuild(self, rb: Rebuilder) -> None:
        rb.complete(self.args)  # its body runs there, and reads cells
        rb.remember(self, lambda: rb.call(builtins.__build_class__, self.args))


_MAKES_METHODS = frozenset(
    "RESUME COPY_FREE_VARS MAKE_CELL LOAD_CLOSURE LOAD_NAME STORE_NAME LOAD_CONST MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE "
    "BUILD_TUPLE RETURN_VALUE RETURN_CONST COPY LOAD_FAST STORE_FAST NOP POP_TOP EXTENDED_ARG CACHE "
    "PUSH_NULL PRECALL CALL".split()
)
_DECORATORS = frozenset(("staticmethod", "classmethod", "property"))
_METACLASSES = (type, type(torch.autograd.Function))  # which run no code of the class's author


def runs_anytime(body: Value, bases: list[Any]) -> bool:
    """Whether a class body does the same whenever it runs: it makes methods, plain or decorated by a builtin, and reads
    and calls nothing else. Variables that its methods close over are only passed on."""
    if not isinstance(body, MadeFunction):
        return False
    known = {"__name__"} | {n for n in _DECORATORS if n not in body.globals}
    for ins in dis.get_instructions(body.code):
        if ins.opname not in _MAKES_METHODS or ins.opname == "LOAD_NAME" and ins.argval not in known:
            return False
    return not any(isinstance(b.__init_subclass__, MethodType) or type(b) not in _METACLASSES for b in bases)


class MadeFunction(Value):
    """A function that the traced code made: code, defaults and cells are values."""

    __slots__ = ("code", "globals", "_defaults", "_kwdefaults", "_cells", "annotations", "attrs", "qualname")

    def __init__(self, code: CodeType, scope: dict[str, Any], qualname: str) -> None:
        self.source = None
        self.code, self.globals, self.qualname = code, scope, qualname
        self._defaults: list[Value] = []
        self._kwdefaults: dict[str, Value] = {}
        self._cells: list[CellValue] = []
        self.annotations: Value | None = None
        self.attrs: Any = None

    def pytype(self, vm: Tracer) -> type:
        return FunctionType

    def defaults(self, vm: Tracer) -> list[Value]:
        return self._defaults

    def kwdefaults(self, vm: Tracer) -> dict[str, Value]:
        return self._kwdefaults

    def cells(self, vm: Tracer) -> list[CellValue]:
        return self._cells

    def truth(self, vm: Tracer) -> bool:
        return True

    def own_attrs(self, vm: Tracer) -> Any:
        if self.attrs is None:
            self.attrs = vm.new_dict()
        return self.attrs

    def get_attr(self, vm: Tracer, name: str) -> Value:
        found = self.attrs.known.get(name) if self.attrs is not None else None
        return found if found is not None else vm.function_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        self.own_attrs(vm).store(vm, name, value)

    @passes_result
    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return vm.call_function(self, args, kwargs)

    def parts(self, vm: Tracer) -> list[Value]:
        out = [*self._defaults, *self._kwdefaults.values(), *self._cells]
        return out + ([self.attrs] if self.attrs is not None and self.attrs.known else [])

    def rebuild(self, rb: Rebuilder) -> None:
        def make() -> None:
            from .sequences import TupleValue

            fixed = [rb.constant(self.code), rb.constant(self.globals), Const(self.qualname)]
            rb.call(make_function, [*fixed, TupleValue(self._defaults), TupleValue(self._cells)])

        from .mappings import DictValue

        rb.remember(self, make)
        if self._kwdefaults:
            rb.later(
                lambda: rb.store_attr(self, "__kwdefaults__", DictValue({k: v for k, v in self._kwdefaults.items()}))
            )
        if self.attrs is not None:
            for k, v in self.attrs.items(rb.vm):
                rb.later(lambda k=k, v=v: rb.store_attr(self, k, v))  # type: ignore[misc]


def make_function(
    code: CodeType,
    scope: dict[str, Any],
    qualname: str,
    defaults: tuple[Any, ...],
    cells: tuple[Any, ...],
) -> FunctionType:
    """Replacement code calls this for a function that leaves the compiled region."""
    out = FunctionType(code, scope, code.co_name, defaults or None, cells or None)
    out.__qualname__ = qualname
    return out


class MethodValue(Value):
    """A callable bound to an object: ``func`` is called with ``owner`` before the arguments."""

    __slots__ = ("func", "owner")

    def __init__(self, func: Value, owner: Value, source: Source | None = None) -> None:
        self.source = source
        self.func, self.owner = func, owner

    def pytype(self, vm: Tracer) -> type:
        raw = getattr(self.func, "raw", None)
        return _BOUND.get(type(raw), MethodType)

    def truth(self, vm: Tracer) -> bool:
        return True

    @passes_result
    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.func.call(vm, [self.owner, *args], kwargs)

    def get_attr(self, vm: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.func
        return self.func.get_attr(vm, name)

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.func, self.owner]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(bind_method, [self.func, self.owner]))


_BOUND: dict[type, type] = {
    MethodDescriptorType: BuiltinMethodType,
    WrapperDescriptorType: MethodWrapperType,
    ClassMethodDescriptorType: BuiltinMethodType,
}


def bind_method(func: Any, owner: Any) -> Any:
    """Replacement code calls this for a bound method that leaves the compiled region."""
    if type(func) is ClassMethodDescriptorType:
        return func.__get__(None, owner)
    get = getattr(type(func), "__get__", None)
    return get(func, owner, type(owner)) if get is not None else MethodType(func, owner)


class PartialValue(Value):
    """``functools.partial``."""

    __slots__ = ("func", "args", "kwargs")

    def __init__(self, func: Value, args: list[Value], kwargs: dict[str, Value], source: Source | None = None) -> None:
        self.source = source
        self.func, self.args, self.kwargs = func, args, kwargs

    def pytype(self, vm: Tracer) -> type:
        return functools.partial

    def truth(self, vm: Tracer) -> bool:
        return True

    @passes_result
    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.func.call(vm, self.args + args, {**self.kwargs, **kwargs})

    def get_attr(self, vm: Tracer, name: str) -> Value:
        if name == "func":
            return self.func
        if name == "args":
            return vm.new_tuple(self.args)
        if name == "keywords":
            return vm.new_dict(self.kwargs)
        return vm.generic_get(self, name)

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.func, *self.args, *self.kwargs.values()]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(functools.partial, [self.func, *self.args], self.kwargs))


class SuperValue(Value):
    """``super(cls, obj)``: attributes from the classes after ``cls`` in the MRO of ``owner``."""

    __slots__ = ("after", "obj", "owner")

    def __init__(self, after: type, obj: Value, owner: type) -> None:
        self.source = None
        self.after, self.obj, self.owner = after, obj, owner

    def pytype(self, vm: Tracer) -> type:
        return super

    def get_attr(self, vm: Tracer, name: str) -> Value:
        return vm.super_get(self, name)


class WrapperValue(Value):
    """``staticmethod``, ``classmethod`` and ``property`` objects made or met by the traced code."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any, source: Source | None = None) -> None:
        self.source, self.raw = source, raw

    def pytype(self, vm: Tracer) -> type:
        return type(self.raw)


class GetterValue(Value):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller``."""

    __slots__ = ("cls", "args", "kwargs", "raw")

    def __init__(
        self, cls: type, args: list[Value], kwargs: dict[str, Value], raw: Any = None, source: Source | None = None
    ) -> None:
        self.source = source
        self.cls, self.args, self.kwargs, self.raw = cls, args, kwargs, raw

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def truth(self, vm: Tracer) -> bool:
        return True

    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (obj,) = args
        if self.cls is operator.methodcaller:
            return obj.get_attr(vm, self.args[0].as_const(vm)).call(vm, self.args[1:], self.kwargs)
        out = [self._get(vm, obj, a) for a in self.args]
        return out[0] if len(out) == 1 else vm.new_tuple(out)

    def _get(self, vm: Tracer, obj: Value, key: Value) -> Value:
        if self.cls is operator.itemgetter:
            return obj.get_item(vm, key)
        for name in key.as_const(vm).split("."):
            obj = obj.get_attr(vm, name)
        return obj

    def parts(self, vm: Tracer) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(self.cls, self.args, self.kwargs))

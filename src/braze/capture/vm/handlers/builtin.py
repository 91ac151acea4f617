"""Builtin functions and the constructors of builtin classes."""

from __future__ import annotations

import builtins
import inspect
import math
import operator
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ..attributes import find
from ..operators import COMPARE, FUNCTIONS
from ..protocols import identical
from ..registry import BREAKS, HANDLERS, handles, pure, simple
from ..signals import Break, NotConst, Raised, unsupported
from ..values import symbolic
from ..values.base import NONE, Const, Value, boolean
from ..values.floats import FloatValue
from ..values.functions import LocalClass, SuperValue, runs_anytime
from ..values.iterators import CallIterator, ItemsIterator, LazyIterator, RangeIterator
from ..values.mappings import DictValue, DictView, SetValue
from ..values.objects import ExceptionValue, ObjectValue
from ..values.sequences import ListValue, SequenceValue, SliceValue, TupleValue
from ..values.statics import ClassValue
from ..values.symbolic import SymValue
from ..values.tensor import TensorValue
from .tensors import number_of

if TYPE_CHECKING:
    from ..tracer import Tracer

pure(abs, hash, ord, chr, hex, oct, bin, ascii, round, complex, bytes, type.mro)
pure(*(f for f in vars(math).values() if callable(f)))
_f: Any
for _f in vars(operator).values():
    if callable(_f) and not isinstance(_f, type) and getattr(_f, "__module__", "") == "_operator":
        pure(_f)

BREAKS.update(
    {
        print: ("print()", "remove it, or guard it with torch.compiler.is_compiling()"),
        input: ("input()", ""),
        open: ("opening a file", ""),
        compile: ("compile()", ""),
        breakpoint: ("breakpoint()", "set it outside of the compiled function"),
        __import__: ("__import__()", "import outside of the compiled function"),
    }
)


@simple(builtins.__build_class__)
def build_class(vm: Tracer, body: Value, name: Value, *bases: Value) -> Value:
    if not all(b.is_const() for b in bases) or not runs_anytime(body, [b.as_const(vm) for b in bases]):
        unsupported("a class defined inside the compiled function", "define the class outside")
    return LocalClass([body, name, *bases])


@simple(len)
def len_(vm: Tracer, v: Value) -> Value:
    return v.first_size(vm) if isinstance(v, TensorValue) else Const(v.length(vm))


@simple(isinstance)
def isinstance_(vm: Tracer, v: Value, classes: Value) -> Value:
    try:
        raw = classes.as_const(vm)
    except NotConst:
        unsupported("isinstance() with a class that is not known while compiling")
    return boolean(vm.isinstance_(v, raw))


@simple(issubclass)
def issubclass_(vm: Tracer, a: Value, b: Value) -> Value:
    return vm.fold(issubclass, [a, b])


@simple(callable)
def callable_(vm: Tracer, v: Value) -> Value:
    return boolean(find(vm, v.pytype(vm), "__call__") is not None)


@simple(id)
def id_(vm: Tracer, v: Value) -> Value:
    raw = getattr(v, "raw", None)
    if raw is None:
        unsupported("id() of an object that the compiled function made")
    vm.guards.const(v.source, raw)
    return Const(id(raw))


@handles(type)
def type_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        unsupported("a class made by type() in the compiled function", "define the class outside")
    return vm.wrap_static(args[0].pytype(vm))


@handles(super)
def super_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2:
        return vm.make_super(args[0], args[1])
    if args:
        unsupported("super() with one argument")
    frame = vm.frames[-1]
    names = frame.code.slots
    cell = frame.slots[names.index("__class__")]
    first = frame.slots[0]
    cls = cell.read(vm) if cell is not None and hasattr(cell, "read") else None
    if first is not None and hasattr(first, "read"):
        first = first.read(vm)
    if cls is None or first is None:
        vm.raise_(RuntimeError, "super(): no arguments")
    return vm.make_super(cls, first)


def make_super(vm: Tracer, cls: Value, obj: Value) -> SuperValue:
    """``super(cls, obj)``."""
    after = cls.as_const(vm)
    if isinstance(obj, ClassValue) and issubclass(obj.raw, after):
        return SuperValue(after, obj, obj.raw)
    return SuperValue(after, obj, obj.pytype(vm))


# ---- attributes


@handles(getattr)
def getattr_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = args[1].as_const(vm)
    if not isinstance(name, str):
        vm.raise_(TypeError, f"attribute name must be string, not {type(name).__name__!r}")
    if len(args) == 2:
        return args[0].get_attr(vm, name)
    v = vm.get_attr_or_none(args[0], name)
    return args[2] if v is None else v


def get_attr_or_none(vm: Tracer, v: Value, name: str) -> Value | None:
    """The attribute, or None where reading it raises AttributeError."""
    try:
        return v.get_attr(vm, name)
    except Raised as e:
        if not vm.exception_matches(e.value, AttributeError):
            raise
        return None


@handles(format)
def format_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.format_value(args[0], 0, args[1] if len(args) > 1 else None)


@simple(hasattr)
def hasattr_(vm: Tracer, v: Value, name: Value) -> Value:
    return boolean(vm.get_attr_or_none(v, name.as_const(vm)) is not None)


@simple(setattr)
def setattr_(vm: Tracer, v: Value, name: Value, value: Value) -> Value:
    v.set_attr(vm, name.as_const(vm), value)
    return NONE


@simple(delattr)
def delattr_(vm: Tracer, v: Value, name: Value) -> Value:
    v.del_attr(vm, name.as_const(vm))
    return NONE


@handles(vars)
def vars_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].get_attr(vm, "__dict__") if args else looks_at_frame(vars)(vm, args, kwargs)


def looks_at_frame(function: Any) -> Any:
    """The handler of a function that reads its caller's frame, which must be the original one."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Break(f"{function.__name__}(), which looks at the frame", "call it outside", whole=True)

    return handler


for _f in (eval, exec, locals, globals, sys._getframe, inspect.currentframe, inspect.stack):
    HANDLERS[_f] = looks_at_frame(_f)


@handles(dir)
def dir_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.fold(dir, args) if args else looks_at_frame(dir)(vm, args, kwargs)


# ---- iteration


@handles(iter)
def iter_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].iterate(vm) if len(args) == 1 else CallIterator(args[0], args[1])


@handles(next)
def next_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0]
    from ..values.generator import GeneratorValue

    v = it.next(vm)
    if v is not None:
        return v
    if len(args) > 1:
        return args[1]
    result = it.result if isinstance(it, GeneratorValue) else NONE
    vm.raise_values(StopIteration, [] if result is NONE else [result])


@handles(enumerate)
def enumerate_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[1] if len(args) > 1 else Const(0))
    it = args[0].iterate(vm)
    count = [start.as_const(vm)]

    def step(vm: Tracer) -> Value | None:
        v = it.next(vm)
        if v is None:
            return None
        count[0] += 1
        return TupleValue([Const(count[0] - 1), v])

    return LazyIterator(enumerate, step, lambda: [it, Const(count[0])])


@handles(zip)
def zip_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = "strict" in kwargs and kwargs["strict"].truth(vm)
    its = [a.iterate(vm) for a in args]

    def step(vm: Tracer) -> Value | None:
        if not its:
            return None
        out: list[Value] = []
        for i, it in enumerate(its):
            v = it.next(vm)
            if v is None:
                if strict:
                    _check_strict(vm, its, i, out)
                return None
            out.append(v)
        return TupleValue(out)

    return LazyIterator(zip, step, lambda: list(its), _strict_zip if strict else zip)


def _strict_zip(*its: Any) -> Any:
    return zip(*its, strict=True)


def _check_strict(vm: Tracer, its: list[Value], i: int, got: list[Value]) -> None:
    if i:
        what = f"zip() argument {i + 1} is shorter than argument{'s 1-' + str(i) if i > 1 else ' 1'}"
        vm.raise_(ValueError, what)
    for j, it in enumerate(its[1:], 2):
        if it.next(vm) is not None:
            vm.raise_(ValueError, f"zip() argument {j} is longer than argument{'s 1-' + str(j - 1) if j > 2 else ' 1'}")


@handles(map)
def map_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, its = args[0], [a.iterate(vm) for a in args[1:]]

    def step(vm: Tracer) -> Value | None:
        items = []
        for it in its:
            v = it.next(vm)
            if v is None:
                return None
            items.append(v)
        return func.call(vm, items, {})

    return LazyIterator(map, step, lambda: [func, *its])


@handles(filter)
def filter_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, it = args[0], args[1].iterate(vm)
    plain = vm.is_none(func)

    def step(vm: Tracer) -> Value | None:
        while (v := it.next(vm)) is not None:
            if (v if plain else func.call(vm, [v], {})).truth(vm):
                return v
        return None

    return LazyIterator(filter, step, lambda: [func, it])


@handles(reversed)
def reversed_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    v = args[0]
    if find(vm, v.pytype(vm), "__reversed__") is not None and isinstance(v, ObjectValue) and v.payload is None:
        return vm.call_special(v, "__reversed__", [])
    if isinstance(v, Const) and isinstance(v.raw, range):
        return RangeIterator(v.as_const(vm)[::-1])
    if isinstance(v, (SequenceValue, DictValue, DictView)) or isinstance(v, Const):
        return ItemsIterator(vm.unpack(v)[::-1], type(reversed([])))
    n = v.length(vm)
    return ItemsIterator([v.get_item(vm, Const(i)) for i in range(n - 1, -1, -1)], reversed)


@handles(sorted)
def sorted_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(sort_values(vm, unordered(vm, args[0]), kwargs))


def unordered(vm: Tracer, v: Value) -> list[Value]:
    """All items of an iterable, for what does not depend on the order of a set."""
    return v.items(vm) if isinstance(v, SetValue) else vm.unpack(v)


class _Sorted:
    """A value that is sorted by the program's own ``<``."""

    def __init__(self, vm: Tracer, value: Value) -> None:
        self.vm, self.value = vm, value

    def __lt__(self, other: _Sorted) -> bool:
        return self.vm.compare("<", self.value, other.value).truth(self.vm)


def sort_values(vm: Tracer, items: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The items in order, by constant keys."""
    key = kwargs.get("key", NONE)
    plain = vm.is_none(key)
    values = [v if plain else key.call(vm, [v], {}) for v in items]
    try:
        keys: list[Any] = [v.as_python(vm) for v in values]
    except NotConst:
        keys = [_Sorted(vm, v) for v in values]
    backwards = "reverse" in kwargs and kwargs["reverse"].truth(vm)
    try:
        order = sorted(range(len(items)), key=lambda i: keys[i], reverse=backwards)
    except TypeError as e:
        vm.raise_real(e)
    return [items[i] for i in order]


@simple(any)
def any_(vm: Tracer, v: Value) -> Value:
    it = v.iterate(vm)
    while (x := it.next(vm)) is not None:
        if x.truth(vm):
            return boolean(True)
    return boolean(False)


@simple(all)
def all_(vm: Tracer, v: Value) -> Value:
    it = v.iterate(vm)
    while (x := it.next(vm)) is not None:
        if not x.truth(vm):
            return boolean(False)
    return boolean(True)


@handles(sum)
def sum_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    out = kwargs.get("start", args[1] if len(args) > 1 else Const(0))
    for x in unordered(vm, args[0]):
        out = vm.binary("+", out, x)
    return out


def _extreme(name: str, op: str) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        items = unordered(vm, args[0]) if len(args) == 1 else args
        key = kwargs.get("key", NONE)
        plain = vm.is_none(key)
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            old = sys.version_info < (3, 12)
            vm.raise_(ValueError, f"{name}() {'arg is an empty sequence' if old else 'iterable argument is empty'}")
        if plain and (made := symbolic.extreme(vm, name, items)) is not None:
            return made
        best, best_key = items[0], items[0] if plain else key.call(vm, [items[0]], {})
        for x in items[1:]:
            k = x if plain else key.call(vm, [x], {})
            if isinstance(k, TensorValue) or isinstance(best_key, TensorValue):
                unsupported(f"{name}() over tensors", f"use torch.{name} or torch.{name}imum")
            if plain and any(isinstance(y, FloatValue) and not y.known for y in (best, x)):
                best = best_key = FloatValue(function=getattr(builtins, name), args=(best, x))
                continue
            if vm.compare(op, k, best_key).truth(vm):
                best, best_key = x, k
        return best

    return handler


HANDLERS[min] = _extreme("min", "<")
HANDLERS[max] = _extreme("max", ">")


@handles(math.prod)
def prod(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = vm.unpack(args[0]) if len(args) == 1 and not kwargs else []
    if any(isinstance(x, SymValue) for x in items):
        return symbolic.product(vm, items)
    return vm.fold(math.prod, args, kwargs)


@handles(math.sqrt)
def sqrt(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    root = symbolic.square_root(vm, args[0]) if len(args) == 1 and isinstance(args[0], SymValue) else None
    return vm.fold(math.sqrt, args, kwargs) if root is None else root


@handles(torch.Size.numel)
def size_numel(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return symbolic.product(vm, vm.unpack(args[0]))


@handles(divmod)
def divmod_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2 and any(isinstance(x, SymValue) for x in args):
        return TupleValue([vm.binary("//", *args), vm.binary("%", *args)])
    return vm.fold(divmod, args, kwargs)


# ---- conversions


@handles(bool)
def bool_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return boolean(args[0].truth(vm)) if args else boolean(False)


def _number(cls: type, method: str) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args and isinstance(args[0], TensorValue):
            known = vm.known_number(args[0])
            if known is not None:
                return vm.fold(cls, [known, *args[1:]], kwargs)
            if cls is int and len(args) == 1 and (read := vm.input_number(args[0])) is not None:
                return read
            found = number_of(vm, args[0], whole=True) if cls is float else None
            if found is not None:
                return found
            unsupported(
                f"{cls.__name__}() of a tensor", "keep it a tensor, or convert outside of the compiled function"
            )
        if cls is int and len(args) == 1 and isinstance(args[0], SymValue):
            return symbolic.value_of(vm, args[0].expr(vm))
        if cls is float and len(args) == 1 and isinstance(args[0], SymValue):
            return symbolic.to_float(vm, args[0])
        if args and not args[0].is_const() and find(vm, args[0].pytype(vm), method) is not None:
            return vm.call_special(args[0], method, [])
        return vm.fold(cls, args, kwargs)

    return handler


HANDLERS[int] = _number(int, "__int__")
HANDLERS[float] = _number(float, "__float__")


@handles(str)
def str_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.convert_value(args[0], 1) if len(args) == 1 else vm.fold(str, args, kwargs)


@simple(repr)
def repr_(vm: Tracer, v: Value) -> Value:
    return vm.convert_value(v, 2)


def convert_value(vm: Tracer, v: Value, how: int) -> Value:
    """``str`` (1), ``repr`` (2) or ``ascii`` (3) of a value."""
    function = {1: str, 2: repr, 3: ascii}[how]
    if isinstance(v, SymValue):
        return symbolic.formatted(vm, v, "")
    try:
        return vm.fold(function, [v])
    except NotConst:
        pass
    name = "__str__" if how == 1 else "__repr__"
    cls = v.pytype(vm)
    for n in (name, "__repr__"):
        found = find(vm, cls, n)
        if found is not None and isinstance(found.raw, FunctionType):
            return vm.call_special(v, n, [])
        if found is not None and found.owner is not object:
            break
    if isinstance(v, ExceptionValue) and how == 2:
        texts = [vm.convert_value(a, 2).as_const(vm) for a in v.args]
        return Const(f"{cls.__name__}({', '.join(texts)})")
    if isinstance(v, ExceptionValue) and how == 1:
        return exception_text(vm, v)
    unsupported(f"the text of a {cls.__name__}")


def exception_text(vm: Tracer, e: ExceptionValue) -> Value:
    """``BaseException.__str__``, or ``KeyError``'s."""
    if not e.args:
        return Const("")
    if len(e.args) == 1:
        return vm.convert_value(e.args[0], 2 if issubclass(e.cls, KeyError) else 1)
    return vm.convert_value(vm.new_tuple(e.args), 1)


def format_value(vm: Tracer, v: Value, how: int, spec: Value | None) -> Value:
    """One field of an f-string."""
    if how:
        v = vm.convert_value(v, how)
    text = spec.as_const(vm) if spec is not None else ""
    own = find(vm, v.pytype(vm), "__format__")
    if own is not None and isinstance(own.raw, FunctionType):
        return vm.call_special(v, "__format__", [Const(text)])
    if symbolic.varies(v):
        assert isinstance(v, Const)
        return symbolic.formatted(vm, v, text)
    try:
        return vm.fold(lambda x: format(x, text), [v])
    except NotConst:
        if not text:
            return vm.convert_value(v, 1)
        unsupported(f"formatting a {v.pytype(vm).__name__}")


@handles(tuple)
def tuple_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(vm.unpack(args[0]) if args else [])


@handles(list)
def list_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(vm.unpack(args[0]) if args else [])


@handles(dict)
def dict_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    out = DictValue()
    if args:
        vm.update_dict(out, args[0])
    for k, v in kwargs.items():
        out.known[k] = v
    return out


@handles(set)
def set_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    keys = [x.key(vm) for x in unordered(vm, args[0])] if args else []
    return SetValue(keys, added=bool(args) and isinstance(args[0], (ListValue, TupleValue)))


@handles(frozenset)
def frozenset_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    keys = {x.key(vm): None for x in unordered(vm, args[0])} if args else {}
    values = [vm.key_value(k) for k in keys]
    if all(v.is_const() for v in values):
        return Const(frozenset(v.as_const(vm) for v in values))
    return SetValue(keys, frozenset)


@handles(range)
def range_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.fold(range, [Const(vm.as_index(a)) if isinstance(a, TensorValue) else a for a in args])


@handles(slice)
def slice_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    parts = [NONE, args[0], NONE] if len(args) == 1 else [*args, NONE]
    return SliceValue(*parts[:3])


@handles(pow)
def pow_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 3 and not args[0].is_const():
        return vm.call_special(args[0], "__pow__", args[1:])
    return vm.binary("**", args[0], args[1]) if len(args) == 2 else vm.fold(pow, args, kwargs)


@handles(abs)
def abs_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], TensorValue):
        return vm.record(torch.abs, args, kwargs)
    if isinstance(args[0], SymValue):
        return symbolic.absolute(vm, args[0])
    return vm.fold(abs, args) if args[0].is_const() else vm.call_special(args[0], "__abs__", [])


@handles(hash)
def hash_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = find(vm, args[0].pytype(vm), "__hash__")
    if found is None or found.raw is None:
        vm.raise_(TypeError, f"unhashable type: {args[0].pytype(vm).__name__!r}")
    if not args[0].is_const() and isinstance(found.raw, FunctionType):
        return vm.call_special(args[0], "__hash__", [])
    return vm.fold(hash, args)


@handles(staticmethod, classmethod, property)
def descriptor(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    unsupported("a descriptor made inside the compiled function")


@handles(object)
def object_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


@handles(FunctionType, CodeType)
def function_type(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    unsupported("a function object made from its parts")


# ---- the operator module


def _operator(function: Any, handler: Any) -> None:
    HANDLERS[function] = handler


for _op, _function in FUNCTIONS.items():
    HANDLERS[_function] = lambda vm, args, kwargs, _op=_op: vm.binary(_op, args[0], args[1])  # type: ignore[misc]
for _op, _function in COMPARE.items():
    HANDLERS[_function] = lambda vm, args, kwargs, _op=_op: vm.compare(_op, args[0], args[1])  # type: ignore[misc]
for _op, _function in {"-": operator.neg, "+": operator.pos, "~": operator.invert}.items():
    HANDLERS[_function] = lambda vm, args, kwargs, _op=_op: vm.unary(_op, args[0])  # type: ignore[misc]
HANDLERS[operator.getitem] = lambda vm, args, kwargs: args[0].get_item(vm, args[1])
HANDLERS[operator.not_] = lambda vm, args, kwargs: boolean(not args[0].truth(vm))
HANDLERS[operator.truth] = lambda vm, args, kwargs: boolean(args[0].truth(vm))
HANDLERS[operator.is_] = lambda vm, args, kwargs: boolean(identical(vm, args[0], args[1]))
HANDLERS[operator.is_not] = lambda vm, args, kwargs: boolean(not identical(vm, args[0], args[1]))
HANDLERS[operator.contains] = lambda vm, args, kwargs: boolean(args[0].contains(vm, args[1]))


@simple(operator.setitem)
def setitem(vm: Tracer, obj: Value, key: Value, value: Value) -> Value:
    obj.set_item(vm, key, value)
    return NONE


@simple(operator.delitem)
def delitem(vm: Tracer, obj: Value, key: Value) -> Value:
    obj.del_item(vm, key)
    return NONE

"""Operators: on tensors (graph calls), on constants (evaluated), on containers, else by special methods."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from .attributes import find
from .registry import handler_of, is_static
from .signals import NotConst, unsupported
from .values import symbolic
from .values.base import Const, Derived, Value, boolean
from .values.floats import FloatValue
from .values.functions import MethodValue
from .values.mappings import DictValue, DictView, SetValue
from .values.objects import ObjectValue
from .values.sequences import DequeValue, ListValue, SequenceValue, SliceValue, TupleValue, room_for
from .values.symbolic import varies
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from .tracer import Tracer

FUNCTIONS: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}
_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
COMPARE: dict[str, Any] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARE_NAMES = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
_REFLECTED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
_NUMBERS = (int, float)
_TOTAL = frozenset(("+", "-", "*", "+=", "-=", "*="))  # never raise on numbers
# Builtin classes whose own operators and comparisons are all in this file (and its tables). Others may do anything.
_KNOWN: frozenset[type] = frozenset(
    {object, int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, OrderedDict, defaultdict}
    | {range, slice, type, type(None), type(NotImplemented), type(Ellipsis), torch.Size, torch.device, BaseException}
    | {FunctionType, BuiltinFunctionType, MethodType, type(str.join), type(object.__eq__)}
)
_UNARY: dict[str, Any] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
_UNARY_NAMES = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}


def binary(vm: Tracer, op: str, a: Value, b: Value) -> Value:
    """``a op b``; op may be in-place (``+=``)."""
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        try:
            return vm.record(FUNCTIONS[op], [a, b], {})
        except NotConst:
            if isinstance(a, TensorValue) and not isinstance(b, ObjectValue):
                unsupported(f"{op} of a tensor and a {b.pytype(vm).__name__}")
    elif isinstance(a, FloatValue) or isinstance(b, FloatValue):
        mixed = (a if isinstance(a, FloatValue) else b).combine(vm, op, a, b)  # type: ignore[attr-defined]
        if mixed is not None:
            return mixed  # type: ignore[no-any-return]
        if all(isinstance(v, FloatValue) or v.is_const() or varies(v) for v in (a, b)):
            return vm.fold(FUNCTIONS[op], [a, b])
    elif (varies(a) or varies(b)) and (made := symbolic.binary(vm, op, a, b)) is not None:
        return made
    elif (a.is_const() or varies(a)) and (b.is_const() or varies(b)):
        if isinstance(a, Const) and isinstance(b, Const) and not (a.guarded and b.guarded) and op in _TOTAL:
            if type(a.raw) in _NUMBERS and type(b.raw) in _NUMBERS:
                a.pytype(vm)
                b.pytype(vm)
                return Derived(FUNCTIONS[op](a.raw, b.raw), FUNCTIONS[op], [a, b])
        return vm.fold(FUNCTIONS[op], [a, b])
    else:
        handler = _CONTAINERS.get((type(a), op.rstrip("=")))
        if handler is not None:
            out: Value | None = handler(vm, a, b, op)
            if out is not None:
                return out
        if op == "*" and isinstance(b, SequenceValue) and (a.is_const() or varies(a)):
            return _repeat(vm, b, a, op)
        if isinstance(a, Const) and op == "%" and isinstance(a.raw, str):
            return format_percent(vm, a, b)
    return _by_methods(vm, op, a, b)


def _by_methods(vm: Tracer, op: str, a: Value, b: Value) -> Value:
    plain = op.removesuffix("=")
    name = _NAMES[plain]
    if op != plain:
        out = _try(vm, f"__i{name}__", a, b)
        if out is not None:
            return out
    left, right = a.pytype(vm), b.pytype(vm)
    reflected = left is not right and issubclass(right, left) and find(vm, right, f"__r{name}__") is not None
    order = [(f"__{name}__", a, b), (f"__r{name}__", b, a)]
    if left is right:
        order.pop()
    for method, x, y in reversed(order) if reflected else order:
        out = _try(vm, method, x, y)
        if out is not None:
            return out
    inner = [v.payload if isinstance(v, ObjectValue) and v.payload is not None else v for v in (a, b)]
    if inner[0] is not a or inner[1] is not b:  # of subclasses of builtins, whose own methods these are
        return binary(vm, op, *inner)
    for method, x, _ in order:
        _own_operator(vm, x.pytype(vm), method, op)
    what = f"unsupported operand type(s) for {op}: {left.__name__!r} and {right.__name__!r}"
    vm.raise_(TypeError, what)


def _own_operator(vm: Tracer, cls: type, method: str, op: str) -> None:
    """Break where a builtin class has an operator that this file does not know."""
    found = find(vm, cls, method)
    if found is not None and not isinstance(found.raw, FunctionType) and found.owner not in _KNOWN:
        unsupported(f"{op} of a {cls.__name__}")


def _try(vm: Tracer, method: str, x: Value, y: Value) -> Value | None:
    """``x.method(y)``, or None where it is missing or gives NotImplemented."""
    found = find(vm, x.pytype(vm), method)
    if found is None:
        return None
    if not isinstance(found.raw, FunctionType) and handler_of(found.raw) is None:
        return None  # of a builtin class, whose own kinds were tried before
    out = vm.call_special(x, method, [y])
    return None if isinstance(out, Const) and out.raw is NotImplemented else out


def unary(vm: Tracer, op: str, a: Value) -> Value:
    if isinstance(a, TensorValue):
        return vm.record(_UNARY[op], [a], {})
    if isinstance(a, symbolic.SymValue):
        return symbolic.unary(vm, op, a)
    if isinstance(a, FloatValue) and op == "-":
        return FloatValue(function=operator.neg, args=(a,))
    if a.is_const() or isinstance(a, FloatValue):
        return vm.fold(_UNARY[op], [a])
    found = find(vm, a.pytype(vm), _UNARY_NAMES[op])
    if isinstance(a, ObjectValue) and a.payload is not None and not (found and isinstance(found.raw, FunctionType)):
        return unary(vm, op, a.payload)
    if found is None:
        vm.raise_(TypeError, f"bad operand type for unary {op}: {a.pytype(vm).__name__!r}")
    return vm.call_special(a, _UNARY_NAMES[op], [])


# ---- containers


def _concat(vm: Tracer, a: SequenceValue, b: Value, op: str) -> Value | None:
    if isinstance(a, ListValue):
        if op == "+=":
            a.extend(vm, vm.unpack(b))
            return a
        if isinstance(b, ListValue):
            room_for(a.length(vm) + b.length(vm))
            return ListValue([*a.items(vm), *b.items(vm)])
    elif isinstance(b, TupleValue):
        room_for(a.length(vm) + b.length(vm))
        cls = torch.Size if a.cls is torch.Size and b.cls in (tuple, torch.Size) else tuple
        return TupleValue([*a.items(vm), *b.items(vm)], cls)
    return None


def _repeat(vm: Tracer, a: SequenceValue, b: Value, op: str) -> Value:
    n = vm.as_index(b)
    room_for(a.length(vm) * n)
    if isinstance(a, ListValue):
        if op == "*=":
            items = a.edit(vm)
            items[:] = items * n
            return a
        return ListValue(a.items(vm) * n)
    return TupleValue(a.items(vm) * n)


def _merge(vm: Tracer, a: DictValue, b: Value, op: str) -> Value | None:
    other = b.payload if isinstance(b, ObjectValue) else b
    if not isinstance(other, DictValue):
        return None
    if op == "|=":
        vm.update_dict(a, b)
        return a
    out = DictValue(dict(a.items(vm)), a.cls)
    vm.update_dict(out, b)
    return out


_SET_OPS: dict[str, Any] = {
    "|": lambda a, b: {**a, **b},
    "&": lambda a, b: {k: None for k in a if k in b},
    "-": lambda a, b: {k: None for k in a if k not in b},
    "^": lambda a, b: {**{k: None for k in a if k not in b}, **{k: None for k in b if k not in a}},
}


def _set_op(vm: Tracer, a: Value, b: Value, op: str) -> Value | None:
    left, right = set_keys(vm, a), set_keys(vm, b)
    if left is None or right is None:
        return None
    keys = _SET_OPS[op.removesuffix("=")](left, right)
    if op.endswith("=") and isinstance(a, SetValue) and a.cls is set:
        target = a.edit(vm)
        target.clear()
        target.update(keys)
        return a
    cls = a.cls if isinstance(a, SetValue) else a.pytype(vm) if isinstance(a, Const) else set
    return SetValue(keys, cls)


def set_keys(vm: Tracer, v: Value) -> dict[Any, None] | None:
    """The keys of a set, frozenset or keys view; None for anything else."""
    if isinstance(v, SetValue):
        return v.keys(vm)
    if isinstance(v, DictView):
        return {x.key(vm): None for x in v.all(vm)}
    if isinstance(v, Const) and isinstance(v.raw, frozenset):
        return {vm.internal_key(x, None, 0): None for x in v.as_const(vm)}
    return None


_CONTAINERS: dict[tuple[type, str], Any] = {
    (ListValue, "+"): _concat,
    (TupleValue, "+"): _concat,
    (ListValue, "*"): _repeat,
    (TupleValue, "*"): _repeat,
    (DictValue, "|"): _merge,
    **{(cls, op): _set_op for cls in (SetValue, DictView, Const) for op in _SET_OPS},
}


def format_percent(vm: Tracer, a: Value, b: Value) -> Value:
    """``text % values``."""
    try:
        return vm.fold(operator.mod, [a, b])
    except NotConst:
        unsupported("% formatting of an object whose text is not known while compiling")


# ---- comparison


def compare(vm: Tracer, op: str, a: Value, b: Value) -> Value:
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        try:
            return vm.record(COMPARE[op], [a, b], {})
        except NotConst:
            other = (b if isinstance(a, TensorValue) else a).pytype(vm)
            own = [find(vm, other, name) for name in ("__eq__", "__ne__")]  # object's __ne__ asks __eq__
            if op in ("==", "!=") and all(f is not None and f.owner in _KNOWN for f in own):
                return boolean(op == "!=")
            unsupported(f"{op} of a tensor and a {other.__name__}")
    if isinstance(a, symbolic.SymValue) or isinstance(b, symbolic.SymValue):
        decided = symbolic.compare(vm, op, a, b)
        if decided is not None:
            return decided
    if isinstance(a, Const) and isinstance(b, Const):
        return vm.fold(COMPARE[op], [a, b])
    if isinstance(a, FloatValue) or isinstance(b, FloatValue):
        return compare_floats(vm, op, a, b)
    if isinstance(a, MethodValue) and isinstance(b, MethodValue) and op in ("==", "!="):
        same = vm.identical(a.func, b.func) and vm.identical(a.owner, b.owner)
        return boolean(same == (op == "=="))
    if isinstance(a, SequenceValue) and isinstance(b, SequenceValue) and _same_kind(a, b):
        return _compare_sequences(vm, op, a, b)
    if isinstance(a, SliceValue) and b.is_const() or isinstance(b, SliceValue) and a.is_const():
        return vm.fold(COMPARE[op], [a, b])
    left, right = set_keys(vm, a), set_keys(vm, b)
    if left is not None and right is not None:
        return boolean(COMPARE[op](left.keys(), right.keys()))
    if isinstance(a, DictValue) and isinstance(b, DictValue) and op in ("==", "!="):
        return boolean(_dicts_equal(vm, a, b) == (op == "=="))
    return _compare_by_methods(vm, op, a, b)


def compare_floats(vm: Tracer, op: str, a: Value, b: Value) -> Value:
    """A comparison with a float of the graph: with a number, the outcome alone is guarded."""
    if isinstance(a, FloatValue) and isinstance(b, Const) and type(b.raw) in _NUMBERS:
        return boolean(a.compared(vm, COMPARE[op], b.as_const(vm)))
    if isinstance(b, FloatValue) and isinstance(a, Const) and type(a.raw) in _NUMBERS:
        return boolean(b.compared(vm, COMPARE[op], a.as_const(vm), swapped=True))
    for x, y in ((a, b), (b, a)):
        if isinstance(x, FloatValue) and not isinstance(y, (FloatValue, Const)):
            return _compare_by_methods(vm, op, a, b)
    return vm.fold(COMPARE[op], [a, b])


def _same_kind(a: SequenceValue, b: SequenceValue) -> bool:
    kinds = [(isinstance(x, ListValue), isinstance(x, DequeValue)) for x in (a, b)]
    return kinds[0] == kinds[1]


def _compare_sequences(vm: Tracer, op: str, a: SequenceValue, b: SequenceValue) -> Value:
    x, y = a.items(vm), b.items(vm)
    if op in ("==", "!=") and len(x) != len(y):
        return boolean(op == "!=")
    for p, q in zip(x, y):
        if not vm.same_or_equal(p, q):
            return boolean(op == "!=") if op in ("==", "!=") else compare(vm, op, p, q)
    return boolean(COMPARE[op](len(x), len(y)))


def _dicts_equal(vm: Tracer, a: DictValue, b: DictValue) -> bool:
    x, y = a.items(vm), dict(b.items(vm))
    if len(x) != len(y):
        return False
    if issubclass(a.cls, OrderedDict) and issubclass(b.cls, OrderedDict) and [k for k, _ in x] != list(y):
        return False
    return all(k in y and vm.same_or_equal(v, y[k]) for k, v in x)


def _compare_by_methods(vm: Tracer, op: str, a: Value, b: Value) -> Value:
    left, right = a.pytype(vm), b.pytype(vm)
    order = [(op, a, b), (_REFLECTED[op], b, a)]
    if left is not right and issubclass(right, left):
        order.reverse()
    for which, x, y in order:
        found = find(vm, x.pytype(vm), f"__{_COMPARE_NAMES[which]}__")
        if found is None or found.owner is object:
            continue
        if not isinstance(found.raw, FunctionType):  # of a builtin class: compares with its own kind only
            inner, other = getattr(x, "payload", None), getattr(y, "payload", None)
            if inner is not None or other is not None:
                return compare(vm, which, inner or x, other or y)
            if found.owner not in _KNOWN and not (isinstance(x, Const) and is_static(x.raw)):
                unsupported(f"{which} of a {x.pytype(vm).__name__}")
            continue
        out = vm.call_special(x, f"__{_COMPARE_NAMES[which]}__", [y])
        if not (isinstance(out, Const) and out.raw is NotImplemented):
            return out
    if op == "!=":  # object.__ne__ inverts __eq__
        found = find(vm, left, "__eq__")
        if found is not None and found.owner is not object:
            out = vm.call_special(a, "__eq__", [b])
            if not (isinstance(out, Const) and out.raw is NotImplemented):
                return boolean(not out.truth(vm))
    if op in ("==", "!="):
        return boolean(vm.identical(a, b) == (op == "=="))
    vm.raise_(TypeError, f"{op!r} not supported between instances of {left.__name__!r} and {right.__name__!r}")


def get_item(vm: Tracer, obj: Value, key: Value) -> Value:
    """``obj[key]``; a tensor index makes an index of any tensor-like."""
    return obj.get_item(vm, key)

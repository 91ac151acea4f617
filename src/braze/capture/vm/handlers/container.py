"""Methods of lists, tuples and strings."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ..registry import HANDLERS, handles, simple
from ..signals import NotConst, unsupported
from ..values.base import NONE, NOT_IMPLEMENTED, Const, Value, boolean
from ..values.iterators import ItemsIterator
from ..values.objects import ObjectValue
from ..values.sequences import DequeValue, ListValue, SequenceValue, TupleValue
from .builtin import sort_values

if TYPE_CHECKING:
    from ..tracer import Tracer

ONE = Const(1)


def as_list(vm: Tracer, v: Value) -> ListValue:
    """The list in a value: itself, or the content of an instance of a list subclass."""
    inner = v.payload if isinstance(v, ObjectValue) else v
    if not isinstance(inner, ListValue):
        vm.raise_(TypeError, f"descriptor requires a 'list' object but received a {v.pytype(vm).__name__!r}")
    return inner


def as_sequence(vm: Tracer, v: Value) -> SequenceValue:
    inner = v.payload if isinstance(v, ObjectValue) else v
    if not isinstance(inner, SequenceValue):
        vm.raise_(TypeError, f"descriptor requires a sequence but received a {v.pytype(vm).__name__!r}")
    return inner


@simple(list.append, deque.append)
def append(vm: Tracer, v: Value, item: Value) -> Value:
    as_list(vm, v).extend(vm, [item])
    return NONE


@simple(list.extend, deque.extend)
def extend(vm: Tracer, v: Value, items: Value) -> Value:
    as_list(vm, v).extend(vm, vm.unpack(items))
    return NONE


@simple(deque.appendleft)
def appendleft(vm: Tracer, v: Value, item: Value) -> Value:
    target = as_list(vm, v)
    items = target.edit(vm)
    items.insert(0, item)
    if isinstance(target, DequeValue) and target.maxlen is not None:
        del items[target.maxlen :]
    return NONE


@simple(deque.popleft)
def popleft(vm: Tracer, v: Value) -> Value:
    items = as_list(vm, v).edit(vm)
    if not items:
        vm.raise_(IndexError, "pop from an empty deque")
    return items.pop(0)


@simple(deque.extendleft)
def extendleft(vm: Tracer, v: Value, items: Value) -> Value:
    for x in vm.unpack(items):
        appendleft(vm, v, x)
    return NONE


@simple(deque.rotate)
def rotate(vm: Tracer, v: Value, n: Value = ONE) -> Value:
    items = as_list(vm, v).edit(vm)
    if items:
        at = -vm.as_index(n) % len(items)
        items[:] = items[at:] + items[:at]
    return NONE


@handles(deque)
def make_deque(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bound = kwargs.get("maxlen", args[1] if len(args) > 1 else NONE).as_const(vm)
    out = DequeValue([], bound)
    out.extend(vm, vm.unpack(args[0]) if args else [])
    return out


@simple(list.insert)
def insert(vm: Tracer, v: Value, index: Value, item: Value) -> Value:
    as_list(vm, v).edit(vm).insert(vm.as_index(index), item)
    return NONE


@simple(list.pop, deque.pop)
def pop(vm: Tracer, v: Value, index: Value = NONE) -> Value:
    items = as_list(vm, v).edit(vm)
    if not items:
        vm.raise_(IndexError, "pop from an empty deque" if isinstance(v, DequeValue) else "pop from empty list")
    try:
        return items.pop() if index is NONE else items.pop(vm.as_index(index))
    except IndexError as e:
        vm.raise_real(e)


@simple(list.remove)
def remove(vm: Tracer, v: Value, item: Value) -> Value:
    items = as_list(vm, v).edit(vm)
    for i, x in enumerate(items):
        if vm.same_or_equal(x, item):
            del items[i]
            return NONE
    vm.raise_(ValueError, "list.remove(x): x not in list")


@simple(deque.clear, list.clear)
def clear(vm: Tracer, v: Value) -> Value:
    as_list(vm, v).edit(vm).clear()
    return NONE


@simple(list.copy)
def copy(vm: Tracer, v: Value) -> Value:
    return ListValue(as_list(vm, v).items(vm))


@simple(deque.reverse, list.reverse)
def reverse(vm: Tracer, v: Value) -> Value:
    as_list(vm, v).edit(vm).reverse()
    return NONE


@handles(list.sort)
def sort(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = as_list(vm, args[0])
    target.edit(vm)[:] = sort_values(vm, target.items(vm), kwargs)
    return NONE


@handles(list.index, tuple.index)
def index(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    seq = as_sequence(vm, args[0])
    items = seq.items(vm)
    bounds = [vm.as_index(a) for a in args[2:]]
    for i in range(*slice(*(bounds or [0]), *([None] if len(bounds) < 2 else [])).indices(len(items))):
        if vm.same_or_equal(items[i], args[1]):
            return Const(i)
    if isinstance(seq, ListValue):
        vm.raise_(ValueError, f"{_text(vm, args[1])} is not in list")
    vm.raise_(ValueError, "tuple.index(x): x not in tuple")


def _text(vm: Tracer, v: Value) -> str:
    try:
        return repr(v.as_python(vm))
    except NotConst:
        return "x"


@simple(list.count, tuple.count)
def count(vm: Tracer, v: Value, item: Value) -> Value:
    return Const(sum(vm.same_or_equal(x, item) for x in as_sequence(vm, v).items(vm)))


@simple(deque.__iter__, list.__iter__, tuple.__iter__)
def iterate(vm: Tracer, v: Value) -> Value:
    return as_sequence(vm, v).iterate(vm)


@simple(deque.__len__, list.__len__, tuple.__len__)
def length(vm: Tracer, v: Value) -> Value:
    return Const(as_sequence(vm, v).length(vm))


@simple(deque.__getitem__, list.__getitem__, tuple.__getitem__)
def getitem(vm: Tracer, v: Value, key: Value) -> Value:
    return as_sequence(vm, v).get_item(vm, key)


@simple(deque.__setitem__, list.__setitem__)
def setitem(vm: Tracer, v: Value, key: Value, value: Value) -> Value:
    as_list(vm, v).set_item(vm, key, value)
    return NONE


@simple(list.__delitem__)
def delitem(vm: Tracer, v: Value, key: Value) -> Value:
    as_list(vm, v).del_item(vm, key)
    return NONE


@simple(deque.__contains__, list.__contains__, tuple.__contains__)
def contains(vm: Tracer, v: Value, item: Value) -> Value:
    return boolean(as_sequence(vm, v).contains(vm, item))


@simple(list.__reversed__)
def reversed_(vm: Tracer, v: Value) -> Value:
    return ItemsIterator(as_list(vm, v).items(vm)[::-1], type(reversed([])))


@simple(list.__init__)
def list_init(vm: Tracer, v: Value, items: Value = NONE) -> Value:
    as_list(vm, v).edit(vm)[:] = vm.unpack(items) if items is not NONE else []
    return NONE


def _binary(op: str) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        a, b = (x.payload if isinstance(x, ObjectValue) and x.payload is not None else x for x in args)
        return vm.binary(op, a, b)

    return handler


_cls: Any
for _cls in (list, tuple):
    HANDLERS[_cls.__add__] = _binary("+")
    HANDLERS[_cls.__mul__] = _binary("*")
HANDLERS[list.__iadd__] = _binary("+=")
HANDLERS[list.__imul__] = _binary("*=")


def _comparison(cls: type, op: str) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        a, b = (x.payload if isinstance(x, ObjectValue) and x.payload is not None else x for x in args)
        return vm.compare(op, a, b) if issubclass(b.pytype(vm), cls) else NOT_IMPLEMENTED

    return handler


for _cls in (list, tuple, dict, set, frozenset):
    for _name, _op in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
        if _cls is not dict or _op in ("==", "!="):
            HANDLERS[_cls.__dict__[f"__{_name}__"]] = _comparison(_cls, _op)


# ---- construction of tuple and list subclasses


@handles(tuple.__new__)
def tuple_new(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_const(vm)
    items = vm.unpack(args[1]) if len(args) > 1 else []
    if cls.__dictoffset__ == 0:
        return TupleValue(items, cls)
    return ObjectValue(cls, payload=TupleValue(items))


@handles(list.__new__)
def list_new(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_const(vm)
    return ListValue([]) if cls is list else ObjectValue(cls, payload=ListValue([]))


@handles(torch.Size)
def size(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(vm.unpack(args[0]) if args else [], torch.Size)


@simple(torch.Size.numel)
def numel(vm: Tracer, v: Value) -> Value:
    out: Value = Const(1)
    for x in as_sequence(vm, v).items(vm):
        out = vm.binary("*", out, x)
    return out


# ---- strings


@handles(str.join)
def join(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        return vm.fold(str.join, [args[0], ListValue(vm.unpack(args[1]))])
    except NotConst:
        unsupported("str.join() of texts that are not known while compiling")


@handles(str.format)
def str_format(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    def known(v: Value) -> Value:
        return v if v.is_const() else vm.convert_value(v, 1)

    return vm.fold(str.format, [known(a) for a in args], {k: known(v) for k, v in kwargs.items()})

"""Truth, length, iteration, membership, hashing, identity: Python's protocols on values, and helpers around them."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .attributes import find
from .registry import trusted_module
from .signals import NotConst, Raised, unsupported
from .values.base import NONE, Const, ObjectKey, TupleKey, Value
from .values.functions import MethodValue
from .values.objects import ObjectValue
from .values.sequences import SequenceValue, SliceValue, TupleValue, room_for
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from braze.capture.source import Source

    from .tracer import Tracer


def protocol_truth(vm: Tracer, v: Value) -> bool:
    cls = v.pytype(vm)
    if find(vm, cls, "__bool__") is not None:
        out = vm.call_special(v, "__bool__", [])
        return out.truth(vm)
    if find(vm, cls, "__len__") is not None:
        return v.length(vm) > 0
    return True


def protocol_len(vm: Tracer, v: Value) -> int:
    cls = v.pytype(vm)
    if find(vm, cls, "__len__") is None:
        vm.raise_(TypeError, f"object of type {cls.__name__!r} has no len()")
    out: int = vm.call_special(v, "__len__", []).as_const(vm)
    return out


def protocol_iter(vm: Tracer, v: Value) -> Value:
    cls = v.pytype(vm)
    found = find(vm, cls, "__iter__")
    if found is not None and found.raw is not None:
        return vm.call_special(v, "__iter__", [])
    if find(vm, cls, "__getitem__") is not None and not isinstance(v, Const):
        return _index_iterator(vm, v)
    if isinstance(v, Const):
        return vm.wrap_iterable(v)
    vm.raise_(TypeError, f"{cls.__name__!r} object is not iterable")


def _index_iterator(vm: Tracer, v: Value) -> Value:
    """Iteration by ``__getitem__`` with 0, 1, 2, …"""
    from .values.iterators import LazyIterator

    state = [0]

    def step(vm: Tracer) -> Value | None:
        try:
            out = v.get_item(vm, Const(state[0]))
        except Raised as e:
            if not vm.exception_matches(e.value, IndexError):
                raise
            return None
        state[0] += 1
        return out

    return LazyIterator(type(iter(_Indexed())), step, lambda: [v, Const(state[0])], _indexed_from)


def _indexed_from(obj: Any, index: int) -> Any:
    out: Any = iter(obj)
    out.__setstate__(index)
    return out


class _Indexed:
    def __getitem__(self, i: int) -> int:
        return i


def protocol_next(vm: Tracer, v: Value) -> Value | None:
    try:
        return vm.call_special(v, "__next__", [])
    except Raised as e:
        if vm.exception_matches(e.value, StopIteration):
            return None
        raise


def protocol_contains(vm: Tracer, v: Value, item: Value) -> bool:
    cls = v.pytype(vm)
    found = find(vm, cls, "__contains__")
    if found is not None and found.raw is not None:
        return vm.call_special(v, "__contains__", [item]).truth(vm)
    it = v.iterate(vm)
    while (x := it.next(vm)) is not None:
        if same_or_equal(vm, x, item):
            return True
    return False


def const_contains(vm: Tracer, v: Const, item: Value) -> bool:
    """``item in v`` for a constant v: a str, bytes, range or frozenset, an enum's class."""
    inner = item.payload if isinstance(item, ObjectValue) and item.payload is not None else item
    try:
        return vm.fold(_contains, [v, inner]).truth(vm)
    except NotConst:
        cls = inner.pytype(vm)
        own = [find(vm, cls, "__eq__"), find(vm, cls, "__hash__")]
        if isinstance(v.raw, (range, frozenset)) and all(f is not None and f.owner is object for f in own):
            return False
        unsupported(f"a {cls.__name__} in a {type(v.raw).__name__}")


def _contains(container: Any, item: Any) -> bool:
    return item in container


def protocol_getitem(vm: Tracer, v: Value, key: Value) -> Value:
    if isinstance(v, Const) and isinstance(v.raw, type):
        return _class_getitem(vm, v, key)
    return vm.call_special(v, "__getitem__", [key])


def _class_getitem(vm: Tracer, v: Const, key: Value) -> Value:
    """``cls[key]``: the metaclass's ``__getitem__``, else ``__class_getitem__``."""
    cls = v.raw
    if find(vm, type(cls), "__getitem__") is not None:
        return vm.call_special(v, "__getitem__", [key])
    try:
        return vm.fold(operator.getitem, [v, key])
    except NotConst:
        unsupported(f"subscripting the class {cls.__name__}")


def protocol_key(vm: Tracer, v: Value) -> Hashable:
    """How objects that are no constants hash: by identity, unless their class says otherwise."""
    cls = v.pytype(vm)
    hasher = find(vm, cls, "__hash__")
    if hasher is None or hasher.raw is None:
        vm.raise_(TypeError, f"unhashable type: {cls.__name__!r}")
    if hasher.raw is not object.__hash__ and isinstance(hasher.raw, FunctionType):
        return ObjectKey(vm, v, vm.call_special(v, "__hash__", []).as_const(vm))
    if isinstance(v, ObjectValue) and v.payload is not None and isinstance(v.payload, (Const, TupleValue)):
        return v.payload.key(vm)
    if hasher.owner is not object and not isinstance(hasher.raw, FunctionType):
        unsupported(f"a {cls.__name__} as a key")
    return v


def key_value(vm: Tracer, key: Hashable) -> Value:
    """The value of a dict key."""
    if isinstance(key, Value):
        return key
    if isinstance(key, ObjectKey):
        return key.value
    if isinstance(key, TupleKey):
        return TupleValue([key_value(vm, k) for k in key])
    return vm.wrap_static(key)


def internal_key(vm: Tracer, raw: Any, source: Source | None, index: int) -> Hashable:
    """The internal key of a real key of an existing dict or set."""
    if isinstance(raw, tuple) and type(raw) is tuple:
        return TupleKey(internal_key(vm, k, None, 0) for k in raw)
    known = vm.known_value(raw)
    if known is not None and not known.is_const():
        return known.key(vm)
    v = vm.wrap(raw, source.dict_key(index) if source is not None else None, keep=True)
    return raw if isinstance(v, Const) else v.key(vm)


def as_index(vm: Tracer, key: Value) -> Any:
    """An int or slice for a list or tuple; TypeError in the program for anything else."""
    if isinstance(key, TensorValue):
        known = vm.known_number(key)
        if known is not None:
            return operator.index(known.raw)
        unsupported("indexing a Python list with a tensor", "use .item() outside of the compiled function")
    if isinstance(key, SliceValue):
        return key.as_const(vm)
    if key.is_const():
        raw = key.as_const(vm)
        if isinstance(raw, (int, slice)):
            return raw
        if hasattr(raw, "__index__"):
            return operator.index(raw)
    elif find(vm, key.pytype(vm), "__index__") is not None:
        return as_index(vm, vm.call_special(key, "__index__", []))
    vm.raise_(TypeError, f"list indices must be integers or slices, not {key.pytype(vm).__name__}")


def unpack(vm: Tracer, v: Value) -> list[Value]:
    """All items of an iterable."""
    if isinstance(v, SequenceValue):
        return list(v.items(vm))
    it = v.iterate(vm)
    out = []
    while (x := it.next(vm)) is not None:
        out.append(x)
        room_for(len(out))
    return out


def identical(vm: Tracer, a: Value, b: Value) -> bool:
    """``a is b``."""
    if a is b:
        return True
    if isinstance(a, Const) and isinstance(b, Const):
        if a.raw is None or b.raw is None:
            return _none_identity(vm, a, b)
        return a.as_const(vm) is b.as_const(vm)
    if isinstance(a, MethodValue) or isinstance(b, MethodValue):
        return False
    if a.source is not None and b.source is not None and not isinstance(a, Const) and not isinstance(b, Const):
        vm.guards.distinct([a.source, b.source])  # existing objects have one value each
        return False
    if isinstance(a, ObjectValue) and isinstance(b, ObjectValue):
        return False
    for v in (a, b):
        if isinstance(v, TensorValue) and v.raw is not None:
            if isinstance(b if v is a else a, TensorValue):
                return False
            v.pytype(vm)
        elif v.source is not None:
            v.pytype(vm)
    return False


def is_none(vm: Tracer, v: Value) -> bool:
    """``v is None``."""
    return identical(vm, v, NONE)


def _none_identity(vm: Tracer, a: Const, b: Const) -> bool:
    """Only None-ness matters: a value that is not None need not be pinned."""
    if (a.raw is None) == (b.raw is None):
        a.as_const(vm)
        b.as_const(vm)
        return True
    for v in (a, b):
        if not v.guarded:
            if v.raw is None:
                v.as_const(vm)
            elif isinstance(v.raw, (int, float, str, FunctionType)):
                vm.guards.not_none(v.source)
            else:
                v.as_const(vm)
    return False


def same_or_equal(vm: Tracer, a: Value, b: Value) -> bool:
    """``a is b or a == b``: how containers compare."""
    if a is b:
        return True
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        unsupported("comparing tensors inside a container")
    out = vm.compare("==", a, b)
    return out.truth(vm)


def wrap_iterable(vm: Tracer, v: Const) -> Value:
    """``iter`` of a constant: a str, bytes, range, frozenset, class with a metaclass ``__iter__``."""
    from .values.iterators import ItemsIterator, RangeIterator

    raw = v.as_const(vm)
    if isinstance(raw, range):
        return RangeIterator(raw)
    if isinstance(raw, (str, bytes, frozenset)):
        return ItemsIterator([Const(x) for x in raw], type(iter(raw)))
    if isinstance(raw, type) and find(vm, type(raw), "__iter__") is not None:
        return vm.call_special(v, "__iter__", [])
    vm.raise_(TypeError, f"{type(raw).__name__!r} object is not iterable")


def isinstance_(vm: Tracer, v: Value, classes: Any) -> bool:
    """``isinstance`` of a value for a real class, union or tuple of classes."""
    if isinstance(classes, tuple):
        return any(isinstance_(vm, v, c) for c in classes)
    args = getattr(classes, "__args__", None)
    if args is not None and not isinstance(classes, type):
        return any(isinstance_(vm, v, type(None) if c is None else c) for c in args)
    cls = v.pytype(vm)
    if not isinstance(classes, type):
        vm.raise_(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
    if classes in cls.__mro__:
        return True
    check = find(vm, type(classes), "__instancecheck__")
    if check is None or check.raw is type.__instancecheck__:
        return False
    raw = getattr(v, "raw", None)
    if raw is None:
        return issubclass(cls, classes)
    out = isinstance(raw, classes)
    if v.source is not None and not trusted_module(classes.__module__):
        vm.guards.instance_of(v.source, classes, out)
    return out

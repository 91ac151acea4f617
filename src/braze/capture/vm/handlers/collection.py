"""Methods of dicts, ordered dicts, default dicts, sets and dict views."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..attributes import find
from ..operators import set_keys
from ..registry import HANDLERS, class_method, handles, simple
from ..signals import unsupported
from ..values.base import NONE, Const, Value, boolean
from ..values.iterators import ItemsIterator
from ..values.mappings import DictValue, DictView, SetValue
from ..values.objects import ObjectValue
from ..values.sequences import TupleValue

if TYPE_CHECKING:
    from ..tracer import Tracer


def as_dict(vm: Tracer, v: Value) -> DictValue:
    """The dict in a value: itself, or the content of an instance of a dict subclass."""
    inner = v.payload if isinstance(v, ObjectValue) else v
    if not isinstance(inner, DictValue):
        vm.raise_(TypeError, f"descriptor requires a 'dict' object but received a {v.pytype(vm).__name__!r}")
    return inner


def mapping_items(vm: Tracer, v: Value) -> list[tuple[Value, Value]]:
    """(key, value) pairs of a mapping, as ``dict.update`` reads them."""
    inner = v.payload if isinstance(v, ObjectValue) else v
    if isinstance(inner, DictValue):
        return [(vm.key_value(k), x) for k, x in inner.items(vm)]
    if find(vm, v.pytype(vm), "keys") is None:
        vm.raise_(TypeError, f"{v.pytype(vm).__name__!r} object is not a mapping")
    keys = vm.unpack(v.get_attr(vm, "keys").call(vm, [], {}))
    return [(k, v.get_item(vm, k)) for k in keys]


def update_dict(vm: Tracer, target: Value, source: Value) -> None:
    """``dict.update(target, source)`` with a mapping or an iterable of pairs."""
    d = as_dict(vm, target)
    inner = source.payload if isinstance(source, ObjectValue) else source
    if isinstance(inner, DictValue) or find(vm, source.pytype(vm), "keys") is not None:
        for k, v in mapping_items(vm, source):
            d.set_item(vm, k, v)
        return
    for pair in vm.unpack(source):
        items = vm.unpack(pair)
        if len(items) != 2:
            vm.raise_(ValueError, f"dictionary update sequence element has length {len(items)}; 2 is required")
        d.set_item(vm, items[0], items[1])


@handles(dict.update, OrderedDict.update)
def update(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = args[0]
    setter = find(vm, target.pytype(vm), "__setitem__")
    if isinstance(target, ObjectValue) and setter is not None and isinstance(setter.raw, FunctionType):
        pairs = mapping_items(vm, args[1]) if len(args) > 1 else []
        for k, v in [*pairs, *((Const(k), v) for k, v in kwargs.items())]:
            target.set_item(vm, k, v)
        return NONE
    if len(args) > 1:
        update_dict(vm, target, args[1])
    for name, v in kwargs.items():
        as_dict(vm, target).set_item(vm, Const(name), v)
    return NONE


@simple(dict.get)
def get(vm: Tracer, v: Value, key: Value, default: Value = NONE) -> Value:
    found = as_dict(vm, v).find(vm, key.key(vm))
    return default if found is None else found


@simple(dict.setdefault, OrderedDict.setdefault)
def setdefault(vm: Tracer, v: Value, key: Value, default: Value = NONE) -> Value:
    d = as_dict(vm, v)
    found = d.find(vm, key.key(vm))
    if found is not None:
        return found
    d.set_item(vm, key, default)
    return default


@handles(dict.pop, OrderedDict.pop)
def pop(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = as_dict(vm, args[0]).remove(vm, args[1].key(vm))
    if found is not None:
        return found
    if "default" in kwargs or len(args) > 2:
        return kwargs.get("default", args[-1])
    vm.raise_values(KeyError, [args[1]])


@handles(dict.popitem, OrderedDict.popitem)
def popitem(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    d = as_dict(vm, args[0])
    items = d.items(vm)
    if not items:
        vm.raise_(KeyError, "popitem(): dictionary is empty")
    last = (kwargs.get("last") or (args[1] if len(args) > 1 else Const(True))).truth(vm)
    k, v = items[-1 if last else 0]
    d.remove(vm, k)
    return TupleValue([vm.key_value(k), v])


@handles(OrderedDict.move_to_end)
def move_to_end(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    d = as_dict(vm, args[0])
    last = (kwargs.get("last") or (args[2] if len(args) > 2 else Const(True))).truth(vm)
    if d.raw is not None or not last:
        unsupported("OrderedDict.move_to_end() in the compiled function")
    key = args[1].key(vm)
    if key not in d.known:
        vm.raise_values(KeyError, [args[1]])
    d.known[key] = d.known.pop(key)
    return NONE


@simple(dict.clear, OrderedDict.clear)
def clear(vm: Tracer, v: Value) -> Value:
    as_dict(vm, v).clear(vm)
    return NONE


@simple(dict.copy, OrderedDict.copy)
def copy(vm: Tracer, v: Value) -> Value:
    d = as_dict(vm, v)
    cls = d.cls if not isinstance(v, ObjectValue) else dict
    out = DictValue(dict(d.items(vm)), cls)
    out.factory = d.factory
    return out


HANDLERS[defaultdict.copy] = HANDLERS[dict.copy]


def _view(kind: str) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return DictView(as_dict(vm, args[0]), kind)

    return handler


for _kind in ("keys", "values", "items"):
    HANDLERS[getattr(dict, _kind)] = HANDLERS[getattr(OrderedDict, _kind)] = _view(_kind)


@class_method(dict.fromkeys, OrderedDict.fromkeys)
def fromkeys(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_const(vm)
    value = args[2] if len(args) > 2 else NONE
    if cls not in (dict, OrderedDict):
        unsupported(f"{cls.__name__}.fromkeys()")
    return DictValue({k.key(vm): value for k in vm.unpack(args[1])}, cls)


# ---- special methods, as subclasses reach them through super()


@simple(dict.__getitem__)
def getitem(vm: Tracer, v: Value, key: Value) -> Value:
    d = as_dict(vm, v)
    if isinstance(v, ObjectValue) and find(vm, v.cls, "__missing__") is not None:
        found = d.find(vm, key.key(vm))
        return found if found is not None else vm.call_special(v, "__missing__", [key])
    return d.get_item(vm, key)


@simple(dict.__setitem__, OrderedDict.__setitem__)
def setitem(vm: Tracer, v: Value, key: Value, value: Value) -> Value:
    as_dict(vm, v).set_item(vm, key, value)
    return NONE


@simple(dict.__delitem__, OrderedDict.__delitem__)
def delitem(vm: Tracer, v: Value, key: Value) -> Value:
    as_dict(vm, v).del_item(vm, key)
    return NONE


@simple(dict.__contains__)
def contains(vm: Tracer, v: Value, key: Value) -> Value:
    return boolean(as_dict(vm, v).contains(vm, key))


@simple(dict.__len__)
def length(vm: Tracer, v: Value) -> Value:
    return Const(as_dict(vm, v).length(vm))


@simple(dict.__iter__, OrderedDict.__iter__)
def iterate(vm: Tracer, v: Value) -> Value:
    return as_dict(vm, v).iterate(vm)


@simple(dict.__reversed__, OrderedDict.__reversed__)
def reversed_(vm: Tracer, v: Value) -> Value:
    return ItemsIterator(as_dict(vm, v).keys(vm)[::-1])


@handles(dict.__init__, OrderedDict.__init__)
def dict_init(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1 or kwargs:
        update(vm, args, kwargs)
    return NONE


@handles(dict.__new__, OrderedDict.__new__)
def dict_new(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_const(vm)
    base = OrderedDict if issubclass(cls, OrderedDict) else dict
    return DictValue({}, cls) if cls in (dict, OrderedDict) else ObjectValue(cls, payload=DictValue({}, base))


@handles(OrderedDict)
def ordered_dict(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    out = DictValue({}, OrderedDict)
    if args:
        update_dict(vm, out, args[0])
    for k, v in kwargs.items():
        out.known[k] = v
    return out


@handles(defaultdict)
def default_dict(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    out = DictValue({}, defaultdict)
    out.factory = args[0] if args else NONE
    if len(args) > 1:
        update_dict(vm, out, args[1])
    for k, v in kwargs.items():
        out.known[k] = v
    return out


@simple(dict.__or__)
def union(vm: Tracer, a: Value, b: Value) -> Value:
    return vm.binary("|", as_dict(vm, a), b)


# ---- sets


def as_set(vm: Tracer, v: Value) -> SetValue:
    inner = v.payload if isinstance(v, ObjectValue) else v
    if not isinstance(inner, SetValue):
        vm.raise_(TypeError, f"descriptor requires a 'set' object but received a {v.pytype(vm).__name__!r}")
    return inner


def _keys(vm: Tracer, v: Value) -> dict[Any, None]:
    keys = set_keys(vm, v)
    return keys if keys is not None else {x.key(vm): None for x in vm.unpack(v)}


@simple(set.add)
def add(vm: Tracer, v: Value, item: Value) -> Value:
    as_set(vm, v).edit(vm)[item.key(vm)] = None
    return NONE


@simple(set.discard)
def discard(vm: Tracer, v: Value, item: Value) -> Value:
    as_set(vm, v).edit(vm).pop(item.key(vm), None)
    return NONE


@simple(set.remove)
def set_remove(vm: Tracer, v: Value, item: Value) -> Value:
    keys = as_set(vm, v).edit(vm)
    if item.key(vm) not in keys:
        vm.raise_values(KeyError, [item])
    del keys[item.key(vm)]
    return NONE


@simple(set.clear)
def set_clear(vm: Tracer, v: Value) -> Value:
    as_set(vm, v).edit(vm).clear()
    return NONE


@simple(set.copy)
def set_copy(vm: Tracer, v: Value) -> Value:
    return SetValue(as_set(vm, v).keys(vm))


@handles(set.update)
def set_update(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    new = [_keys(vm, a) for a in args[1:]]
    target = as_set(vm, args[0]).edit(vm)
    for keys in new:
        target.update(keys)
    return NONE


def _set_method(op: str) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        out: Value = SetValue(_keys(vm, args[0]), args[0].pytype(vm))
        for a in args[1:]:
            out = vm.binary(op, out, SetValue(_keys(vm, a)))
        return out

    return handler


for _name, _op in {"union": "|", "intersection": "&", "difference": "-", "symmetric_difference": "^"}.items():
    HANDLERS[getattr(set, _name)] = HANDLERS[getattr(frozenset, _name)] = _set_method(_op)


def _set_test(test: Any) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return boolean(test(_keys(vm, args[0]).keys(), _keys(vm, args[1]).keys()))

    return handler


for _cls in (set, frozenset):
    HANDLERS[_cls.issubset] = _set_test(lambda a, b: a <= b)
    HANDLERS[_cls.issuperset] = _set_test(lambda a, b: a >= b)
    HANDLERS[_cls.isdisjoint] = _set_test(lambda a, b: a.isdisjoint(b))


@simple(set.pop)
def set_pop(vm: Tracer, v: Value) -> Value:
    unsupported("set.pop(), whose result is arbitrary")

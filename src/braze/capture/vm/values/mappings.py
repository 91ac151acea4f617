"""Dictionaries (instance dictionaries among them), their views, and sets.

Keys are stored as :meth:`Value.key` gives them: the object itself for constants, a ``TupleKey`` for tuples, the value
for objects that hash by identity.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from ..signals import NotConst, unsupported
from .base import NULL, Const, ObjectKey, TupleKey, Value, has_object_key
from .iterators import ItemsIterator

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer

ABSENT = NULL  # in ``DictValue.known``: the key is known not to be there


def raw_key(key: Hashable) -> Any:
    """The real key that an internal key stands for. NotConst for an object that did not exist before the trace."""
    if isinstance(key, TupleKey):
        return tuple(raw_key(k) for k in key)
    if isinstance(key, ObjectKey):
        key = key.value
    if isinstance(key, Value):
        raw = getattr(key, "raw", None)
        if raw is None:
            raise NotConst
        return raw
    return key


class DictValue(Value):
    """A dict. An existing one (``raw``) is read key by key until something needs all of its keys.

    ``known`` holds what was read or written, in order; ``complete`` says that it is everything.  ``deleted`` are the
    original keys that were removed at some time, ``written`` the keys that were set.
    """

    __slots__ = ("known", "raw", "cls", "complete", "deleted", "written", "factory", "attrs")

    def __init__(
        self,
        known: dict[Hashable, Value] | None = None,
        cls: type = dict,
        raw: dict[Any, Any] | None = None,
        source: Source | None = None,
    ) -> None:
        self.source = source
        self.known = {} if known is None else known
        self.raw, self.cls = raw, cls
        self.complete = raw is None
        self.deleted: dict[Hashable, None] = {}
        self.written: dict[Hashable, None] = {}
        self.factory: Value | None = None  # of a defaultdict
        self.attrs: DictValue | None = None  # the ``__dict__`` of an OrderedDict

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.known}{'' if self.complete else ', …'})"

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def own_attrs(self, vm: Tracer) -> DictValue | None:
        if self.attrs is None and self.cls is OrderedDict:
            if self.raw is None:
                self.attrs = DictValue()
            else:
                assert self.source is not None
                self.attrs = InstanceDict(self, self.raw.__dict__, self.source.attr("__dict__"))
        return self.attrs

    def holds_tensor(self) -> bool:
        known = any(x.holds_tensor() for x in self.known.values())
        return known or self.raw is not None and any(isinstance(x, torch.Tensor) for x in self.raw.values())

    # -- the existing dict ----
    def child(self, key: Hashable) -> Source:
        """The source of the entry of an existing dict."""
        assert self.source is not None
        return self.source.item(key) if self.cls in _PLAIN else self.source.raw_item(key)

    def guard_keys(self, vm: Tracer) -> None:
        assert self.source is not None and self.raw is not None
        vm.guards.keys(self.source, self.raw)

    def guard_has(self, vm: Tracer, key: Any, present: bool) -> None:
        vm.guards.has_key(self.source, key, present)

    def _expand(self, vm: Tracer) -> None:
        raw = self.raw
        assert raw is not None
        self.guard_keys(vm)
        before = self.known
        self.known = {}
        for i, k in enumerate(_raw_keys(raw)):
            key = vm.internal_key(k, self.source, i)
            v = before.pop(key, None)
            if v is None:
                v = self._read(vm, k)
            if v is not ABSENT and key not in self.deleted:
                self.known[key] = v
            elif v is not ABSENT:
                before[key] = v
        self.known.update((k, v) for k, v in before.items() if v is not ABSENT)
        self.complete = True

    def _read(self, vm: Tracer, k: Any) -> Value:
        """The value of an existing entry, which is guarded to be there."""
        assert self.raw is not None
        try:
            raw = dict.__getitem__(self.raw, k)
        except KeyError:
            unsupported("a dict key whose hash has changed")
        v = vm.wrap(raw, self.child(k))
        if isinstance(v, Const) and not v.guarded:
            vm.guards.type_(v.source, type(v.raw))
        vm.found.append(v)
        return v

    # -- reading ----
    def find(self, vm: Tracer, key: Hashable) -> Value | None:
        """The entry under an internal key, or None."""
        v = self.known.get(key)
        if v is not None:
            return None if v is ABSENT else v
        if self.complete:
            return None
        if has_object_key(key):
            self._expand(vm)
            return self.find(vm, key)
        assert self.raw is not None
        try:
            k = raw_key(key)
        except NotConst:
            return None
        if dict.__contains__(self.raw, k):
            v = self.known[key] = self._read(vm, k)
            return v
        self.guard_has(vm, k, False)
        self.known[key] = ABSENT
        return None

    def has(self, vm: Tracer, key: Hashable) -> bool:
        if not self.complete and has_object_key(key):
            self._expand(vm)
        v = self.known.get(key)
        if v is None and not self.complete:
            assert self.raw is not None
            try:
                k = raw_key(key)
            except NotConst:
                return False
            there = dict.__contains__(self.raw, k)
            self.guard_has(vm, k, there)
            return there
        return v is not None and v is not ABSENT

    def items(self, vm: Tracer) -> list[tuple[Any, Value]]:
        """(internal key, value) pairs in order."""
        if not self.complete:
            self._expand(vm)
        return list(self.known.items())

    def keys(self, vm: Tracer) -> list[Value]:
        if not self.complete:
            self._expand(vm)
        return [vm.key_value(k) for k in self.known]

    def values(self, vm: Tracer) -> list[Value]:
        if not self.complete:
            self._expand(vm)
        return list(self.known.values())

    def length(self, vm: Tracer) -> int:
        if not self.complete:
            assert self.raw is not None
            if not self.raw and not self.known:
                self.guard_keys(vm)
                self.complete = True
            else:
                self._expand(vm)
        return len(self.known)

    def truth(self, vm: Tracer) -> bool:
        return self.length(vm) > 0

    def contains(self, vm: Tracer, item: Value) -> bool:
        return self.has(vm, item.key(vm))

    def get_item(self, vm: Tracer, key: Value) -> Value:
        v = self.find(vm, key.key(vm))
        if v is not None:
            return v
        if self.factory is not None and not (self.factory.is_const() and self.factory.as_const(vm) is None):
            v = self.factory.call(vm, [], {})
            self.set_item(vm, key, v)
            return v
        vm.raise_values(KeyError, [key])

    def iterate(self, vm: Tracer) -> Value:
        return DictView(self, "keys").iterate(vm)

    def key(self, vm: Tracer) -> Hashable:
        vm.raise_(TypeError, f"unhashable type: {self.cls.__name__!r}")

    # -- writing ----
    def touch(self, vm: Tracer) -> None:
        if self.raw is not None:
            vm.effects.touch(self)

    def store(self, vm: Tracer, key: Hashable, value: Value) -> None:
        """Set the entry under an internal key."""
        if not self.complete and has_object_key(key):
            self._expand(vm)
        if self.raw is not None:
            vm.effects.touch(self)
            self.written[key] = None
        if self.known.get(key) is ABSENT:
            del self.known[key]
        self.known[key] = value

    def remove(self, vm: Tracer, key: Hashable) -> Value | None:
        """Delete the entry; its value, or None if there was none."""
        v = self.find(vm, key)
        if v is None:
            return None
        if self.raw is not None and key in self.written and not self.complete and not has_object_key(key):
            self.guard_has(vm, raw_key(key), _was_there(self.raw, key))  # written without a look at what was there
        self.touch(vm)
        self.deleted[key] = None
        self.written.pop(key, None)
        if self.complete:
            del self.known[key]
        else:
            self.known[key] = ABSENT
        return v

    def set_item(self, vm: Tracer, key: Value, value: Value) -> None:
        self.store(vm, key.key(vm), value)

    def del_item(self, vm: Tracer, key: Value) -> None:
        if self.remove(vm, key.key(vm)) is None:
            vm.raise_values(KeyError, [key])

    def clear(self, vm: Tracer) -> None:
        for k, _ in self.items(vm):
            self.remove(vm, k)

    # -- leaving ----
    def as_python(self, vm: Tracer) -> Any:
        if self.cls is not dict and self.cls is not OrderedDict:
            raise NotConst
        return self.cls((raw_key(k), v.as_python(vm)) for k, v in self.items(vm))

    def parts(self, vm: Tracer) -> list[Value]:
        if self.raw is not None:
            return [x for k in self.written for x in (vm.key_value(k), self.known[k])]
        out = [x for k, v in self.known.items() for x in (vm.key_value(k), v)]
        out += self.attrs.parts(vm) if self.attrs is not None else []
        return out + [self.factory] if self.factory is not None else out

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(self.cls, [self.factory] if self.factory is not None else []))
        self.fill(rb, self)
        for name, value in self.attrs.known.items() if self.attrs is not None else ():
            rb.later(lambda k=str(name), v=value: rb.set_instance_attr(self, k, v))  # type: ignore[misc]

    def fill(self, rb: Rebuilder, target: Value) -> None:
        """Emit, for later, the entries of this fresh dict into the rebuilt ``target``."""
        setter = OrderedDict.__setitem__ if issubclass(self.cls, OrderedDict) else dict.__setitem__

        def put(k: Hashable, v: Value) -> None:
            key = rb.vm.key_value(k)
            if has_object_key(k):
                rb.complete([key])  # before the program's __hash__ looks at it
            rb.do(setter, [target, key, v])

        for k, v in self.known.items():
            rb.later(lambda k=k, v=v: put(k, v))  # type: ignore[misc]

    def replay(self, rb: Rebuilder) -> None:
        base: Any = OrderedDict if issubclass(self.cls, OrderedDict) else dict
        assert self.raw is not None
        for k in self.deleted:
            if _was_there(self.raw, k):
                rb.do(base.__delitem__, [self, rb.vm.key_value(k)])
        for k in [k for k in self.known if k in self.written]:
            rb.do(base.__setitem__, [self, rb.vm.key_value(k), self.known[k]])


_PLAIN = (dict, OrderedDict, defaultdict)


def _was_there(raw: dict[Any, Any], key: Hashable) -> bool:
    try:
        return dict.__contains__(raw, raw_key(key))
    except NotConst:
        return False


def _raw_keys(raw: dict[Any, Any]) -> list[Any]:
    keys = list(dict.__iter__(raw))
    if isinstance(raw, OrderedDict) and list(OrderedDict.__iter__(raw)) != keys:
        unsupported("an OrderedDict whose order was changed by move_to_end()")
    return keys


class InstanceDict(DictValue):
    """The ``__dict__`` of an existing object."""

    __slots__ = ("owner",)

    def __init__(self, owner: Value, raw: dict[str, Any], source: Source) -> None:
        DictValue.__init__(self, None, dict, raw, source)
        self.owner = owner

    def child(self, key: Hashable) -> Source:
        assert self.owner.source is not None
        return self.owner.source.instance_attr(str(key))

    def guard_has(self, vm: Tracer, key: Any, present: bool) -> None:
        if present or not isinstance(key, str):
            vm.guards.has_key(self.source, key, present)
        else:
            vm.guards.lacks(self.owner.source, key)


class MemberDict(DictValue):
    """``_parameters``, ``_buffers`` or ``_modules`` of a module."""

    __slots__ = ("owner", "table")

    def __init__(self, owner: Value, table: str, raw: dict[str, Any], source: Source) -> None:
        DictValue.__init__(self, None, type(raw), raw, source)
        self.owner, self.table = owner, table

    def child(self, key: Hashable) -> Source:
        assert self.owner.source is not None
        return self.owner.source.member(self.table, str(key))


class ClassDict(DictValue):
    """The ``__dict__`` of a class."""

    __slots__ = ("owner",)

    def __init__(self, owner: type, members: dict[str, Value]) -> None:
        known: dict[Hashable, Value] = {k: v for k, v in members.items()}  # noqa: C416
        DictValue.__init__(self, known, MappingProxyType)
        self.owner = owner

    def parts(self, vm: Tracer) -> list[Value]:
        return []

    def rebuild(self, rb: Rebuilder) -> None:
        rb.load_const(self.owner.__dict__)


class DictView(Value):
    """``keys()``, ``values()`` or ``items()``; ``kind`` is that name."""

    __slots__ = ("of", "kind")

    def __init__(self, of: DictValue, kind: str) -> None:
        self.source = None
        self.of, self.kind = of, kind

    def pytype(self, vm: Tracer) -> type:
        return type(getattr(OrderedDict() if issubclass(self.of.cls, OrderedDict) else {}, self.kind)())

    def all(self, vm: Tracer) -> list[Value]:
        if self.kind == "keys":
            return self.of.keys(vm)
        if self.kind == "values":
            return self.of.values(vm)
        return [vm.new_tuple([vm.key_value(k), v]) for k, v in self.of.items(vm)]

    def iterate(self, vm: Tracer) -> Value:
        of = self.of
        items = self.all(vm)
        before = list(of.known)

        def check(vm: Tracer) -> None:
            if len(of.known) != len(before):
                what = "OrderedDict mutated" if issubclass(of.cls, OrderedDict) else "dictionary changed size"
                vm.raise_(RuntimeError, f"{what} during iteration")

        cls = type(iter(getattr(OrderedDict() if issubclass(of.cls, OrderedDict) else {}, self.kind)()))
        return ItemsIterator(items, cls, check)

    def length(self, vm: Tracer) -> int:
        return self.of.length(vm)

    def truth(self, vm: Tracer) -> bool:
        return self.of.truth(vm)

    def contains(self, vm: Tracer, item: Value) -> bool:
        if self.kind == "keys":
            return self.of.contains(vm, item)
        return any(vm.same_or_equal(x, item) for x in self.all(vm))

    def as_python(self, vm: Tracer) -> Any:
        return [x.as_python(vm) for x in self.all(vm)]

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.of]

    def rebuild(self, rb: Rebuilder) -> None:
        base: Any = OrderedDict if issubclass(self.of.cls, OrderedDict) else dict
        rb.call(getattr(base, self.kind), [self.of])


_ORDER = "going through a set in an order that depends on how it was made"


def _order(keys: list[Any]) -> list[Any]:
    """The order in which any set of these keys gives them; Break where it depends on the set's history."""
    out = list(set(keys))
    grown = set(range(-64, -1)) | {f"<{i}>" for i in range(64)}
    for variant in (keys[::-1], out, out[::-1]):
        large = grown.union(variant)
        large -= grown
        if list(set(variant)) != out or list(large) != out:
            unsupported(_ORDER, "sort it first")
    return out


class SetValue(Value):
    """A set, or a frozenset with items that are not constants.

    ``added``: the set was made by adding its keys one by one, in their order, and not changed since, so that its order
    is that of a real set made so.
    """

    __slots__ = ("_keys", "added", "cls", "raw")

    def __init__(
        self,
        keys: Iterable[Hashable] | None,
        cls: type = set,
        raw: Any = None,
        source: Source | None = None,
        added: bool = False,
    ) -> None:
        self.source, self.added = source, added
        self._keys = None if keys is None else dict.fromkeys(keys)
        self.cls, self.raw = cls, raw

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def keys(self, vm: Tracer) -> dict[Hashable, None]:
        """The internal keys; do not change."""
        if self._keys is None:
            vm.guards.set_(self.source, self.raw)
            self._keys = {vm.internal_key(k, None, 0): None for k in self.raw}
        return self._keys

    def edit(self, vm: Tracer) -> dict[Hashable, None]:
        keys = self.keys(vm)
        self.added = False
        if self.raw is not None:
            vm.effects.touch(self)
        return keys

    def items(self, vm: Tracer) -> list[Value]:
        return [vm.key_value(k) for k in self.keys(vm)]

    def length(self, vm: Tracer) -> int:
        return len(self.keys(vm))

    def truth(self, vm: Tracer) -> bool:
        return bool(self.keys(vm))

    def contains(self, vm: Tracer, item: Value) -> bool:
        return item.key(vm) in self.keys(vm)

    def iterate(self, vm: Tracer) -> Value:
        """In the order of the real set, where that follows from the keys, or from how the set was made."""
        keys = list(self.keys(vm))
        if len(keys) > 1:
            try:
                raw = [raw_key(k) for k in keys if not isinstance(k, (Value, ObjectKey)) or unsupported(_ORDER)]
                keys = list(set(raw)) if self.added else _order(raw)
            except NotConst:
                unsupported(_ORDER)
            keys = [vm.internal_key(k, None, 0) for k in keys]
        return ItemsIterator([vm.key_value(k) for k in keys], type(iter(set())))

    def as_python(self, vm: Tracer) -> Any:
        return self.cls(raw_key(k) for k in self.keys(vm))

    def key(self, vm: Tracer) -> Hashable:
        if self.cls is set:
            vm.raise_(TypeError, "unhashable type: 'set'")
        return self

    def parts(self, vm: Tracer) -> list[Value]:
        return self.items(vm)

    def rebuild(self, rb: Rebuilder) -> None:
        if any(map(has_object_key, self.keys(rb.vm))):
            rb.complete(self.items(rb.vm))
        rb.remember(
            self,
            lambda: rb.call_with(self.cls, [Const(()) if not self.keys(rb.vm) else rb.vm.new_tuple(self.items(rb.vm))]),
        )

    def replay(self, rb: Rebuilder) -> None:
        rb.do(set.clear, [self])
        rb.do(set.update, [self, rb.vm.new_tuple(self.items(rb.vm))])

"""Lists and tuples (named tuples, ``torch.Size`` and struct sequences among them), slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..signals import NotConst, unsupported
from .base import Const, TupleKey, Value
from .iterators import SequenceIterator

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer


MAX_ITEMS = 20_000


def room_for(count: int) -> None:
    """Break where a container would get more items than capture follows one by one."""
    if count > MAX_ITEMS:
        unsupported(f"a container of more than {MAX_ITEMS:,} items", "make it outside, or as a tensor")


class SequenceValue(Value):
    """A list or a tuple. ``raw`` is the existing object, whose items are wrapped on first use."""

    __slots__ = ("_items", "raw", "cls")

    def __init__(self, items: Iterable[Value] | None, cls: type, raw: Any = None, source: Source | None = None) -> None:
        self.source = source
        self._items = None if items is None else list(items)
        self.cls, self.raw = cls, raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items if self._items is not None else self.raw})"

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def with_items(self, items: list[Value]) -> Value:
        """A new sequence of the same class."""
        return TupleValue(items, self.cls) if isinstance(self, TupleValue) else ListValue(items)

    def holds_tensor(self) -> bool:
        if self._items is None:
            return any(isinstance(x, torch.Tensor) for x in self.raw)
        return any(isinstance(x, SequenceValue) or x.holds_tensor() for x in self._items)

    def items(self, vm: Tracer) -> list[Value]:
        """The items; do not change the list."""
        if self._items is None:
            source = self.source
            assert source is not None
            room_for(len(self.raw))
            vm.guards.length(source, len(self.raw))
            child = source.item if self.cls in (list, tuple, deque) else source.raw_item
            base = list if isinstance(self.raw, list) else tuple if isinstance(self.raw, tuple) else deque
            self._items = [vm.wrap(x, child(i)) for i, x in enumerate(base.__iter__(self.raw))]
        return self._items

    def length(self, vm: Tracer) -> int:
        if self._items is None and self.source is not None:
            vm.guards.length(self.source, len(self.raw))
            return len(self.raw)
        return len(self.items(vm))

    def truth(self, vm: Tracer) -> bool:
        return bool(self.items(vm))

    def contains(self, vm: Tracer, item: Value) -> bool:
        return any(vm.same_or_equal(x, item) for x in self.items(vm))

    def get_item(self, vm: Tracer, key: Value) -> Value:
        items = self.items(vm)
        index = vm.as_index(key)
        if isinstance(index, slice):
            return self.like(items[index])
        try:
            item: Value = items[index]
            return item
        except IndexError:
            vm.raise_(IndexError, f"{'list' if isinstance(self, ListValue) else 'tuple'} index out of range")

    def like(self, items: list[Value]) -> Value:
        """The value of a slice with these items."""
        raise NotImplementedError

    def iterate(self, vm: Tracer) -> Value:
        return SequenceIterator(self)

    def parts(self, vm: Tracer) -> list[Value]:
        return self.items(vm)


class TupleValue(SequenceValue):
    """A tuple; ``cls`` is tuple, a named tuple class, ``torch.Size`` or a struct sequence class."""

    __slots__ = ()

    def __init__(
        self, items: Iterable[Value] | None, cls: type = tuple, raw: Any = None, source: Source | None = None
    ) -> None:
        SequenceValue.__init__(self, items, cls, raw, source)

    def is_const(self) -> bool:
        if self._items is None:
            return False
        return all(x.is_const() for x in self._items)

    def as_const(self, vm: Tracer) -> Any:
        return self._make([x.as_const(vm) for x in self.items(vm)])

    def as_python(self, vm: Tracer) -> Any:
        return self._make([x.as_python(vm) for x in self.items(vm)])

    def _make(self, items: list[Any]) -> Any:
        cls = self.cls
        if cls is tuple:
            return tuple(items)
        return cls(*items) if hasattr(cls, "_fields") and not hasattr(cls, "n_fields") else cls(items)

    def like(self, items: list[Value]) -> Value:
        return TupleValue(items, torch.Size if self.cls is torch.Size else tuple)

    def key(self, vm: Tracer) -> Hashable:
        return TupleKey(x.key(vm) for x in self.items(vm))

    def rebuild(self, rb: Rebuilder) -> None:
        cls = self.cls
        if cls is tuple:
            rb.load_tuple(self.items(rb.vm))
        elif hasattr(cls, "_fields") and not hasattr(cls, "n_fields"):
            rb.remember(self, lambda: rb.call_with(tuple.__new__, [Const(cls), TupleValue(self.items(rb.vm))]))
        else:
            rb.remember(self, lambda: rb.call_with(cls, [TupleValue(self.items(rb.vm))]))


class ListValue(SequenceValue):
    """A list. ``tail`` is what was appended to an existing list that nothing has read."""

    __slots__ = ("tail",)

    def __init__(self, items: Iterable[Value] | None, raw: Any = None, source: Source | None = None) -> None:
        SequenceValue.__init__(self, items, list, raw, source)
        self.tail: list[Value] = []

    def items(self, vm: Tracer) -> list[Value]:
        out = SequenceValue.items(self, vm)
        if self.tail:
            out += self.tail
            self.tail = []
        return out

    def length(self, vm: Tracer) -> int:
        return SequenceValue.length(self, vm) + len(self.tail)

    def extend(self, vm: Tracer, new: list[Value]) -> None:
        """Append; needs to know nothing of the items of an existing list."""
        room_for(len(self.parts(vm)) + len(new))
        if self._items is None:
            vm.effects.touch(self)
            self.tail += new
        else:
            self.edit(vm).extend(new)

    def as_python(self, vm: Tracer) -> Any:
        return [x.as_python(vm) for x in self.items(vm)]

    def key(self, vm: Tracer) -> Hashable:
        vm.raise_(TypeError, "unhashable type: 'list'")

    def like(self, items: list[Value]) -> Value:
        return ListValue(items)

    def edit(self, vm: Tracer) -> list[Value]:
        """The items, to be changed in place by the caller."""
        items = self.items(vm)
        if self.raw is not None:
            vm.effects.touch(self)
        return items

    def set_item(self, vm: Tracer, key: Value, value: Value) -> None:
        index = vm.as_index(key)
        items = self.edit(vm)
        try:
            items[index] = vm.unpack(value) if isinstance(index, slice) else value
        except (IndexError, ValueError) as e:
            vm.raise_real(e)

    def del_item(self, vm: Tracer, key: Value) -> None:
        try:
            del self.edit(vm)[vm.as_index(key)]
        except IndexError as e:
            vm.raise_real(e)

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, rb.empty_list)
        rb.later(lambda: rb.extend_list(self, self.items(rb.vm)))

    def parts(self, vm: Tracer) -> list[Value]:
        return self.tail if self._items is None else self._items

    def replay(self, rb: Rebuilder) -> None:
        if self._items is None:
            rb.do(list.extend, [self, TupleValue(self.tail)])
        else:
            rb.assign_list(self, self._items)


class DequeValue(ListValue):
    """A ``collections.deque``."""

    __slots__ = ("maxlen",)

    def __init__(
        self, items: Iterable[Value] | None, maxlen: int | None = None, raw: Any = None, source: Source | None = None
    ) -> None:
        ListValue.__init__(self, items, raw, source)
        self.cls = deque
        self.maxlen = maxlen

    def extend(self, vm: Tracer, new: list[Value]) -> None:
        items = self.edit(vm)
        items += new
        if self.maxlen is not None:
            del items[: max(len(items) - self.maxlen, 0)]

    def parts(self, vm: Tracer) -> list[Value]:
        return self.items(vm)

    def as_python(self, vm: Tracer) -> Any:
        return deque(ListValue.as_python(self, vm), self.maxlen)

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(deque, [TupleValue([]), Const(self.maxlen)]))
        rb.later(lambda: rb.do(deque.extend, [self, TupleValue(self.items(rb.vm))]))

    def replay(self, rb: Rebuilder) -> None:
        rb.do(deque.clear, [self])
        rb.do(deque.extend, [self, TupleValue(self.items(rb.vm))])


class SliceValue(Value):
    """A slice whose parts are values."""

    __slots__ = ("start", "stop", "step")

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.source = None
        self.start, self.stop, self.step = start, stop, step

    def pytype(self, vm: Tracer) -> type:
        return slice

    def is_const(self) -> bool:
        return self.start.is_const() and self.stop.is_const() and self.step.is_const()

    def as_const(self, vm: Tracer) -> Any:
        return slice(self.start.as_const(vm), self.stop.as_const(vm), self.step.as_const(vm))

    def truth(self, vm: Tracer) -> bool:
        return True

    def get_attr(self, vm: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            out: Value = getattr(self, name)
            return out
        return vm.generic_get(self, name)

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.start, self.stop, self.step]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.call(slice, [self.start, self.stop, self.step])


def known_items(v: Value, vm: Tracer) -> list[Value]:
    """The items of a list or tuple value. NotConst for anything else."""
    if isinstance(v, SequenceValue):
        return v.items(vm)
    raise NotConst

"""Iterators over values. ``next`` gives None at the end; no StopIteration is made unless the program asks."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..signals import Raised, unsupported
from .base import Const, Value

if TYPE_CHECKING:
    from ..rebuild import Rebuilder
    from ..tracer import Tracer
    from .sequences import SequenceValue


_TUPLE_ITERATOR = type(iter(()))


class IteratorValue(Value):
    """An iterator that the traced code made."""

    __slots__ = ()

    def truth(self, vm: Tracer) -> bool:
        return True

    def iterate(self, vm: Tracer) -> Value:
        return self

    def rest(self, vm: Tracer) -> list[Value]:
        """The items still to come, without taking them. Unsupported where that needs running user code."""
        unsupported(f"a {type(self).__name__} cannot leave the compiled region")

    def parts(self, vm: Tracer) -> list[Value]:
        return self.rest(vm)

    def rebuild(self, rb: Rebuilder) -> None:
        """As an iterator over the items still to come."""
        rb.remember(self, lambda: rb.call(_iterate, self.rest(rb.vm)))


def _iterate(*items: Any) -> Any:
    return iter(items)


class SequenceIterator(IteratorValue):
    """``iter`` of a list or tuple: sees later changes of a list."""

    __slots__ = ("seq", "index")

    def __init__(self, seq: SequenceValue) -> None:
        self.source = None
        self.seq, self.index = seq, 0

    def pytype(self, vm: Tracer) -> type:
        return type(iter([])) if issubclass(self.seq.cls, list) else type(iter(()))

    def next(self, vm: Tracer) -> Value | None:
        items = self.seq._items if self.seq._items is not None else self.seq.items(vm)
        i = self.index
        if i < 0 or i >= len(items):
            self.index = -1
            return None
        self.index = i + 1
        return items[i]

    def rest(self, vm: Tracer) -> list[Value]:
        return self.seq.items(vm)[self.index :] if self.index >= 0 else []

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.seq]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(iter, [self.seq]))
        if self.index:  # after the list, if it is new, has got its items
            rb.later(lambda: rb.do(_set_position, [self, Const(self.index)]))


def _set_position(it: Any, index: int) -> None:
    if index < 0:
        collections.deque(it, 0)
    else:
        it.__setstate__(index)


class ItemsIterator(IteratorValue):
    """An iterator over a fixed list of values; ``cls`` is the class it shows."""

    __slots__ = ("items", "index", "cls", "check")

    def __init__(
        self, items: list[Value], cls: type = _TUPLE_ITERATOR, check: Callable[[Tracer], None] | None = None
    ) -> None:
        self.source = None
        self.items, self.index, self.cls, self.check = items, 0, cls, check

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def next(self, vm: Tracer) -> Value | None:
        if self.check is not None:
            self.check(vm)
        i = self.index
        if i >= len(self.items):
            return None
        self.index = i + 1
        return self.items[i]

    def rest(self, vm: Tracer) -> list[Value]:
        return self.items[self.index :]


class RangeIterator(IteratorValue):
    """``iter(range(...))``."""

    __slots__ = ("range", "index")

    def __init__(self, r: range) -> None:
        self.source = None
        self.range, self.index = r, 0

    def pytype(self, vm: Tracer) -> type:
        return type(iter(self.range))

    def next(self, vm: Tracer) -> Value | None:
        i = self.index
        if i >= len(self.range):
            return None
        self.index = i + 1
        return Const(self.range[i])

    def rest(self, vm: Tracer) -> list[Value]:
        return [Const(x) for x in self.range[self.index :]]

    def parts(self, vm: Tracer) -> list[Value]:
        return []

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(iter, [Const(self.range[self.index :])]))


class LazyIterator(IteratorValue):
    """``zip``, ``map``, ``enumerate``, ``filter`` and their kind: ``step(vm)`` gives the next item or None.

    ``remake`` is the callable and ``over()`` the arguments with which the rest can be made again.
    """

    __slots__ = ("cls", "step", "remake", "over")

    def __init__(
        self, cls: type, step: Callable[[Tracer], Value | None], over: Callable[[], list[Value]], remake: Any = None
    ) -> None:
        self.source = None
        self.cls, self.step, self.over, self.remake = cls, step, over, remake or cls

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def next(self, vm: Tracer) -> Value | None:
        return self.step(vm)

    def parts(self, vm: Tracer) -> list[Value]:
        return self.over()

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(self.remake, self.over()))


class CallIterator(IteratorValue):
    """``iter(callable, sentinel)``."""

    __slots__ = ("func", "sentinel", "done")

    def __init__(self, func: Value, sentinel: Value) -> None:
        self.source = None
        self.func, self.sentinel, self.done = func, sentinel, False

    def pytype(self, vm: Tracer) -> type:
        return type(iter(int, 1))

    def next(self, vm: Tracer) -> Value | None:
        if self.done:
            return None
        try:
            out = self.func.call(vm, [], {})
        except Raised as e:
            if not vm.exception_matches(e.value, StopIteration):
                raise
            self.done = True
            return None
        if vm.same_or_equal(out, self.sentinel):
            self.done = True
            return None
        return out

    def parts(self, vm: Tracer) -> list[Value]:
        return [] if self.done else [self.func, self.sentinel]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(_iterate if self.done else iter, self.parts(rb.vm)))

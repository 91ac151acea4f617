"""Iterators that exist already, over sequences: looked into without moving them, moved after the graph.

A continuation inside a loop gets the loop's iterator as an argument. The guard program reads the items to come by
:func:`_reader`; the iterator is advanced with the other side effects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..signals import unsupported
from .base import Const, Value
from .iterators import IteratorValue
from .sequences import TupleValue

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer

_SEQUENCES: list[Any] = [[], (), "", "ä", b"", range(0), range(2**70)]
LEAVES = frozenset(type(iter(s)) for s in _SEQUENCES)
KINDS = LEAVES | {enumerate, zip}
END: Any = type("End", (), {"__repr__": lambda self: "the end"})()
_PLAIN = (list, tuple, str, bytes, range)
_NO_STATE = (None,)


def _state(it: Any) -> tuple[Any, Any]:
    """(what it runs over, position) of an iterator of LEAVES; the arguments and None of the others."""
    reduced = it.__reduce__()
    args, state = reduced[1], reduced[2] if len(reduced) > 2 else None
    return (args[0], state or 0) if reduced[0] is iter else (args, None)


def _leaf(it: Any, k: int) -> Any:
    """The k-th item to come, or END."""
    seq, at = _state(it)
    base = next(c for c in _PLAIN if isinstance(seq, c))
    return base.__getitem__(seq, at + k) if at + k < base.__len__(seq) else END


def _inner(it: Any, path: tuple[int, ...]) -> Any:
    for i in path:
        it = _state(it)[0][i]
    return it


@functools.cache
def _reader(path: tuple[int, ...], k: int) -> Callable[[Any], Any]:
    return lambda it: _leaf(_inner(it, path), k)


@functools.cache
def _counter(path: tuple[int, ...], k: int) -> Callable[[Any], Any]:
    return lambda it: _state(_inner(it, path))[0][1] + k


def readable(it: Any) -> bool:
    """Whether an iterator of KINDS runs over plain sequences, all the way down."""
    if type(it) in LEAVES:
        return isinstance(_state(it)[0], _PLAIN)
    if type(it) is enumerate:
        return readable(_state(it)[0][0])
    if type(it) is zip:
        return len(it.__reduce__()) == 2 and all(readable(i) for i in _state(it)[0])
    return False


def _underlying(it: Any) -> list[Any]:
    """The lists that an iterator reads."""
    if type(it) in LEAVES:
        seq = _state(it)[0]
        return [seq] if isinstance(seq, list) else []
    inner = _state(it)[0][:1] if type(it) is enumerate else _state(it)[0]
    return [x for i in inner for x in _underlying(i)]


class ExistingIterator(IteratorValue):
    """An existing iterator of KINDS. ``taken`` items were read by the trace; ``ended``: and then its end."""

    __slots__ = ("raw", "taken", "ended")

    def __init__(self, raw: Any, source: Source) -> None:
        self.source = source
        self.raw = raw
        self.taken, self.ended = 0, False

    def pytype(self, vm: Tracer) -> type:
        return type(self.raw)

    def next(self, vm: Tracer) -> Value | None:
        if self.ended:
            return None
        for raw in _underlying(self.raw):
            known = vm.known_value(raw)
            if known is not None and known in vm.effects.touched:
                unsupported("going on with a loop over a list that was changed")
        v = self._item(vm, self.raw, ())
        vm.effects.touch(self)
        if v is None:
            self.ended = True
        else:
            self.taken += 1
        return v

    def _item(self, vm: Tracer, it: Any, path: tuple[int, ...]) -> Value | None:
        if type(it) is zip:
            parts = []
            for i, inner in enumerate(_state(it)[0]):
                v = self._item(vm, inner, (*path, i))
                if v is None:
                    return None
                parts.append(v)
            return TupleValue(parts) if parts else None
        if type(it) is enumerate:
            inner, _ = _state(it)[0]
            v = self._item(vm, inner, (*path, 0))
            if v is None:
                return None
            return TupleValue([self._read(vm, _counter(path, self.taken), "count", path), v])
        out = self._read(vm, _reader(path, self.taken), "next", path)
        return None if isinstance(out, Const) and out.raw is END else out

    def _read(self, vm: Tracer, function: Callable[[Any], Any], text: str, path: tuple[int, ...]) -> Value:
        assert self.source is not None
        raw = function(self.raw)
        place = "".join(f"[{i}]" for i in path)
        where = self.source.call(function, f"{text}({{}}, {self.taken}){place}")
        if raw is END:
            vm.guards.const(where, END)
            return Const(END)
        v = vm.wrap(raw, where)
        if isinstance(v, Const) and not v.guarded:
            vm.guards.type_(where, type(raw))
        return v

    def parts(self, vm: Tracer) -> list[Value]:
        return []

    def replay(self, rb: Rebuilder) -> None:
        rb.do(_advance, [self, Const(self.taken + self.ended)])


def _advance(it: Any, n: int) -> None:
    for _ in range(n):
        next(it, None)

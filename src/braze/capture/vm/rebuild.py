"""Values back to real objects: the bytecode that runs after the graph.

Order in replacement code: call the graph; make every object that leaves the region and read every existing one that is
written somewhere (before anything is written); apply the writes; then return, or go on after a break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.capture.emit import Emitter
from braze.capture.source import FrameValues, FunctionSource, Source
from braze.ir import Node

from .guarding import Frozen
from .signals import unsupported
from .values.base import NULL, Const, Derived, Value
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from .tracer import Tracer

OUTPUTS = "<outputs>"


class Constant(Value):
    """Any object, held by the code."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.source = None
        self.raw = raw

    def rebuild(self, rb: Rebuilder) -> None:
        rb.load_const(self.raw)


class Rebuilder:
    """Emits code that pushes values. ``outputs`` are the graph's outputs, ``reads`` what the guard program reads."""

    def __init__(self, vm: Tracer, emitter: Emitter) -> None:
        self.vm, self.e = vm, emitter
        self.outputs: dict[Node, int] = {}
        self.reads: list[Source] = []
        self._read_index: dict[Source, int] = {}
        self._memo: dict[Value, str] = {}
        self._later: list[Callable[[], None]] = []
        self._draining = False
        self._busy: set[Value] = set()

    # -- first pass: what leaves ----
    def collect(self, roots: list[Value]) -> set[Value]:
        """Find the tensors that must be outputs of the graph; all values that leave."""
        seen: set[Value] = set()
        todo = list(reversed(roots))
        while todo:
            v = todo.pop()
            if v in seen or v is NULL:
                continue
            seen.add(v)
            if v.source is not None:
                continue
            if isinstance(v, TensorValue):
                node = v.node(self.vm)
                self.outputs.setdefault(node, len(self.outputs))
            todo += reversed(v.parts(self.vm))
        return seen

    def read(self, source: Source) -> int:
        """The index at which the guard program delivers the value of a source."""
        i = self._read_index.get(source)
        if i is None:
            i = self._read_index[source] = len(self.reads)
            self.reads.append(source)
        return i

    # -- second pass: code ----
    def materialise(self, v: Value) -> None:
        """Make the object now and keep it in a local, unless it is a constant of the code."""
        if v in self._memo or v is NULL or isinstance(v, Constant):
            return
        if isinstance(v, Const) and v.source is None and not isinstance(v, Derived):
            return
        self._push(v)
        self._store(v)
        self._drain()

    def push(self, v: Value) -> None:
        """Push the object, complete."""
        self._push(v)
        self._drain()

    def _store(self, v: Value) -> None:
        name = self._memo.get(v)
        if name is None:
            name = self._memo[v] = f"<{len(self._memo)}>"
            self.e.store(name)
        else:
            self.e.pop()

    def _push(self, v: Value) -> None:
        name = self._memo.get(v)
        if name is not None:
            self.e.load(name)
        elif v is NULL:
            self.e.emit("PUSH_NULL")
        elif v.source is not None:
            self._load_source(v.source)
        elif v in self._busy:
            unsupported(f"a {type(v).__name__} that contains itself")
        else:
            self._busy.add(v)
            v.rebuild(self)
            self._busy.discard(v)

    def _load_source(self, source: Source) -> None:
        if isinstance(source.root, Frozen):
            self.e.load_const(source.get(FrameValues(self.vm.function, ())))
        elif source in self._read_index or isinstance(source.root, FunctionSource):
            self.e.load_input(self.read(source))
        else:
            self.e.load_source(source)

    def _drain(self) -> None:
        """Emit what was put off, in order: an action that pushes objects itself does not run the ones after it."""
        if self._draining:
            return
        self._draining = True
        while self._later:
            self._later.pop(0)()
        self._draining = False

    def complete(self, values: list[Value]) -> None:
        """Make objects with all that they hold now, for code of the program that runs before the rest is made."""
        for v in values:
            if v not in self._memo and not isinstance(v, (Const, Constant)):
                self._push(v)
                self._store(v)
        while self._later:
            self._later.pop(0)()

    def temporaries(self) -> list[str]:
        """The locals that hold objects made so far."""
        return list(self._memo.values())

    # -- what values call from ``rebuild`` ----
    def remember(self, v: Value, make: Callable[[], None]) -> None:
        """``make`` pushes the new object; later uses of the value load the same one."""
        make()
        if v not in self._memo:
            name = self._memo[v] = f"<{len(self._memo)}>"
            self.e.copy()
            self.e.store(name)

    def later(self, action: Callable[[], None]) -> None:
        """Emit something after the object under construction is complete (contents, which may contain it)."""
        self._later.append(action)

    def constant(self, raw: Any) -> Constant:
        return Constant(raw)

    def load_const(self, raw: Any) -> None:
        self.e.load_const(raw)

    def load_globals(self, scope: dict[str, Any]) -> None:
        self.e.load_const(scope)

    def load_output(self, v: TensorValue) -> None:
        self.e.load(OUTPUTS)
        self.e.load_const(self.outputs[v.node(self.vm)])
        self.e.binary_subscr()

    def load_tuple(self, items: list[Any]) -> None:
        for x in items:
            self._push(x)
        self.e.build("tuple", len(items))

    def load_dict(self, items: dict[str, Value]) -> None:
        for k, v in items.items():
            self.e.load_const(k)
            self._push(v)
        self.e.build("map", len(items))

    def empty_list(self) -> None:
        self.e.build("list", 0)

    def extend_list(self, target: Value, items: list[Value]) -> None:
        """Fill a fresh list."""
        if items:
            self._push(target)
            self.load_tuple(items)
            self.e.emit("LIST_EXTEND", 1)
            self.e.pop()

    def assign_list(self, target: Value, items: list[Value]) -> None:
        """``target[:] = items`` of an existing list."""
        self.e.callee_const(_assign_list)
        self._push(target)
        self.load_tuple(items)
        self.e.call(2)
        self.e.pop()

    def call(self, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> None:
        """Push ``function(*args, **kwargs)`` of a real callable."""
        self.e.callee_const(function)
        for a in args:
            self._push(a)
        for a in (kwargs or {}).values():
            self._push(a)
        self.e.call(len(args) + len(kwargs or {}), tuple(kwargs or ()))

    call_with = call

    def do(self, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> None:
        """Call for effect."""
        self.call(function, args, kwargs)
        self.e.pop()

    def store_attr(self, target: Value, name: str, v: Value | None) -> None:
        assert v is not None
        self._push(v)
        self._push(target)
        self.e.store_attr(name)

    def delete_attr(self, target: Value, name: str) -> None:
        self._push(target)
        self.e.delete_attr(name)

    def set_instance_attr(self, target: Value, name: str, v: Value) -> None:
        """``target.__dict__[name] = v``."""
        self._push(v)
        self._push(target)
        self.e.load_attr("__dict__")
        self.e.load_const(name)
        self.e.store_subscr()


def _assign_list(target: list[Any], items: tuple[Any, ...]) -> None:
    list.__setitem__(target, slice(None), items)

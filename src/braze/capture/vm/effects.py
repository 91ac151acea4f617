"""Side effects: which existing objects the traced code wrote, to be written again after the graph has run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .values.base import NULL, Const, Value
from .values.mappings import DictValue
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from .rebuild import Rebuilder
    from .tracer import Tracer


class GlobalsWrite(Value):
    """Writes to the global variables of one module: name -> value, None for a deleted one."""

    __slots__ = ("scope", "names")

    def __init__(self, scope: dict[str, Any]) -> None:
        self.source = None
        self.scope = scope
        self.names: dict[str, Value | None] = {}

    def parts(self, vm: Tracer) -> list[Value]:
        return [v for v in self.names.values() if v is not None]

    def replay(self, rb: Rebuilder) -> None:
        scope = rb.constant(self.scope)
        for name, v in self.names.items():
            if v is None:
                rb.do(dict.pop, [scope, Const(name), Const(None)])
            else:
                rb.do(dict.__setitem__, [scope, Const(name), v])


class ContextWrite(Value):
    """The last value given to a context variable."""

    __slots__ = ("var", "value")

    def __init__(self, var: Any, value: Value | None) -> None:
        self.source = None
        self.var, self.value = var, value

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.value] if self.value is not None else []

    def replay(self, rb: Rebuilder) -> None:
        if self.value is not None:
            rb.do(type(self.var).set, [rb.constant(self.var), self.value])


class DeferredCall(Value):
    """A call for its effect alone (a warning, a log line), made after the graph has run."""

    __slots__ = ("function", "args", "kwargs")

    def __init__(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.source = None
        self.function, self.args, self.kwargs = function, args, kwargs

    def parts(self, vm: Tracer) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def replay(self, rb: Rebuilder) -> None:
        rb.do(self.function, self.args, self.kwargs)


class Effects:
    """The objects written, in the order of their first write."""

    def __init__(self) -> None:
        self.touched: dict[Value, None] = {}
        self.globals: dict[int, GlobalsWrite] = {}
        self.context: dict[Any, Value | None] = {}  # context variables, as the trace sees them
        self.context_before: dict[Any, Value | None] = {}
        self.context_writes: dict[Any, ContextWrite] = {}
        self.held: dict[Value, list[DeferredCall]] = {}  # locks taken in the trace
        self.logged: set[int] = set()  # ids of what says what becomes of the messages put off
        self._watch: dict[Value, dict[Any, Value]] | None = None

    def touch(self, v: Value) -> None:
        """Note a write to an existing object; call before the first one."""
        self.touched.setdefault(v)
        if self._watch is not None and v not in self._watch:
            self._watch[v] = dict(v.known) if isinstance(v, DictValue) else {}

    @contextmanager
    def watched(self) -> Iterator[dict[Value, dict[Any, Value]]]:
        """What is written inside, with the entries that a dict had before; other effects count under themselves."""
        before, count = self._watch, len(self.touched)
        watch = self._watch = {}
        try:
            yield watch
        finally:
            self._watch = before
        for v in list(self.touched)[count:]:
            watch.setdefault(v, {})

    def defer(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Call a real function with these arguments after the graph."""
        self.touched[DeferredCall(function, args, kwargs)] = None

    def hold(self, cls: Any, lock: Value) -> None:
        """Take a lock after the graph, unless it is let go before."""
        call = DeferredCall(cls.acquire, [lock], {})
        self.touched[call] = None
        self.held.setdefault(lock, []).append(call)

    def let_go(self, cls: Any, lock: Value) -> None:
        """Release a lock: undo the last ``hold``, or release it after the graph when it was held before the trace."""
        calls = self.held.get(lock)
        if calls:
            del self.touched[calls.pop()]
        else:
            self.defer(cls.release, [lock], {})

    def deferred(self) -> list[DeferredCall]:
        return [v for v in self.touched if isinstance(v, DeferredCall)]

    def store_global(self, scope: dict[str, Any], name: str, v: Value | None) -> None:
        """Note a write to a global variable."""
        write = self.globals.get(id(scope))
        if write is None:
            write = self.globals[id(scope)] = GlobalsWrite(scope)
            self.touched[write] = None
        write.names[name] = v

    def set_context(self, var: Any, v: Value | None) -> None:
        """Set a context variable for the rest of the trace."""
        self.context_before.setdefault(var, self.context.get(var))
        self.context[var] = v
        if v is self.context_before[var]:
            write = self.context_writes.pop(var, None)
            if write is not None:
                del self.touched[write]
            return
        write = self.context_writes.get(var)
        if write is None:
            write = self.context_writes[var] = ContextWrite(var, v)
            self.touched[write] = None
        write.value = v

    def all(self) -> list[Value]:
        """The written objects whose state differs from before."""
        return [v for v in self.touched if not (isinstance(v, (DictValue, TensorValue)) and not _changed(v))]


def _changed(d: DictValue | TensorValue) -> bool:
    """Whether replaying the writes would do anything: a value put back as it was is no change."""
    if isinstance(d, TensorValue):
        return d.changed
    if d.deleted:
        return True
    assert d.raw is not None
    for k in d.written:
        v = d.known.get(k, NULL)
        if isinstance(k, str) and k in d.raw and d.source is not None:
            if v.source is d.child(k):
                continue
        return True
    return False

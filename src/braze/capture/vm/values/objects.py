"""Instances of classes: plain objects, dataclasses, subclasses of builtin containers, exceptions."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..signals import unsupported
from .base import NONE, Const, Value
from .mappings import DictValue, InstanceDict
from .sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from braze.capture.source import Source
    from braze.ir import Loc

    from ..rebuild import Rebuilder
    from ..tracer import Tracer


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement


class ObjectValue(Value):
    """An instance of ``cls``.

    ``attrs`` is its ``__dict__``, ``slots`` what was read or written of ``__slots__``, ``payload`` the content of an
    instance of a subclass of a builtin (a DictValue, ListValue, TupleValue, SetValue or Const).
    """

    __slots__ = ("cls", "raw", "attrs", "slots", "slots_written", "payload")

    def __init__(self, cls: type, raw: Any = None, source: Source | None = None, payload: Value | None = None) -> None:
        self.source = source
        self.cls, self.raw, self.payload = cls, raw, payload
        self.attrs: DictValue | None = None
        self.slots: dict[str, Value | None] = {}
        self.slots_written: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cls.__name__})"

    def pytype(self, vm: Tracer) -> type:
        return self.cls

    def as_python(self, vm: Tracer) -> Any:
        """Of an instance of a subclass of an immutable builtin: the builtin's value."""
        return self.payload.as_python(vm) if isinstance(self.payload, Const) else Value.as_python(self, vm)

    def own_attrs(self, vm: Tracer) -> DictValue | None:
        if self.attrs is None and self.cls.__dictoffset__:
            if self.raw is None:
                self.attrs = DictValue()
            else:
                assert self.source is not None
                self.attrs = InstanceDict(
                    self, object.__getattribute__(self.raw, "__dict__"), self.source.attr("__dict__")
                )
        return self.attrs

    def get_attr(self, vm: Tracer, name: str) -> Value:
        return vm.object_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        vm.object_set(self, name, value)

    def del_attr(self, vm: Tracer, name: str) -> None:
        vm.object_set(self, name, None)

    # -- writes to __slots__ ----
    def set_slot(self, vm: Tracer, name: str, value: Value | None) -> None:
        self.slots[name] = value
        self.slots_written.add(name)
        if self.raw is not None:
            vm.effects.touch(self)

    def parts(self, vm: Tracer) -> list[Value]:
        out = [v for k, v in self.slots.items() if v is not None and (self.raw is None or k in self.slots_written)]
        if self.raw is None:
            if self.attrs is not None:
                out += self.attrs.parts(vm)
            if self.payload is not None:
                out.append(self.payload) if isinstance(self.payload, TupleValue) else out.extend(self.payload.parts(vm))
        return out

    def rebuild(self, rb: Rebuilder) -> None:
        cls, payload = self.cls, self.payload
        if isinstance(payload, (TupleValue, Const)):
            like = payload.pytype(rb.vm)
            rb.remember(self, lambda: rb.call_with(like.__new__, [Const(cls), payload]))
        elif payload is not None:
            base: Any = payload.pytype(rb.vm)
            rb.remember(self, lambda: rb.call_with(base.__new__, [Const(cls)]))
            rb.later(lambda: rb.do(base.__init__, [self]))
            if isinstance(payload, ListValue):
                rb.later(lambda: rb.do(list.extend, [self, TupleValue(payload.items(rb.vm))]))
            elif isinstance(payload, DictValue):
                payload.fill(rb, self)
            else:
                rb.later(lambda: rb.do(set.update, [self, rb.vm.new_tuple(payload.parts(rb.vm))]))
        else:
            base = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP)
            rb.remember(self, lambda: rb.call_with(base.__new__, [Const(cls)]))
        for k, v in self.slots.items():
            if v is not None:
                rb.later(lambda k=k, v=v: rb.do(object.__setattr__, [self, Const(k), v]))  # type: ignore[misc]
        if self.attrs is not None:
            for name, value in self.attrs.known.items():
                rb.later(lambda k=str(name), v=value: rb.set_instance_attr(self, k, v))  # type: ignore[misc]

    def replay(self, rb: Rebuilder) -> None:
        for k in [k for k in self.slots if k in self.slots_written]:
            v = self.slots[k]
            if v is None:
                rb.do(object.__delattr__, [self, Const(k)])
            else:
                rb.do(object.__setattr__, [self, Const(k), v])


class ExceptionValue(ObjectValue):
    """An exception object. ``args`` are its arguments."""

    __slots__ = ("args", "cause", "context", "suppress", "real", "raised", "loc")

    def __init__(self, cls: type, args: list[Value], raw: Any = None, source: Source | None = None) -> None:
        ObjectValue.__init__(self, cls, raw, source)
        self.args = args
        self.cause: Value = NONE
        self.context: Value = NONE
        self.suppress = False
        self.real: BaseException | None = None  # as raised by a constant operation
        self.raised = False
        self.loc: Loc | None = None  # the user's line that raised it first

    def get_attr(self, vm: Tracer, name: str) -> Value:
        special = _EXCEPTION_ATTRS.get(name)
        return special(self, vm) if special is not None else vm.object_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        if name == "__cause__":
            self.cause, self.suppress = value, True
        elif name == "__context__":
            self.context = value
        elif name == "__suppress_context__":
            self.suppress = value.truth(vm)
        elif name == "args":
            self.args = vm.unpack(value)
        elif name != "__traceback__":
            vm.object_set(self, name, value)

    def parts(self, vm: Tracer) -> list[Value]:
        return [*self.args, self.cause, self.context, *ObjectValue.parts(self, vm)]

    def rebuild(self, rb: Rebuilder) -> None:
        base: Any = next(c for c in self.cls.__mro__ if not c.__flags__ & _HEAP)
        rb.remember(self, lambda: rb.call_with(base.__new__, [Const(self.cls), *self.args]))
        rb.later(lambda: rb.do(base.__init__, [self, *self.args]))
        if self.attrs is not None:
            for name, value in self.attrs.known.items():
                rb.later(lambda k=str(name), v=value: rb.set_instance_attr(self, k, v))  # type: ignore[misc]
        if self.suppress:
            rb.later(lambda: rb.store_attr(self, "__cause__", self.cause))
        if self.context is not NONE:
            rb.later(lambda: rb.store_attr(self, "__context__", self.context))


class TracebackValue(Value):
    """The traceback of an exception that was raised in the trace: there is one, and no real frame for it."""

    __slots__ = ()

    def __init__(self) -> None:
        self.source = None

    def pytype(self, vm: Tracer) -> type:
        return TracebackType

    def truth(self, vm: Tracer) -> bool:
        return True

    def key(self, vm: Tracer) -> Any:
        return self

    def get_attr(self, vm: Tracer, name: str) -> Value:
        unsupported("looking into the traceback of an exception raised in the compiled function")

    def rebuild(self, rb: Rebuilder) -> None:
        unsupported("the traceback of an exception raised in the compiled function, which is kept")


TRACEBACK = TracebackValue()
_EXCEPTION_ATTRS: dict[str, Any] = {
    "args": lambda e, vm: vm.new_tuple(e.args),
    "__cause__": lambda e, vm: e.cause,
    "__context__": lambda e, vm: e.context,
    "__suppress_context__": lambda e, vm: Const(e.suppress),
    "__traceback__": lambda e, vm: TRACEBACK if e.raised else NONE,
    "value": lambda e, vm: (
        (e.args[0] if e.args else NONE) if issubclass(e.cls, StopIteration) else vm.object_get(e, "value")
    ),
}

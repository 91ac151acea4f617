"""The root of the value model: every Python object that the interpreter handles is a :class:`Value`.

A value may have a ``source``: how compiled code reads the same object again.  Methods take ``vm``, the
:class:`~braze.capture.vm.tracer.Tracer` of this capture; the defaults here follow the class of the object through
Python's own protocols.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from ..passing import passes_result
from ..signals import NotConst, unsupported

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer


class Value:
    """One Python object during interpretation. Identity of values is identity of objects (constants apart)."""

    __slots__ = ("source",)
    source: Source | None

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- what it is ----
    def holds_tensor(self) -> bool:
        """Whether it is a tensor, or a container that is known to hold one."""
        return False

    def pytype(self, vm: Tracer) -> type:
        """The object's class, guarded."""
        raise NotImplementedError(type(self).__name__)

    def is_const(self) -> bool:
        """Whether :meth:`as_const` works. Adds no guard."""
        return False

    def as_const(self, vm: Tracer) -> Any:
        """The immutable Python object itself, guarded. Raises NotConst."""
        raise NotConst

    def as_python(self, vm: Tracer) -> Any:
        """A Python object equal to this one; containers are copied. Raises NotConst."""
        return self.as_const(vm)

    def key(self, vm: Tracer) -> Hashable:
        """What stands for this object in the key table of a dict or set value."""
        return vm.protocol_key(self)

    def truth(self, vm: Tracer) -> bool:
        """``bool(self)``: ``__bool__``, else ``__len__``, else True."""
        return vm.protocol_truth(self)

    # -- attributes, calls, items ----
    def get_attr(self, vm: Tracer, name: str) -> Value:
        return vm.generic_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        vm.generic_set(self, name, value)

    def del_attr(self, vm: Tracer, name: str) -> None:
        vm.generic_set(self, name, None)

    def own_attrs(self, vm: Tracer) -> Any:
        """The instance's ``__dict__`` as a DictValue, or None where instances have none."""
        return None

    @passes_result
    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return vm.call_special(self, "__call__", args, kwargs)

    def get_item(self, vm: Tracer, key: Value) -> Value:
        return vm.protocol_getitem(self, key)

    def set_item(self, vm: Tracer, key: Value, value: Value) -> None:
        vm.call_special(self, "__setitem__", [key, value])

    def del_item(self, vm: Tracer, key: Value) -> None:
        vm.call_special(self, "__delitem__", [key])

    def length(self, vm: Tracer) -> int:
        """``len(self)``."""
        return vm.protocol_len(self)

    def contains(self, vm: Tracer, item: Value) -> bool:
        """``item in self``."""
        return vm.protocol_contains(self, item)

    # -- iteration ----
    def iterate(self, vm: Tracer) -> Value:
        """``iter(self)``."""
        return vm.protocol_iter(self)

    def next(self, vm: Tracer) -> Value | None:
        """The next item, or None at the end."""
        return vm.protocol_next(self)

    # -- leaving the trace ----
    def rebuild(self, rb: Rebuilder) -> None:
        """Emit code that pushes this object (only called for objects without a source)."""
        unsupported(f"a {type(self).__name__} cannot leave the compiled region")

    def replay(self, rb: Rebuilder) -> None:
        """Emit code that applies the writes made to this existing object."""
        raise NotImplementedError(type(self).__name__)

    def parts(self, vm: Tracer) -> list[Value]:
        """The values that :meth:`rebuild` and :meth:`replay` load."""
        return []


class Null(Value):
    """The NULL that the interpreter's stack holds beside callables."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()


class Const(Value):
    """An immutable or static object that is known while tracing. Guarded when its value is first used."""

    __slots__ = ("raw", "guarded")

    def __init__(self, raw: Any, source: Source | None = None) -> None:
        self.source = source
        self.raw = raw
        self.guarded = source is None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw!r})"

    def pytype(self, vm: Tracer) -> type:
        if not self.guarded:
            vm.guards.type_(self.source, type(self.raw))
        return type(self.raw)

    def is_const(self) -> bool:
        return True

    def as_const(self, vm: Tracer) -> Any:
        if not self.guarded:
            self.guarded = True
            vm.guards.const(self.source, self.raw)
        return self.raw

    def key(self, vm: Tracer) -> Hashable:
        self.as_const(vm)
        try:
            hash(self.raw)
        except TypeError as e:
            vm.raise_real(e)
        return self.raw  # type: ignore[no-any-return]

    def truth(self, vm: Tracer) -> bool:
        self.as_const(vm)
        return bool(self.raw)

    def get_item(self, vm: Tracer, key: Value) -> Value:
        try:
            k = key.as_const(vm)
        except NotConst:
            return vm.protocol_getitem(self, key)
        return vm.fold(lambda o, i: o[i], [self, Const(k)])

    def length(self, vm: Tracer) -> int:
        out: int = vm.fold(len, [self]).as_const(vm)
        return out

    def contains(self, vm: Tracer, item: Value) -> bool:
        return vm.const_contains(self, item)

    def iterate(self, vm: Tracer) -> Value:
        return vm.wrap_iterable(self)

    def get_attr(self, vm: Tracer, name: str) -> Value:
        if isinstance(self.raw, enum.Enum):
            return vm.enum_get(self, name)
        return vm.generic_get(self, name)

    def rebuild(self, rb: Rebuilder) -> None:
        rb.load_const(self.raw)


class Derived(Const):
    """The result of arithmetic on numbers that nothing has asked the value of: computed again after the graph.

    ``self.count += 1`` thus pins the type of ``self.count`` and not its value. Asking the value pins the operands.
    """

    __slots__ = ("function", "args")

    def __init__(self, raw: Any, function: Any, args: list[Const]) -> None:
        self.source = None
        self.raw, self.function, self.args = raw, function, args
        self.guarded = False

    def pytype(self, vm: Tracer) -> type:
        for a in self.args:
            a.pytype(vm)
        return type(self.raw)

    def as_const(self, vm: Tracer) -> Any:
        if not self.guarded:
            self.guarded = True
            for a in self.args:
                a.as_const(vm)
        return self.raw

    def parts(self, vm: Tracer) -> list[Value]:
        return [] if self.guarded else list(self.args)

    def rebuild(self, rb: Rebuilder) -> None:
        if self.guarded:
            rb.load_const(self.raw)
        else:
            rb.call(self.function, list(self.args))


class TupleKey(tuple):  # type: ignore[type-arg]
    """A tuple as a dict key: the keys of its items."""

    __slots__ = ()


class ObjectKey:
    """An object with a ``__hash__`` of its own as a dict key: what that gave, and ``__eq__`` of the program."""

    __slots__ = ("value", "number", "vm")

    def __init__(self, vm: Tracer, value: Value, number: int) -> None:
        self.vm, self.value, self.number = vm, value, number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ObjectKey):
            other = other.value
        elif not isinstance(other, Value):
            if isinstance(other, TupleKey):
                return False
            other = Const(other)
        assert isinstance(other, Value)
        return self.vm.same_or_equal(self.value, other)


def has_object_key(key: Hashable) -> bool:
    """Whether an internal key is, or holds, an :class:`ObjectKey`."""
    return isinstance(key, ObjectKey) or isinstance(key, TupleKey) and any(map(has_object_key, key))


NONE, TRUE, FALSE, ELLIPSIS = Const(None), Const(True), Const(False), Const(Ellipsis)
NOT_IMPLEMENTED = Const(NotImplemented)


def boolean(b: Any) -> Const:
    return TRUE if b else FALSE

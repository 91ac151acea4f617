"""How to re-read a value from a frame: the addresses that guards, replacement code and reports share.

A :class:`Source` is a path from a root of the frame (an argument, the function, its globals, a constant) to a value,
printed in the user's own terms (``self.layers[0].weight``).  Sources are interned below their root, so that equality
is identity and a source is a dictionary key at no cost.  Make roots through :class:`FrameSources`, children through
the methods (``root.attr("weight").item(0)``) or classes (``AttrSource(root, "weight")``); both give the same object.

Each source can be evaluated in three ways, which must agree: ``source.get(frame)`` here, the native guard program
(``program.py``), and replacement bytecode (``emit.load_source``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch


@dataclass(slots=True)
class FrameValues:
    """A frame that has not started: its function and the values of its argument slots.

    Slots are in the order of ``co_varnames``: positional, keyword-only, ``*args`` tuple, ``**kwargs`` dict.
    """

    function: FunctionType
    args: Sequence[Any]


def argument_count(code: CodeType) -> int:
    """The number of argument slots, ``*args`` and ``**kwargs`` included."""
    flags = code.co_flags
    return code.co_argcount + code.co_kwonlyargcount + bool(flags & 0x04) + bool(flags & 0x08)


def typed_key(value: Hashable) -> Hashable:
    """A dictionary key that tells 1, 1.0 and True apart, also inside tuples and sets, and 0.0 from -0.0."""
    if isinstance(value, tuple):
        return (type(value), tuple(typed_key(v) for v in value))
    if isinstance(value, frozenset):
        return (type(value), frozenset(typed_key(v) for v in value))
    if isinstance(value, slice):
        return (slice, typed_key((value.start, value.stop, value.step)))
    return (type(value), repr(value) if isinstance(value, (float, complex)) else value)


class Source:
    """The address of a value. ``base`` is the parent (None for a root), ``key`` what the step needs."""

    __slots__ = ("base", "key", "depth", "_children")
    base: Source | None
    key: Any
    depth: int  # steps from the root
    _children: dict[Hashable, Source]

    def __init__(self, base: Source | None, key: Any) -> None:
        self.base, self.key, self._children = base, key, {}
        self.depth = base.depth + 1 if base is not None else 0

    def name(self) -> str:
        """The value as a Python expression in the user's terms."""
        raise NotImplementedError

    def step(self, value: Any) -> Any:
        """This value from its parent's value (not for roots)."""
        raise NotImplementedError

    def get(self, frame: FrameValues) -> Any:
        """The value in this frame. Raises what the reading raises (AttributeError, KeyError, IndexError, …)."""
        assert self.base is not None
        return self.step(self.base.get(frame))

    @property
    def root(self) -> Source:
        out = self
        while out.base is not None:
            out = out.base
        return out

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name()}>"

    def attr(self, name: str) -> AttrSource:
        """``getattr(value, name)``, for attributes that are read without running Python code."""
        return AttrSource(self, name)

    def instance_attr(self, name: str) -> InstanceAttrSource:
        """``value.__dict__[name]``."""
        return InstanceAttrSource(self, name)

    def member(self, table: str, name: str) -> MemberSource:
        """``value.__dict__[table][name]``, printed as ``value.name``: a module's parameter, buffer or child."""
        return MemberSource(self, table, name)

    def type_attr(self, name: str) -> TypeAttrSource:
        """The raw class attribute (no descriptor call) found by the MRO of ``value``, which is a type."""
        return TypeAttrSource(self, name)

    def item(self, key: Hashable) -> ItemSource:
        """``value[key]`` of a list, tuple, dict (or a subclass that does not override ``__getitem__``)."""
        return ItemSource(self, key)

    def raw_item(self, key: Hashable) -> RawItemSource:
        """``dict.__getitem__(value, key)`` (or list, tuple) of a subclass that overrides ``__getitem__``."""
        return RawItemSource(self, key)

    def dict_key(self, index: int) -> DictKeySource:
        """The index-th key of a dict, in insertion order."""
        return DictKeySource(self, index)

    def type(self) -> TypeSource:
        """``type(value)``."""
        return TypeSource(self)

    def cell_contents(self) -> CellContentsSource:
        """``value.cell_contents``."""
        return CellContentsSource(self)

    def default(self, index: int) -> ItemSource:
        """The index-th positional default of a function."""
        return self.attr("__defaults__").item(index)

    def kwdefault(self, name: str) -> ItemSource:
        """A keyword-only default of a function."""
        return self.attr("__kwdefaults__").item(name)

    def closure(self, index: int) -> ItemSource:
        """The index-th closure cell of a function (not its contents)."""
        return self.attr("__closure__").item(index)

    def mro(self, index: int) -> ItemSource:
        """The index-th class in the MRO of ``value``, which is a type."""
        return self.attr("__mro__").item(index)

    def size(self, dim: int) -> TensorIntSource:
        """``value.size(dim)`` of a tensor."""
        return TensorIntSource(self, "size", dim)

    def stride(self, dim: int) -> TensorIntSource:
        """``value.stride(dim)`` of a tensor, in elements."""
        return TensorIntSource(self, "stride", dim)

    def storage_offset(self) -> TensorIntSource:
        """``value.storage_offset()`` of a tensor, in elements."""
        return TensorIntSource(self, "storage_offset", 0)

    def call(self, function: Callable[[Any], Any], text: str) -> CallSource:
        """``function(value)`` of a pure function, printed by ``text`` with ``{}`` for the value. Slow in guards."""
        return CallSource(self, function, text)


def _wrap(text: str) -> str:
    """Parenthesise what does not bind as tightly as attribute access."""
    return text if _PRIMARY.fullmatch(text) or text[-1:] in ")]" else f"({text})"


_PRIMARY = re.compile(r"""[\w.]+(\[[\w'"]*\][\w.]*)*""")


# ---- roots


class LocalSource(Source):
    """An argument of the frame. ``key`` is the slot."""

    __slots__ = ("local",)

    def __init__(self, slot: int, name: str) -> None:
        super().__init__(None, slot)
        self.local = name

    def name(self) -> str:
        return self.local

    def get(self, frame: FrameValues) -> Any:
        return frame.args[self.key]


class FunctionSource(Source):
    """The frame's function object. Guards can read it; replacement code reads only closure cells below it."""

    __slots__ = ("function_name",)

    def __init__(self, name: str) -> None:
        super().__init__(None, None)
        self.function_name = name

    def name(self) -> str:
        return self.function_name

    def get(self, frame: FrameValues) -> Any:
        return frame.function


class ClosureSource(Source):
    """A closure cell of the frame's function; ``cell_contents()`` is its value. ``key`` is the index."""

    __slots__ = ("variable",)

    def __init__(self, index: int, name: str) -> None:
        super().__init__(None, index)
        self.variable = name

    def name(self) -> str:
        return f"<cell {self.variable}>"

    def get(self, frame: FrameValues) -> Any:
        cells = frame.function.__closure__
        assert cells is not None
        return cells[self.key]


class GlobalSource(Source):
    """A global variable. ``scope`` is None for the frame's own globals, else an inlined function's globals dict."""

    __slots__ = ("scope",)

    def __init__(self, name: str, scope: dict[str, Any] | None) -> None:
        super().__init__(None, name)
        self.scope = scope

    def name(self) -> str:
        if self.scope is None:
            return str(self.key)
        return f"{self.scope.get('__name__', '<globals>')}.{self.key}"

    def get(self, frame: FrameValues) -> Any:
        return (frame.function.__globals__ if self.scope is None else self.scope)[self.key]


class GlobalsSource(Source):
    """A globals dict itself: the frame's own (``scope`` None) or an inlined function's."""

    __slots__ = ("scope",)

    def __init__(self, scope: dict[str, Any] | None) -> None:
        super().__init__(None, None)
        self.scope = scope

    def name(self) -> str:
        return "globals()" if self.scope is None else f"vars({self.scope.get('__name__', '<globals>')})"

    def get(self, frame: FrameValues) -> Any:
        return frame.function.__globals__ if self.scope is None else self.scope


class BuiltinSource(Source):
    """A builtin name, found through the frame's ``__builtins__``. Guard apart that no global shadows it."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(None, name)

    def name(self) -> str:
        return str(self.key)

    def get(self, frame: FrameValues) -> Any:
        function: Any = frame.function  # its __builtins__ are not in the type stubs
        return function.__builtins__[self.key]


class ModuleSource(Source):
    """``sys.modules[name]``."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(None, name)

    def name(self) -> str:
        return str(self.key)

    def get(self, frame: FrameValues) -> Any:
        return sys.modules[self.key]


class ConstSource(Source):
    """An object that the guards and the replacement code hold themselves (strongly). ``key`` is the object."""

    __slots__ = ("label",)

    def __init__(self, value: Any, label: str) -> None:
        super().__init__(None, value)
        self.label = label

    def name(self) -> str:
        return self.label

    def get(self, frame: FrameValues) -> Any:
        return self.key


# ---- steps


class _Step(Source):
    """A source below another; constructing it again gives the same object."""

    __slots__ = ()
    base: Source

    def __new__(cls, base: Source, *key: Any) -> Any:
        table_key = (cls, *(typed_key(k) for k in key)) if key else (cls,)
        found = base._children.get(table_key)
        if found is None:
            found = base._children[table_key] = object.__new__(cls)
            Source.__init__(found, base, key[0] if len(key) == 1 else key)
        return found

    def __init__(self, *args: Any) -> None:
        pass


class AttrSource(_Step):
    """``getattr(base, key)``."""

    __slots__ = ()

    def name(self) -> str:
        return f"{_wrap(self.base.name())}.{self.key}"

    def step(self, value: Any) -> Any:
        return getattr(value, self.key)


class InstanceAttrSource(_Step):
    """``base.__dict__[key]``, whatever the type defines."""

    __slots__ = ()

    def name(self) -> str:
        return f"{_wrap(self.base.name())}.{self.key}"

    def step(self, value: Any) -> Any:
        return value.__dict__[self.key]


class MemberSource(_Step):
    """``base.__dict__[table][name]``; ``key`` is (table, name)."""

    __slots__ = ()

    def name(self) -> str:
        name = self.key[1]
        base = _wrap(self.base.name())
        return f"{base}[{name}]" if name.isdigit() else f"{base}.{name}"

    def step(self, value: Any) -> Any:
        return value.__dict__[self.key[0]][self.key[1]]


class TypeAttrSource(_Step):
    """The raw attribute ``key`` in the MRO of the type ``base``."""

    __slots__ = ()

    def name(self) -> str:
        return f"{_wrap(self.base.name())}.{self.key}"

    def step(self, value: Any) -> Any:
        for cls in value.__mro__:
            if self.key in cls.__dict__:
                return cls.__dict__[self.key]
        raise AttributeError(f"type object {value.__name__!r} has no attribute {self.key!r}")


def key_text(key: Any) -> str:
    """A dictionary key in a name: tensors (an optimizer's state) by their shape."""
    return f"<{type(key).__name__} {list(key.shape)}>" if isinstance(key, torch.Tensor) else repr(key)


class ItemSource(_Step):
    """``base[key]``; a look makes no entry in a defaultdict (an optimizer's state)."""

    __slots__ = ()

    def name(self) -> str:
        return f"{_wrap(self.base.name())}[{key_text(self.key)}]"

    def step(self, value: Any) -> Any:
        if isinstance(value, dict) and not dict.__contains__(value, self.key):
            raise KeyError(self.key)
        return value[self.key]


class RawItemSource(_Step):
    """``dict.__getitem__(base, key)``, or that of list or tuple: past an override of ``__getitem__``."""

    __slots__ = ()

    def name(self) -> str:
        return f"{_wrap(self.base.name())}[{key_text(self.key)}]"

    def step(self, value: Any) -> Any:
        return raw_container(value).__getitem__(value, self.key)


def raw_container(value: Any) -> Any:
    """The builtin container class that ``value`` is an instance of. TypeError if none."""
    for cls in (dict, list, tuple, set, frozenset):
        if isinstance(value, cls):
            return cls
    raise TypeError(f"{type(value).__name__} is no builtin container")


def raw_length(value: Any) -> int:
    """``len(value)``, past an override of ``__len__`` in a subclass of a builtin container."""
    try:
        length: int = raw_container(value).__len__(value)
    except TypeError:
        return len(value)
    return length


class DictKeySource(_Step):
    """The ``key``-th key of the dict ``base``."""

    __slots__ = ()

    def name(self) -> str:
        return f"list({self.base.name()})[{self.key}]"

    def step(self, value: Any) -> Any:
        for i, key in enumerate(dict.keys(value)):
            if i == self.key:
                return key
        raise IndexError(self.key)


class TypeSource(_Step):
    """``type(base)``."""

    __slots__ = ()

    def name(self) -> str:
        return f"type({self.base.name()})"

    def step(self, value: Any) -> Any:
        return type(value)


class CellContentsSource(_Step):
    """``base.cell_contents``; of a frame's own closure cell it prints as the variable."""

    __slots__ = ()

    def name(self) -> str:
        return (
            self.base.variable if isinstance(self.base, ClosureSource) else f"{_wrap(self.base.name())}.cell_contents"
        )

    def step(self, value: Any) -> Any:
        return value.cell_contents


class TensorIntSource(_Step):
    """``base.size(dim)``, ``base.stride(dim)`` or ``base.storage_offset()``; ``key`` is (what, dim)."""

    __slots__ = ()

    def name(self) -> str:
        what, dim = self.key
        if what == "size":
            return f"{_wrap(self.base.name())}.shape[{dim}]"
        return f"{_wrap(self.base.name())}.{what}({'' if what == 'storage_offset' else dim})"

    def step(self, value: Any) -> Any:
        what, dim = self.key
        return value.storage_offset() if what == "storage_offset" else getattr(value, what)(dim)


class CallSource(_Step):
    """``function(base)``; ``key`` is (function, text)."""

    __slots__ = ()

    def name(self) -> str:
        return str(self.key[1]).format(self.base.name())

    def step(self, value: Any) -> Any:
        return self.key[0](value)


@dataclass(slots=True)
class FrameSources:
    """The roots of one capture. Keep one for each frame that is captured; its sources are interned here."""

    code: CodeType
    _roots: dict[Hashable, Source] = field(default_factory=dict)

    def _root(self, key: Hashable, make: Callable[[], Source]) -> Any:
        found = self._roots.get(key)
        if found is None:
            found = self._roots[key] = make()
        return found

    def local(self, which: int | str) -> LocalSource:
        """The argument in a slot, or of a name. ValueError if it is no argument."""
        names = self.code.co_varnames[: argument_count(self.code)]
        slot = names.index(which) if isinstance(which, str) else which
        if not 0 <= slot < len(names):
            raise ValueError(f"{self.code.co_name} has no argument slot {slot}")
        out: LocalSource = self._root(("local", slot), lambda: LocalSource(slot, names[slot]))
        return out

    def function(self) -> FunctionSource:
        out: FunctionSource = self._root("function", lambda: FunctionSource(self.code.co_name))
        return out

    def closure(self, which: int | str) -> ClosureSource:
        """The cell of a free variable, by index into ``co_freevars`` or by name."""
        index = self.code.co_freevars.index(which) if isinstance(which, str) else which
        name = self.code.co_freevars[index]
        out: ClosureSource = self._root(("closure", index), lambda: ClosureSource(index, name))
        return out

    def global_(self, name: str, scope: dict[str, Any] | None = None) -> GlobalSource:
        """A global of the frame, or of another globals dict. Pass None for the frame's own."""
        out: GlobalSource = self._root(
            ("global", name, id(scope) if scope is not None else 0), lambda: GlobalSource(name, scope)
        )
        return out

    def globals(self, scope: dict[str, Any] | None = None) -> GlobalsSource:
        out: GlobalsSource = self._root(
            ("globals", id(scope) if scope is not None else 0), lambda: GlobalsSource(scope)
        )
        return out

    def builtin(self, name: str) -> BuiltinSource:
        out: BuiltinSource = self._root(("builtin", name), lambda: BuiltinSource(name))
        return out

    def module(self, name: str) -> ModuleSource:
        out: ModuleSource = self._root(("module", name), lambda: ModuleSource(name))
        return out

    def const(self, value: Any, label: str | None = None) -> ConstSource:
        """An object held by the compiled code; one source for each object."""
        out: ConstSource = self._root(("const", id(value)), lambda: ConstSource(value, label or repr(value)))
        return out

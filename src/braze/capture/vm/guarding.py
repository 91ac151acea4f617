"""Adding guards: which kind of guard pins which fact about a value with a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import numpy as np
import torch

from braze.capture.guards import (
    ClassLacks,
    CodeIs,
    Custom,
    DictHas,
    DictKeys,
    Distinct,
    EqualsConst,
    GlobalState,
    GuardSet,
    HasNoAttr,
    IdIs,
    InstanceLacks,
    Length,
    NotNone,
    Relation,
    Same,
    TensorMatch,
    TensorSpec,
    Truth,
    TypeIs,
)
from braze.capture.source import ConstSource, Source
from braze.ir import Expr, IntLike, symbol, symbols

_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented))
_THIS, _THAT = symbol("this"), symbol("that")
_BY_VALUE = (*_ATOMS, torch.device, range, slice, frozenset)


@dataclass(frozen=True, slots=True)
class _Instance:
    cls: type
    wanted: bool

    def __call__(self, value: Any) -> bool:
        return isinstance(value, self.cls) is self.wanted


@dataclass(frozen=True, slots=True)
class _Scalar:
    cls: type
    content: bytes

    def __call__(self, value: Any) -> bool:
        return type(value) is self.cls and bool(value.tobytes() == self.content)  # type: ignore[attr-defined]


class Frozen(ConstSource):
    """An object held by the compiled code that nobody changes, nor anything that it holds: no guards below it."""

    __slots__ = ()


def _fixed(source: Source | None) -> bool:
    """Whether the value at the source cannot change: made by the trace, or held by the compiled code."""
    return source is None or isinstance(source, ConstSource) or isinstance(source.root, Frozen)


def _frozen(source: Source | None) -> bool:
    """Whether neither the object at the source nor what it holds can change."""
    return source is None or isinstance(source.root, Frozen)


class Guards:
    """Collects the guards of one capture. Every method ignores values without a source."""

    def __init__(self, state: GlobalState) -> None:
        self.set = GuardSet([state])

    def const(self, source: Source | None, raw: Any) -> None:
        """The value is ``raw``: by value for immutable builtins, by identity for everything else."""
        if _fixed(source):
            return
        assert source is not None
        by_value = type(raw) in _BY_VALUE or type(raw) is tuple and all(type(x) in _ATOMS for x in raw)
        if isinstance(raw, np.generic) and not isinstance(raw, np.void):  # a new object in each call, mostly
            self.set.add(Custom(source, _Scalar(type(raw), raw.tobytes()), repr(raw)))
        else:
            self.set.add(EqualsConst(source, raw) if by_value else IdIs.of(source, raw))

    def function(self, source: Source | None, raw: FunctionType) -> None:
        """A call of the function means the same: identity, or the code alone for a closure (its cells are guarded)."""
        if _fixed(source):
            return
        assert source is not None
        if "<locals>" in raw.__qualname__ or raw.__qualname__.endswith("<resume>"):
            self.set.add(CodeIs.of(source, raw.__code__))
        else:
            self.set.add(IdIs.of(source, raw))

    def class_attribute(self, cls_source: Source, name: str, raw: Any) -> None:
        """The class still has this attribute: nobody patched the method."""
        self.set.add(IdIs.of(cls_source.type_attr(name), raw))

    def same_object(self, source: Source, raw: Any) -> None:
        """A module's variable still holds this function, class or module."""
        self.set.add(IdIs.of(source, raw))

    def code(self, source: Source, raw: FunctionType) -> None:
        """The function still has the code that was inlined: nobody reloaded it in place."""
        if not isinstance(source.root, Frozen):
            self.set.add(CodeIs.of(source, raw.__code__))

    def instance_of(self, source: Source, cls: type, wanted: bool) -> None:
        """What ``isinstance`` says, of a class that decides it by code of its own or by what is registered."""
        text = f"{'an' if wanted else 'no'} instance of {cls.__qualname__}"
        self.set.add(Custom(source, _Instance(cls, wanted), text))

    def custom(self, source: Source, check: Any, text: str) -> None:
        """``check(value)`` is true."""
        self.set.add(Custom(source, check, text))

    def class_lacks(self, source: Source, name: str) -> None:
        """Neither the class at the source nor its bases have the attribute."""
        self.set.add(ClassLacks(source, name))

    def type_(self, source: Source | None, cls: type) -> None:
        if not _fixed(source):
            assert source is not None
            self.set.add(TypeIs(source, cls))

    def length(self, source: Source | None, n: int) -> None:
        if not _frozen(source):
            assert source is not None
            self.set.add(Length(source, n))

    def keys(self, source: Source | None, raw: dict[Any, Any]) -> None:
        """The dict has exactly these keys, in this order."""
        if not _frozen(source):
            assert source is not None
            if raw:
                self.set.add(DictKeys(source, tuple(dict.keys(raw))))
            else:
                self.set.add(Truth(source, False))

    def has_key(self, source: Source | None, key: Any, present: bool) -> None:
        if not _frozen(source):
            assert source is not None
            self.set.add(DictHas(source, key, present))

    def set_(self, source: Source | None, raw: Any) -> None:
        """The set's items, which must be constants."""
        if not _frozen(source):
            assert source is not None
            frozen = frozenset(raw)
            self.set.add(EqualsConst(source.call(frozenset, "frozenset({})"), frozen))

    def lacks(self, source: Source | None, name: str) -> None:
        """The instance dict does not shadow a class attribute."""
        if not _frozen(source):
            assert source is not None
            self.set.add(InstanceLacks(source, name))

    def no_attr(self, source: Source | None, name: str) -> None:
        if not _frozen(source):
            assert source is not None
            self.set.add(HasNoAttr(source, name))

    def not_none(self, source: Source | None) -> None:
        if not _fixed(source):
            assert source is not None
            self.set.add(NotNone(source))

    def empty(self, source: Source) -> None:
        self.set.add(Truth(source, False))

    def tensor(
        self, source: Source, raw: torch.Tensor, sizes: tuple[IntLike, ...], strides: tuple[IntLike, ...]
    ) -> None:
        """The tensor's metadata; symbolic sizes and strides are left to the guards of their symbols."""
        spec = TensorSpec.of(raw)
        if any(isinstance(n, Expr) for n in sizes):
            fixed = tuple(None if isinstance(n, Expr) else n for n in sizes)
            spec = replace(spec, sizes=fixed, strides=tuple(None if isinstance(n, Expr) else n for n in strides))
        self.set.add(TensorMatch(source, spec))

    def same(self, a: Source, b: Source) -> None:
        if a is not b:
            self.set.add(Same(a, b))

    def apart(self, a: Source, b: Source | None, memory: Callable[[Any], int]) -> None:
        """Two tensors do not share their memory."""
        if b is not None:
            ends = [(symbols(e).pop(), s.call(memory, "the memory of {}")) for e, s in zip((_THIS, _THAT), (a, b))]
            self.set.add(Relation("!=", _THIS, _THAT, tuple(ends)))

    def distinct(self, sources: list[Source]) -> None:
        if len(sources) > 1:
            self.set.add(Distinct(tuple(sources)))

"""The table of decompositions: one row an ATen overload.

A row ``fn(b, *args, **kwargs)`` takes a :class:`Builder` and the overload's arguments (nodes for tensors) and gives the
nodes of the results: one node, or a tuple with None for absent results.  ``b.out`` is what the ATen graph promises of
the results; ``decompose`` converts to its dtype at the end, so a row may compute in a wider one.  A row may return
``NotImplemented``: the call then stays as it is (opaque).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch._ops import OpOverload

Fn = Callable[..., Any]
F = TypeVar("F", bound=Fn)


@dataclass(frozen=True, slots=True)
class Row:
    """A decomposition. ``any_dtype``: it only moves elements, so it holds for complex and exotic dtypes too."""

    fn: Fn
    any_dtype: bool = False


DECOMPOSITIONS: dict[str, Row] = {}
"""Overload name without ``aten::`` ("add.Tensor"; "relu" for the default overload) -> row."""

_FOUND: dict[OpOverload, Row | None] = {}


def register(names: str, fn: Fn, any_dtype: bool = False) -> None:
    """``fn`` for each overload in a space-separated list. AssertionError when one has a row already."""
    for name in names.split():
        assert name not in DECOMPOSITIONS, f"two decompositions of {name}"
        DECOMPOSITIONS[name] = Row(fn, any_dtype)


def decomposes(names: str, any_dtype: bool = False) -> Callable[[F], F]:
    """Decorator form of :func:`register`."""

    def add(fn: F) -> F:
        register(names, fn, any_dtype)
        return fn

    return add


def overload_name(op: OpOverload) -> str:
    """``aten.add.Tensor`` -> "add.Tensor"; other namespaces keep theirs: "mylib::op"."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    return name[6:] if name.startswith("aten::") else name


def decomposition_of(op: OpOverload) -> Row | None:
    """The row of an overload, or None."""
    if op not in _FOUND:
        _FOUND[op] = DECOMPOSITIONS.get(overload_name(op))
    return _FOUND[op]

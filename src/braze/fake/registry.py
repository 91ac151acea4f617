"""The table of shape rules: one row an operator name, looked up once for each ``OpOverload``.

A rule is called like the operator, with a :class:`~braze.ir.TensorType` in the place of each tensor (``out=`` arguments
removed), and returns the result's type, a tuple or list of types, or None for an absent result.  The rule of ``add``
serves every overload of ``aten::add`` and of ``aten::add_``; a row "sum.dim_IntList" serves that overload alone.  Rules
are pure: they may be memoised, and never look at data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch._ops import OpOverload

from ..errors import Unsupported

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)


class DataDependent(Unsupported):
    """The operator's result, or the result's shape, depends on the values of a tensor."""


BY_NAME: dict[str, Rule] = {}
EXECUTABLE: set[str] = set()
RULES: dict[OpOverload, Rule] = {}


def rule(*names: str) -> Callable[[F], F]:
    """Decorator: the rule for these operators. Each argument is a space-separated list of names.

    Names without a namespace are ``aten``'s. ValueError when a name has a rule already.
    """

    def add(f: F) -> F:
        register(f, " ".join(names).split())
        return f

    return add


def register(f: Rule, names: Iterable[str]) -> None:
    """Give ``f`` as the rule of each name; see :func:`rule`."""
    for name in names:
        full = name if "::" in name else f"aten::{name}"
        if full in BY_NAME:
            raise ValueError(f"{full} has two shape rules")
        BY_NAME[full] = f


def executable(names: str) -> None:
    """Operators that may be answered by running them on zeros: see :mod:`braze.fake.execute`."""
    EXECUTABLE.update(f"aten::{n}" for n in names.split())


def may_execute(op: OpOverload) -> bool:
    """Whether ``op`` is on the list of :func:`executable`; an ``out=`` form counts as its functional twin."""
    return any(n in EXECUTABLE for n in _names(op))


def _names(op: OpOverload) -> list[str]:
    """The table's names that may stand for an overload, most specific first.

    ``add.out`` -> add.out, add, add.default; ``arange.start_out`` -> ..., arange.start, arange; ``add_.Tensor`` ->
    add_.Tensor, add_, add.Tensor, add.
    """
    base: str = op._schema.name
    overload: str = op._overloadname
    names = [f"{base}.{overload}"]
    stem = overload[:-3].rstrip("_") if overload.endswith("out") else ""
    names += [f"{base}.{stem}", base] if stem else [base]
    if overload == "out":
        names.append(f"{base}.default")
    if base.endswith("_"):
        names += [f"{base[:-1]}.{overload}", base[:-1]]
    return names


def find_rule(op: OpOverload) -> Rule | None:
    """The rule of an overload, or None. Order: exact overload, operator name, the name without its final "_"."""
    found = RULES.get(op)
    if found is None:
        found = next((BY_NAME[n] for n in _names(op) if n in BY_NAME), None)
        if found is not None:
            RULES[op] = found
    return found

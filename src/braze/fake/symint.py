"""Symbolic sizes at torch's boundary: an ``Expr`` dressed as a ``torch.SymInt``.

Rules work on ``Expr``; a ``SymInt`` exists only because the wrapper tensor's sizes live in C++. Torch calls the node's
methods by name (the protocol of ``torch/csrc/utils/python_symnode.h``). A question that the symbols' ranges do not
answer goes to the ``decide`` callback, which answers from the hints and records a guard.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ..errors import Unsupported
from ..ir import Expr, IntLike, evaluate, floordiv, known_eq, known_le, known_lt, mod, sym_max, sym_min
from ..ir.decisions import Decisions
from . import layout

Text = str  # the nodes have a method of that name
Decide = Callable[[Text, IntLike, IntLike], bool]


def refuse(op: Text, a: IntLike, b: IntLike) -> bool:
    """The default ``decide``: no question that needs a guard is answered."""
    raise Unsupported(f"the trace depends on whether {a} {op} {b}", hint="mark the size as static")


@lru_cache(65536)
def _order(a: IntLike, b: IntLike) -> tuple[bool, bool, bool, bool, bool]:
    """What the ranges prove: a == b, a < b, a <= b, a > b, a >= b."""
    return known_eq(a, b), known_lt(a, b), known_le(a, b), known_lt(b, a), known_le(b, a)


_add = lru_cache(65536)(operator.add)
_mul = lru_cache(65536)(operator.mul)


class BoolNode:
    """A comparison ``a op b`` of symbolic integers, or a known truth (``known``)."""

    __slots__ = ("decide", "op", "a", "b", "known")

    def __init__(self, decide: Decide, op: Text, a: IntLike, b: IntLike, known: bool | None) -> None:
        self.decide, self.op, self.a, self.b, self.known = decide, op, a, b, known

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return True

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return self.known is None

    def is_constant(self) -> bool:
        return self.known is not None

    def maybe_as_int(self) -> int | None:
        return None

    def constant_bool(self) -> bool | None:
        return self.known

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        if self.known is None:
            self.known = self.decide(self.op, self.a, self.b)
        return self.known

    def bool_(self) -> bool:
        return self.guard_bool()

    expect_true = guard_size_oblivious = guard_or_false = guard_or_true = guard_bool

    def statically_known_true(self, file: str = "", line: int = 0) -> bool:
        return self.known is True

    def sym_not(self) -> BoolNode:
        return _truth(self.decide, not self.guard_bool())

    def sym_and(self, other: BoolNode) -> BoolNode:
        return _truth(self.decide, self.guard_bool() and other.guard_bool())

    def sym_or(self, other: BoolNode) -> BoolNode:
        return _truth(self.decide, self.guard_bool() or other.guard_bool())

    and_, or_ = sym_and, sym_or

    def wrap_bool(self, value: bool) -> BoolNode:
        return _truth(self.decide, value)

    def wrap_int(self, value: int) -> IntNode:
        return IntNode(value, self.decide)

    def str(self) -> Any:
        return f"{self.a} {self.op} {self.b}" if self.known is None else repr(self.known)


class FloatNode:
    """A float that C++ made of a symbolic integer, whose value is fixed thereby."""

    __slots__ = ("value", "decide")

    def __init__(self, value: float, decide: Decide) -> None:
        self.value, self.decide = value, decide

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return True

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def constant_float(self) -> float:
        return self.value

    maybe_as_float = constant_float

    def guard_float(self, file: Text = "", line: int = 0) -> float:
        return self.value

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value, self.decide)

    def wrap_int(self, value: int) -> IntNode:
        return IntNode(value, self.decide)

    def sym_float(self) -> FloatNode:
        return self

    def clone(self) -> FloatNode:
        return self

    def sqrt(self) -> FloatNode:
        return FloatNode(math.sqrt(self.value), self.decide)

    def neg(self) -> FloatNode:
        return FloatNode(-self.value, self.decide)

    def floor(self) -> IntNode:
        return IntNode(math.floor(self.value), self.decide)

    def ceil(self) -> IntNode:
        return IntNode(math.ceil(self.value), self.decide)

    def _with(self, f: Callable[[float, float], float], o: Any) -> FloatNode:
        other = o.value if isinstance(o, FloatNode) else o.guard_int()
        return FloatNode(f(self.value, other), self.decide)

    def add(self, o: Any) -> FloatNode:
        return self._with(operator.add, o)

    def sub(self, o: Any) -> FloatNode:
        return self._with(operator.sub, o)

    def mul(self, o: Any) -> FloatNode:
        return self._with(operator.mul, o)

    def truediv(self, o: Any) -> FloatNode:
        return self._with(operator.truediv, o)

    float_truediv = truediv

    def pow(self, o: Any) -> FloatNode:
        return self._with(operator.pow, o)

    float_pow = pow

    def _compared(self, f: Callable[[float, float], bool], o: Any) -> BoolNode:
        return _truth(self.decide, f(self.value, o.value if isinstance(o, FloatNode) else o.guard_int()))

    def eq(self, o: Any) -> BoolNode:
        return self._compared(operator.eq, o)

    def ne(self, o: Any) -> BoolNode:
        return self._compared(operator.ne, o)

    def lt(self, o: Any) -> BoolNode:
        return self._compared(operator.lt, o)

    def le(self, o: Any) -> BoolNode:
        return self._compared(operator.le, o)

    def gt(self, o: Any) -> BoolNode:
        return self._compared(operator.gt, o)

    def ge(self, o: Any) -> BoolNode:
        return self._compared(operator.ge, o)

    def str(self) -> Any:
        return repr(self.value)


def _truth(decide: Decide, value: bool) -> BoolNode:
    return BoolNode(decide, "", 0, 0, value)


class IntNode:
    """A symbolic (or constant) integer as torch sees it."""

    __slots__ = ("expr", "decide")

    def __init__(self, expr: IntLike, decide: Decide) -> None:
        self.expr, self.decide = expr, decide

    def is_int(self) -> bool:
        return True

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    @property
    def hint(self) -> int:
        return self.decide.value(self.expr) if isinstance(self.decide, Decisions) else evaluate(self.expr)

    def is_symbolic(self) -> bool:
        return isinstance(self.expr, Expr)

    def is_constant(self) -> bool:
        return not isinstance(self.expr, Expr)

    def maybe_as_int(self) -> int | None:
        return None if isinstance(self.expr, Expr) else self.expr

    constant_int = maybe_as_int

    def nested_int(self) -> int | None:
        return None

    @property
    def constant(self) -> int | None:
        return self.maybe_as_int()

    def clone(self) -> IntNode:
        return self

    def wrap_int(self, value: int) -> IntNode:
        return IntNode(value, self.decide)

    def wrap_bool(self, value: bool) -> BoolNode:
        return _truth(self.decide, value)

    def str(self) -> Any:
        return repr(self.expr)

    _graph_repr = str

    def guard_int(self, file: Text = "", line: int = 0) -> int:
        """The value itself is needed: the size becomes static."""
        if isinstance(self.expr, Expr):
            if isinstance(self.decide, Decisions):
                return self.decide.number(self.expr)
            value = evaluate(self.expr)
            if not self.decide("==", self.expr, value):
                raise Unsupported(f"the value of {self.expr} is needed")
            return value
        return self.expr

    int_ = guard_int

    def bool_(self) -> bool:
        return self.ne(self.wrap_int(0)).guard_bool()

    def _new(self, expr: IntLike) -> IntNode:
        return IntNode(expr, self.decide)

    def sym_float(self) -> FloatNode:
        return FloatNode(float(self.guard_int()), self.decide)

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(value, self.decide)

    def truediv(self, o: IntNode) -> FloatNode:
        return FloatNode(self.guard_int() / o.guard_int(), self.decide)

    int_truediv = truediv

    def pow(self, o: IntNode) -> IntNode:
        return self._new(self.guard_int() ** o.guard_int())

    pow_by_natural = pow

    def add(self, o: IntNode) -> IntNode:
        return self._new(_add(self.expr, o.expr))

    def sub(self, o: IntNode) -> IntNode:
        return self._new(self.expr - o.expr)

    def mul(self, o: IntNode) -> IntNode:
        return self._new(_mul(self.expr, o.expr))

    def neg(self) -> IntNode:
        return self._new(-self.expr)

    def floordiv(self, o: IntNode) -> IntNode:
        return self._new(floordiv(self.expr, o.expr))

    int_floordiv = floordiv

    def mod(self, o: IntNode) -> IntNode:
        return self._new(mod(self.expr, o.expr))

    def sym_max(self, o: IntNode) -> IntNode:
        return self._new(sym_max(self.expr, o.expr))

    def sym_min(self, o: IntNode) -> IntNode:
        return self._new(sym_min(self.expr, o.expr))

    def sym_sum(self, terms: Any) -> IntNode:
        total: IntLike = 0
        for t in terms:
            total = total + (t.expr if isinstance(t, IntNode) else t)
        return self._new(total)

    def _compare(self, op: Text, o: IntNode, yes: bool, no: bool) -> BoolNode:
        return BoolNode(self.decide, op, self.expr, o.expr, True if yes else False if no else None)

    def eq(self, o: IntNode) -> BoolNode:
        same, less, _, more, _ = _order(self.expr, o.expr)
        return self._compare("==", o, same, less or more)

    def ne(self, o: IntNode) -> BoolNode:
        same, less, _, more, _ = _order(self.expr, o.expr)
        return self._compare("!=", o, less or more, same)

    def lt(self, o: IntNode) -> BoolNode:
        known = _order(self.expr, o.expr)
        return self._compare("<", o, known[1], known[4])

    def le(self, o: IntNode) -> BoolNode:
        known = _order(self.expr, o.expr)
        return self._compare("<=", o, known[2], known[3])

    def gt(self, o: IntNode) -> BoolNode:
        known = _order(self.expr, o.expr)
        return self._compare(">", o, known[3], known[2])

    def ge(self, o: IntNode) -> BoolNode:
        known = _order(self.expr, o.expr)
        return self._compare(">=", o, known[4], known[1])

    # What C++ asks about a tensor's layout, with the nodes of its sizes and strides.

    def is_contiguous(self, sizes: Any, strides: Any) -> BoolNode:
        return _truth(self.decide, layout.is_contiguous(_ints(sizes), _ints(strides)))

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> BoolNode:
        return _truth(self.decide, layout.is_dense(_ints(sizes), _ints(strides)))

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> BoolNode:
        n = _ints(sizes)
        return _truth(self.decide, len(n) == 4 and layout.is_channels_last(n, _ints(strides)))

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> BoolNode:
        n = _ints(sizes)
        return _truth(self.decide, len(n) == 5 and layout.is_channels_last(n, _ints(strides)))

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> BoolNode:
        n = _ints(sizes)
        return _truth(self.decide, len(n) == 4 and layout.suggests_channels_last(n, _ints(strides)))

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> BoolNode:
        n = _ints(sizes)
        return _truth(self.decide, len(n) == 5 and layout.suggests_channels_last(n, _ints(strides)))


def _ints(nodes: Any) -> tuple[IntLike, ...]:
    return tuple([n.expr if isinstance(n, IntNode) else n for n in nodes])


def to_symint(e: IntLike, decide: Decide = refuse) -> Any:
    """An int as it is, an Expr as a ``torch.SymInt``."""
    node: Any = IntNode(e, decide)
    return torch.SymInt(node) if isinstance(e, Expr) else e


def to_static(e: IntLike, decide: Decide) -> int:
    """The value of ``e``, by a guard that it is that value where ``e`` is symbolic."""
    return IntNode(e, decide).guard_int()


def to_expr(x: Any) -> IntLike:
    """The Expr (or int) behind a SymInt of ours; ints as they are."""
    if isinstance(x, torch.SymInt):
        node = x.node
        if not isinstance(node, IntNode):
            raise Unsupported(f"a symbolic integer of another tracer: {x}")
        return node.expr
    return int(x)

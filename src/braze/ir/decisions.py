"""Decisions on symbolic integers: what a trace took for granted; its program is right for every size that agrees.

A stage that needs to know more about a size than its range says asks ``decisions(op, a, b)``.  What the range and
earlier answers prove costs nothing; anything else is answered from the hints (the sizes of the call at hand) and kept
in ``taken``, and capture makes a guard of each::

    n = symbol("s0", 2, hint=8)
    decisions("<", n, 512)      # True; taken: s0 <= 511, and from now on the range of s0 is [2, 511]
    decisions("==", n, m)       # True where both are 8; from now on m is n: ``resolve(m) == n``
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import Unsupported
from .expr import (
    Call,
    Expr,
    IntLike,
    Symbol,
    bounds,
    cancelled,
    coefficient,
    evaluate,
    known_le,
    known_lt,
    substitute,
    symbol,
    symbol_of,
    symbols,
    terms_of,
)
from .graph import Graph, map_leaves
from .types import Loc, TensorType

_TRUTH: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


@dataclass(frozen=True)
class Decision:
    """``lhs op rhs`` is taken for granted; op is one of ==, !=, <, <=. ``loc`` is the user's line that asked."""

    op: str
    lhs: IntLike
    rhs: IntLike
    loc: Loc | None = None

    def __str__(self) -> str:
        return f"{self.lhs} {self.op} {self.rhs}"


class Decisions:
    """Answers questions about symbolic integers and remembers what it took for granted. ``locate()`` names the user's
    line at hand."""

    def __init__(self, locate: Callable[[], Loc | None] | None = None) -> None:
        self.locate = locate
        self.hints: dict[str, int] = {}
        self.taken: list[Decision] = []
        self.closed = False  # guards are made: nothing more can be taken for granted
        self.ranges: dict[str, tuple[int, int]] = {}  # of every symbol, as decisions have narrowed it
        self._is: dict[str, IntLike] = {}  # what a symbol is by now: another expression, or itself in a smaller range
        self._resolved: dict[Expr, IntLike] = {}
        self._types: dict[TensorType, TensorType] = {}
        self._facts: dict[tuple[str, IntLike, IntLike], bool] = {}  # answers that no symbol's range can hold

    def new(self, name: str, hint: int, lo: int, hi: int) -> Expr:
        """A symbol of this name, which no other symbol here has."""
        assert name not in self.hints, name
        self.hints[name], self.ranges[name] = hint, (lo, hi)
        return symbol(name, lo, hi, hint)

    def value(self, e: IntLike) -> int:
        """The value at the call at hand."""
        return evaluate(e, self.hints)

    @property
    def refined(self) -> bool:
        """Whether anything is known that the symbols themselves do not say."""
        return bool(self._is)

    # -- asking

    def __call__(self, op: str, a: IntLike, b: IntLike) -> bool:
        a, b = self.resolve(a), self.resolve(b)
        if op in (">", ">="):
            op, a, b = op.replace(">", "<"), b, a
        if op == "!=":
            return not self("==", a, b)
        known = proven(op, a, b)
        if known is None:
            known = self._facts.get((op, a, b))
        if known is not None:
            return known
        if self.closed:
            raise Unsupported(f"the backward depends on whether {a} {op} {b}", hint="mark the size as static")
        truth = _TRUTH[op](self.value(a), self.value(b))
        if op == "==":
            self._equal(a, b) if truth else self._take("!=", a, b)
        elif truth:
            self._at_most(a - b + (op == "<"), (op, a, b))
        else:
            self._at_most(b - a + (op == "<="), ("<=" if op == "<" else "<", b, a))
        self._facts[op, a, b] = truth
        return truth

    def number(self, e: IntLike) -> int:
        """The value of ``e``, which becomes fixed."""
        e = self.resolve(e)
        if isinstance(e, Expr):
            value = self.value(e)
            self("==", e, value)
            return value
        return e

    # -- what is known

    def resolve(self, e: IntLike) -> IntLike:
        """``e`` with everything put in that was decided."""
        if not isinstance(e, Expr) or not self._is:
            return e
        out = self._resolved.get(e)
        if out is None:
            out = self._resolved[e] = substitute(e, {s: self._is[s.name] for s in symbols(e) if s.name in self._is})
        return out

    def resolve_type(self, t: TensorType) -> TensorType:
        if not self._is:
            return t
        out = self._types.get(t)
        if out is None:
            sizes, strides = tuple(map(self.resolve, t.sizes)), tuple(map(self.resolve, t.strides))
            out = self._types[t] = t.with_(sizes=sizes, strides=strides, offset=self.resolve(t.offset))
        return out

    def put(self, tree: Any) -> Any:
        """Nested types and sizes with everything put in that was decided."""
        if not self._is:
            return tree
        return map_leaves(
            tree,
            lambda x: self.resolve_type(x) if type(x) is TensorType else self.resolve(x) if isinstance(x, Expr) else x,
        )

    def sized(self, t: TensorType) -> TensorType:
        """``t`` with symbolic sizes that are neither 0 nor 1, which shape rules take for granted: a size that is 0 or 1
        at the call at hand becomes that number. RuntimeError for a negative one."""
        if all(not isinstance(n, Expr) or bounds(n)[0] >= 2 for n in t.sizes):
            return t
        for n in map(self.resolve, t.sizes):
            if isinstance(n, Expr) and bounds(n)[0] < 2:
                value = self.value(n)
                if value < 0:
                    raise RuntimeError(f"a size of {value} (from {n}) is negative")
                if value < 2:
                    self("==", n, value)
                else:
                    self("<=", 2, n)
        out = self.resolve_type(t)
        fixed = {n: self.value(n) for n in out.sizes if isinstance(n, Expr) and self.value(n) < 2}
        if fixed:  # an equation that no symbol can be had from
            out = out.with_(sizes=tuple(fixed.get(n, n) if isinstance(n, Expr) else n for n in out.sizes))
        return out

    # -- taking for granted

    def _take(self, op: str, a: IntLike, b: IntLike) -> None:
        self.taken.append(Decision(op, a, b, self.locate() if self.locate is not None else None))

    def _know(self, s: Symbol, value: IntLike) -> None:
        self._is = {name: substitute(e, {s: value}) for name, e in self._is.items()}
        self._is[s.name] = value
        self._resolved.clear()
        self._types.clear()
        self._facts = {(op, self.resolve(a), self.resolve(b)): v for (op, a, b), v in self._facts.items()}

    def _equal(self, a: IntLike, b: IntLike) -> None:
        d, _, k = cancelled(a - b, a - b)
        if k != 1:  # positive factors do not matter
            a, b = d, 0
        found = _solved(a - b)
        if found is None:
            if self._divide(a - b) and self.resolve(a) - self.resolve(b) == 0:
                return
            self._take("==", a, b)
            self._divisible(a - b)
            return
        s, value = found
        own: Expr = Expr({(s,): 1})
        self._take("==", own, value)
        self._know(s, value)
        if isinstance(value, Expr):  # its range holds for the other one too
            for low in (True, False):
                limit = s.lo if low else s.hi
                d = limit - value if low else value - limit
                if not known_le(d, 0):
                    self._narrow(d)

    def _divide(self, d: IntLike) -> bool:
        """Take for granted that the symbols under whole divisions are divisible, where they are: ``(s + 1) // 2`` is
        d for s = 2*d, and equations of such terms get a solution."""
        for call in calls_in(d):
            inner, k = call.args
            if isinstance(k, Expr) or k < 2 or call.op not in ("floordiv", "mod"):
                continue
            for s in sorted(symbols(inner), key=_age):
                own = Expr({(s,): 1})
                if call.op == "mod" and inner == own or len(symbols(inner)) > 1 and len(list(terms_of(inner))) > 1:
                    continue
                if self.part_possible(s) and self.value(own) % k == 0 and proven("==", own % k, 0) is None:
                    return self("==", own % k, 0)
        return False

    def part_possible(self, s: Symbol) -> bool:
        """Whether :meth:`part` would give a symbol."""
        return False

    def _divisible(self, d: IntLike) -> None:
        """After ``s % k == 0``: s is k times another symbol, where there can be a new one."""
        terms = list(terms_of(d))
        if len(terms) != 1 or len(terms[0][1]) != 1:
            return
        (atom,) = terms[0][1]
        if not isinstance(atom, Call) or atom.op != "mod" or isinstance(atom.args[1], Expr):
            return
        s = symbol_of(atom.args[0])
        if s is not None:
            part = self.part(s, atom.args[1])
            if part is not None:
                self._know(s, part * atom.args[1])

    def part(self, s: Symbol, k: int) -> IntLike | None:
        """A new symbol for ``s // k``, where s is known to be divisible; None where there cannot be one."""
        return None

    def _at_most(self, d: IntLike, asked: tuple[str, IntLike, IntLike]) -> None:
        """``d <= 0`` holds, asked for in the words of ``asked``."""
        found = _limit(d)
        if found is None:
            self._take(*asked)
            return
        s, low, value = found
        own: Expr = Expr({(s,): 1})
        if low:
            self._take("<=", value, own)
        else:
            self._take("<=", own, value)
        self._narrow(d)

    def _narrow(self, d: IntLike) -> None:
        found = _limit(d)
        if found is None:
            return
        s, low, value = found
        lo, hi = (max(s.lo, value), s.hi) if low else (s.lo, min(s.hi, value))
        self.ranges[s.name] = lo, hi
        self._know(s, lo if lo == hi else symbol(s.name, lo, hi, self.hints.get(s.name)))


def proven(op: str, a: IntLike, b: IntLike) -> bool | None:
    """Whether ``a op b`` (==, <, <=) for every value of the symbols; None where that depends."""
    d = a - b
    lo, hi = bounds(d)
    if op == "==":
        if d == 0:
            return True
        if lo > 0 or hi < 0:
            return False
        if isinstance(d, Expr):
            rest = [c for c, m in terms_of(d) if m]
            constant = sum(c for c, m in terms_of(d) if not m)
            if constant % math.gcd(*rest):
                return False
        return None
    if op == "<":
        return True if known_lt(a, b) else False if known_le(b, a) else None
    return True if known_le(a, b) else False if known_lt(b, a) else None


def calls_in(e: IntLike) -> list[Call]:
    """The calls of an expression, outermost ones."""
    return [a for _, m in terms_of(e) for a in m if isinstance(a, Call)]


def _solved(d: IntLike) -> tuple[Symbol, IntLike] | None:
    """``d == 0`` as ``symbol == value``: the youngest symbol that the rest gives in whole numbers."""
    for s in sorted(symbols(d), key=_age, reverse=True):
        k = coefficient(d, s)
        if not isinstance(k, int) or k == 0:
            continue
        rest = d - k * Expr({(s,): 1})
        if all(c % k == 0 for c, _ in terms_of(rest)):
            value: IntLike = 0
            for c, m in terms_of(rest):
                value = value + (Expr({m: -(c // k)}) if m else -(c // k))
            return s, value
    return None


def _age(s: Symbol) -> tuple[int, str]:
    return len(s.name), s.name


def _limit(d: IntLike) -> tuple[Symbol, bool, int] | None:
    """``d <= 0`` as (symbol, is it a lower limit, the limit), through whole divisions; None for other forms."""
    terms = [(c, m) for c, m in terms_of(d) if m]
    if len(terms) != 1 or len(terms[0][1]) != 1:
        return None
    (c, (atom,)), constant = terms[0], sum(k for k, m in terms_of(d) if not m)
    low = c < 0
    value = (
        -(-constant // -c) if low else -constant // c
    )  # atom >= ceil(constant / -c), or atom <= floor(-constant / c)
    if isinstance(atom, Symbol):
        return atom, low, value
    assert isinstance(atom, Call)
    inner, k = atom.args
    if atom.op != "floordiv" or isinstance(k, Expr):
        return None
    return _limit(value * k - inner if low else inner - (value * k + k - 1))


def settle(graph: Graph, decisions: Decisions) -> None:
    """Put everything that was decided into a graph's types and arguments, in place."""
    if not decisions.refined:
        return

    for n in graph.nodes:
        if n.op == "input" and isinstance(n.val, Expr):
            continue  # gives its symbol a value, whatever that is known to be
        n.val, n.args, n.kwargs = decisions.put(n.val), decisions.put(n.args), decisions.put(n.kwargs)
    graph.outputs = decisions.put(graph.outputs)

"""Symbolic integers: sizes that vary from call to call, Python ints that do, and arithmetic on them.

What the interpreter does not compute symbolically asks :meth:`SymValue.as_const`, which fixes the number by a guard.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from braze.ir import Expr, IntLike, sym_max, sym_min, symbols, to_str

from .base import Const, Derived, Value, boolean
from .floats import ARITHMETIC, FloatValue

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer


class SymValue(Const):
    """An int whose value may differ from call to call. ``raw`` is its value at the call at hand."""

    __slots__ = ("_expr",)

    def __init__(self, expr: IntLike | None, raw: int, source: Source | None = None) -> None:
        Const.__init__(self, raw, source)
        self.guarded = False
        self._expr = expr

    def expr(self, vm: Tracer) -> IntLike:
        """Its expression; a Python int becomes an input of the graph when it is first used."""
        if self._expr is None:
            assert self.source is not None
            self._expr = vm.sizes.integer(self.source, self.raw)
        return vm.sizes.resolve(self._expr)

    def pytype(self, vm: Tracer) -> type:
        if self.source is not None:
            vm.guards.type_(self.source, int)
        return int

    def is_const(self) -> bool:
        return False

    def as_const(self, vm: Tracer) -> Any:
        """The number, fixed by a guard."""
        return vm.sizes.number(self.expr(vm))

    def truth(self, vm: Tracer) -> bool:
        return vm.sizes("!=", self.expr(vm), 0)

    def rebuild(self, rb: Rebuilder) -> None:
        load(rb, self.expr(rb.vm))


def load(rb: Rebuilder, e: IntLike) -> None:
    """Emit code that pushes the value of an expression."""
    if not isinstance(e, Expr):
        rb.load_const(e)
        return
    names = sorted({s.name for s in symbols(e)})  # one symbol may have a wider range inside of a call
    args: list[Value] = [Const(0, rb.vm.sizes.sources[n]) for n in names]
    if to_str(e) == names[0]:
        rb.push(args[0])
    else:
        rb.call(_function(to_str(e), tuple(names)), args)


@lru_cache(4096)
def _function(text: str, names: tuple[str, ...]) -> Callable[..., int]:
    out: Callable[..., int] = eval(f"lambda {', '.join(names)}: {text}")  # noqa: S307  (text of our own expression)
    return out


def value_of(vm: Tracer, e: IntLike) -> Const:
    """The value of an expression: symbolic, or a constant where everything is known."""
    e = vm.sizes.resolve(e)
    return SymValue(e, vm.sizes.value(e)) if isinstance(e, Expr) else Const(e)


def operand(vm: Tracer, v: Value) -> IntLike | None:
    """An int as an expression; None for anything else."""
    if isinstance(v, SymValue):
        return v.expr(vm)
    if isinstance(v, Const) and type(v.raw) in (int, bool):
        return int(v.as_const(vm))
    return None


# ---- arithmetic


def _floordiv(vm: Tracer, a: IntLike, b: IntLike) -> IntLike | None:
    return a // b if vm.sizes("<", 0, b) else None


def _mod(vm: Tracer, a: IntLike, b: IntLike) -> IntLike | None:
    return a % b if vm.sizes("<", 0, b) else None


def _power(vm: Tracer, a: IntLike, b: IntLike) -> IntLike | None:
    if isinstance(b, Expr) or not 0 <= b <= 4:
        return None
    out: IntLike = 1
    for _ in range(b):
        out = out * a
    return out


_BINARY: dict[str, Callable[[Any, IntLike, IntLike], IntLike | None]] = {
    "+": lambda vm, a, b: a + b,
    "-": lambda vm, a, b: a - b,
    "*": lambda vm, a, b: a * b,
    "//": _floordiv,
    "%": _mod,
    "**": _power,
}


def binary(vm: Tracer, op: str, a: Value, b: Value) -> Value | None:
    """``a op b`` with a symbolic integer among them; None where that has no symbolic form."""
    op = op.removesuffix("=")
    if op in _LATER and _total(vm, op, a, b):
        return Derived(_LATER[op](a.raw, b.raw), _LATER[op], [a, b])  # type: ignore[attr-defined, list-item]
    if op == "/" or any(isinstance(v, Const) and type(v.raw) is float for v in (a, b)):
        return _float(vm, op, a, b)
    row = _BINARY.get(op)
    if row is None or not all(isinstance(v, Const) and type(v.raw) in (int, bool) for v in (a, b)):
        return None
    x, y = operand(vm, a), operand(vm, b)
    assert x is not None and y is not None
    out = row(vm, x, y)
    return None if out is None else value_of(vm, out)


_LATER: dict[str, Callable[[Any, Any], Any]] = {
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def _total(vm: Tracer, op: str, a: Value, b: Value) -> bool:
    """Whether bit arithmetic of two ints gives an int for all their values, so that it may be done after the graph."""
    if not all(isinstance(v, Const) and type(v.raw) in (int, bool) for v in (a, b)):
        return False
    return op not in ("<<", ">>") or not varies(b) and 0 <= b.as_const(vm) < 64


def _float(vm: Tracer, op: str, a: Value, b: Value) -> Value | None:
    """Arithmetic that gives a float: computed by the graph, so that the size stays symbolic."""
    function = ARITHMETIC.get(op)
    if function is None or not all(isinstance(v, Const) and type(v.raw) in (int, float) for v in (a, b)):
        return None
    if op == "/" and not b.truth(vm):
        return None
    if op == "**" and not _powered(vm, a, b):
        return None
    for v in (a, b):
        if not isinstance(v, SymValue):
            v.as_const(vm)
    return FloatValue(function=function, args=(a, b))


def _powered(vm: Tracer, a: Value, b: Value) -> bool:
    """Whether ``a ** b`` is a float and raises nothing: of a positive size, or of a decay to a size's power."""
    if isinstance(a, SymValue):
        return vm.sizes("<", 0, a.expr(vm))
    return isinstance(b, SymValue) and 0 < a.as_const(vm) <= 1 and vm.sizes("<=", 0, b.expr(vm))


def to_float(vm: Tracer, a: SymValue) -> Value:
    """``float(a)``."""
    return FloatValue(function=operator.truediv, args=(a, Const(1)))


def square_root(vm: Tracer, a: SymValue) -> Value | None:
    """``math.sqrt(a)``; None for a negative number."""
    return None if vm.sizes("<", a.expr(vm), 0) else FloatValue(function=math.sqrt, args=(a,))


_UNARY: dict[str, Callable[[IntLike], IntLike]] = {"-": lambda a: 0 - a, "+": lambda a: a, "~": lambda a: -1 - a}


def unary(vm: Tracer, op: str, a: SymValue) -> Value:
    return value_of(vm, _UNARY[op](a.expr(vm)))


def absolute(vm: Tracer, a: SymValue) -> Value:
    e = a.expr(vm)
    return value_of(vm, 0 - e if vm.sizes("<", e, 0) else e)


def extreme(vm: Tracer, name: str, items: list[Value]) -> Value | None:
    """``min`` or ``max`` of ints, without a decision which it is; None if there are others."""
    if not any(isinstance(v, SymValue) for v in items):
        return None
    found = [operand(vm, v) for v in items if isinstance(v, Const) and type(v.raw) is int]
    if len(found) < len(items):
        return None
    out, pick = found[0], sym_min if name == "min" else sym_max
    assert out is not None
    for e in found[1:]:
        assert e is not None
        out = pick(out, e)
    return value_of(vm, out)


def product(vm: Tracer, items: list[Value]) -> Value:
    out: Value = Const(1)
    for x in items:
        out = vm.binary("*", out, x)
    return out


def compare(vm: Tracer, op: str, a: Value, b: Value) -> Value | None:
    """``a op b`` with a symbolic integer among them, decided; None for other types than numbers."""
    if not isinstance(a, Const) or not isinstance(b, Const):
        return None
    if type(a.raw) is float:
        return compare(vm, _REFLECTED[op], b, a)
    if type(b.raw) is float:
        return _against_float(vm, op, a, b.as_const(vm))
    if type(a.raw) not in (int, bool) or type(b.raw) not in (int, bool):
        return boolean(op == "!=") if op in ("==", "!=") and _unlike(a, b) else None
    x, y = operand(vm, a), operand(vm, b)
    assert x is not None and y is not None
    return boolean(vm.sizes(op, x, y))


_REFLECTED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}


def _unlike(a: Const, b: Const) -> bool:
    return type(a.raw) in (str, bytes, type(None)) or type(b.raw) in (str, bytes, type(None))


def _against_float(vm: Tracer, op: str, a: Const, f: float) -> Value | None:
    if not math.isfinite(f) or type(a.raw) not in (int, bool):
        return None
    x = operand(vm, a)
    assert x is not None
    if op in ("==", "!="):
        same = f.is_integer() and vm.sizes("==", x, int(f))
        return boolean(same == (op == "=="))
    return boolean(vm.sizes(op, x, math.ceil(f) if op in ("<", ">=") else math.floor(f)))


# ---- text


def formatted(vm: Tracer, v: Const, spec: str) -> Value:
    """``format(v, spec)``, made after the graph unless somebody asks for the text."""
    text = format(v.raw, spec)
    return Derived(text, _formatter(spec), [v])


@lru_cache(256)
def _formatter(spec: str) -> Callable[[Any], str]:
    return lambda x: format(x, spec)


def joined(vm: Tracer, parts: list[Value]) -> Value:
    """``"".join(parts)`` of strings."""
    if any(isinstance(p, Derived) and not p.guarded for p in parts):
        known = [p if isinstance(p, Const) and varies(p) else Const(p.as_const(vm)) for p in parts]
        return Derived("".join(p.raw for p in known), _join, known)
    return Const("".join(p.as_const(vm) for p in parts))


def _join(*parts: str) -> str:
    return "".join(parts)


def varies(v: Value) -> bool:
    """A symbolic integer, or something computed from one that nobody has asked the value of."""
    return isinstance(v, SymValue) or isinstance(v, Derived) and not v.guarded and any(map(varies, v.args))

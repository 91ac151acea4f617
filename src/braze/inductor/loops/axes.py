"""Simplify a kernel's axes over element offsets: split what floor-divisions ask for, order by memory, merge neighbours.

Input: the axes and every integer expression of the kernel (one element offset an access, and the ``Index`` values).
Output: new axes and the expressions over them.

* split: ``i // 128`` and ``i % 128`` with i < 4096 become ``i_0`` and ``i_1`` over 32 and 128;
* order: x axes (and r axes among themselves) by falling stride of the most important access, so the last is innermost;
* merge: neighbours that every expression walks as one (``768*i0 + i1`` with i1 < 768) become one axis.

Reductions are reordered only among their r axes; ``argmax`` and ``argmin`` fix the order of r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braze.ir import Expr, IntLike, Symbol, bounds, coefficient, evaluate, substitute, symbol, symbol_of, symbols
from braze.ir.expr import Call

from .ir import Axis

Env = dict[Symbol, IntLike]


@dataclass(frozen=True)
class Access:
    """One expression; ``weight`` ranks it for the order of axes (0: no say, as for ``Index`` values)."""

    expr: IntLike
    weight: int


@dataclass(frozen=True)
class Simplified:
    """New axes, and the expressions over them, in the order of the accesses."""

    x: tuple[Axis, ...]
    r: tuple[Axis, ...]
    exprs: tuple[IntLike, ...]


def simplify(x: Sequence[Axis], r: Sequence[Axis], accesses: Sequence[Access], keep_r: bool) -> Simplified:
    """The simplified axes. ``keep_r``: the order of r axes is part of the meaning."""
    exprs = [a.expr for a in accesses]
    xs, rs, exprs = _drop_unit(x, r, exprs)
    xs, rs, exprs = _split_all(xs, rs, exprs)
    weights = [a.weight for a in accesses]
    xs = _order(xs, exprs, weights)
    if not keep_r:
        rs = _order(rs, exprs, weights)
    xs, exprs = _merge(xs, exprs)
    rs, exprs = _merge(rs, exprs)
    final: Env = {a.index: _named(f"x{k}", a) for k, a in enumerate(xs)}
    final.update({a.index: _named(f"r{k}", a) for k, a in enumerate(rs)})
    return Simplified(_renamed(xs, final), _renamed(rs, final), tuple([substitute(e, final) for e in exprs]))


def _named(name: str, a: Axis) -> Expr:
    return symbol(name, 0, a.index.hi, below=a.size)


def _renamed(axes: Sequence[Axis], final: Env) -> tuple[Axis, ...]:
    out = []
    for a in axes:
        s = symbol_of(final[a.index])
        assert s is not None
        out.append(Axis(s, a.size))
    return tuple(out)


def _drop_unit(
    x: Sequence[Axis], r: Sequence[Axis], exprs: list[IntLike]
) -> tuple[list[Axis], list[Axis], list[IntLike]]:
    env: Env = {a.index: 0 for a in (*x, *r) if a.size == 1}
    if env:
        exprs = [substitute(e, env) for e in exprs]
    return [a for a in x if a.size != 1], [a for a in r if a.size != 1], exprs


def _calls(e: IntLike, out: list[Call]) -> None:
    if isinstance(e, Expr):
        for mono in e.terms:
            for a in mono:
                if isinstance(a, Call):
                    out.append(a)
                    for x in a.args:
                        _calls(x, out)


def _cuts(exprs: Sequence[IntLike]) -> dict[Symbol, set[IntLike]]:
    """For each axis under a floordiv or mod: the divisors, as places in the axis."""
    calls: list[Call] = []
    for e in exprs:
        _calls(e, calls)
    cuts: dict[Symbol, set[IntLike]] = {}
    for c in calls:
        inner, k = c.args
        unit: IntLike = 1
        if isinstance(inner, Expr) and len(inner.terms) == 1:
            ((mono, coef),) = inner.terms.items()
            if coef == 1 and len(mono) == 1 and isinstance(mono[0], Call) and mono[0].op == "floordiv":
                inner, unit = mono[0].args
        s = symbol_of(inner)
        if s is not None and c.op in ("floordiv", "mod"):
            cuts.setdefault(s, set()).update({unit, unit * k} - {1})
    return cuts


def _split_all(xs: list[Axis], rs: list[Axis], exprs: list[IntLike]) -> tuple[list[Axis], list[Axis], list[IntLike]]:
    cuts = _cuts(exprs)
    change: Env = {}
    out: list[list[Axis]] = []
    for axes in (xs, rs):
        new: list[Axis] = []
        for a in axes:
            parts = _digits(a, cuts[a.index]) if a.index in cuts else None
            if parts is None:
                new.append(a)
                continue
            linear: IntLike = 0
            for axis, step in parts:
                linear = linear + Expr({(axis.index,): 1}) * step
                new.append(axis)
            change[a.index] = linear
        out.append(new)
    if not change:
        return xs, rs, exprs
    return out[0], out[1], [substitute(e, change) for e in exprs]


def _digits(a: Axis, cuts: set[IntLike]) -> list[tuple[Axis, IntLike]] | None:
    """The axis as mixed-radix digits with a digit boundary at each cut; None when the cuts do not divide each other."""
    places = [c for c in cuts if c != a.size and not (isinstance(c, int) and isinstance(a.size, int) and c > a.size)]
    chain: list[IntLike] = [1]
    while places:
        low = next((c for c in places if c % chain[-1] == 0 and all(d % c == 0 for d in places)), None)
        if low is None:
            return None
        chain.append(low)
        places.remove(low)
    if len(chain) == 1 or a.size % chain[-1] != 0:
        return None
    chain.append(a.size)
    out: list[tuple[Axis, IntLike]] = []
    for k in range(len(chain) - 1, 0, -1):
        n = chain[k] // chain[k - 1]
        s = symbol_of(symbol(f"{a.index.name}_{len(chain) - 1 - k}", 0, max(bounds(n)[1] - 1, 0), below=n))
        assert s is not None
        out.append((Axis(s, n), chain[k - 1]))
    return out


def cut_digits(
    axes: Mapping[Symbol, IntLike], exprs: Sequence[IntLike]
) -> dict[Symbol, tuple[list[tuple[Symbol, IntLike]], IntLike]]:
    """Each axis as the digits that the expressions' divisions ask for (itself where they ask for none or do not nest):
    axis -> ([(digit, count), …], the axis in digits)."""
    cuts = _cuts(exprs)
    out: dict[Symbol, tuple[list[tuple[Symbol, IntLike]], IntLike]] = {}
    for s, n in axes.items():
        parts = _digits(Axis(s, n), cuts[s]) if s in cuts else None
        if parts is None:
            out[s] = ([(s, n)], Expr({(s,): 1}))
            continue
        linear: IntLike = 0
        for a, step in parts:
            linear = linear + Expr({(a.index,): 1}) * step
        out[s] = ([(a.index, a.size) for a, _ in parts], linear)
    return out


def _order(axes: list[Axis], exprs: Sequence[IntLike], weights: Sequence[int]) -> list[Axis]:
    """By falling stride in the heaviest access that walks them; ties by the next; unknown strides keep their place."""
    if len(axes) < 2:
        return axes
    ranked = [e for _, e in sorted(zip(weights, exprs), key=lambda p: -p[0]) if _ > 0][:8]
    strides = {a.index: [_stride(e, a.index) for e in ranked] for a in axes}
    out: list[Axis] = []
    for a in axes:  # insertion sort: the comparison is not a total order
        at = len(out)
        while at > 0 and _before(strides[a.index], strides[out[at - 1].index]):
            at -= 1
        out.insert(at, a)
    return out


def _stride(e: IntLike, s: Symbol) -> int | None:
    """The distance between neighbours along an axis; symbolic sizes count by their hints."""
    k = coefficient(e, s)
    return None if k is None else estimated(k)


def estimated(e: IntLike) -> int | None:
    """The absolute value of an expression of sizes, symbolic ones by their hints; None where one has none."""
    if isinstance(e, Expr):
        return abs(evaluate(e)) if all(s.hint is not None for s in symbols(e)) else None
    return abs(e)


def _before(a: list[int | None], b: list[int | None]) -> bool:
    """True when axis a should be outside axis b."""
    for p, q in zip(a, b):
        if p is None or q is None or p == q or p == 0 or q == 0:
            continue
        return p > q
    return False


def _merge(axes: list[Axis], exprs: list[IntLike]) -> tuple[list[Axis], list[IntLike]]:
    out = list(axes)
    k = len(out) - 2
    while k >= 0:
        a, b = out[k], out[k + 1]
        if all(_one_walk(e, a, b) for e in exprs):
            n = a.size * b.size
            m = symbol(f"{a.index.name}.{b.index.name}", 0, max(bounds(n)[1] - 1, 0), below=n)
            flat: Env = {a.index: 0, b.index: m}
            exprs = [substitute(e, flat) if _has(e, a, b) else e for e in exprs]
            s = symbol_of(m)
            assert s is not None
            out[k : k + 2] = [Axis(s, n)]
        k -= 1
    return out, exprs


def _has(e: IntLike, a: Axis, b: Axis) -> bool:
    s = symbols(e)
    return a.index in s or b.index in s


def _one_walk(e: IntLike, a: Axis, b: Axis) -> bool:
    """True when ``e`` is ``k * (size_b * a + b) + rest``."""
    if not isinstance(e, Expr):
        return True
    p, q = coefficient(e, a.index), coefficient(e, b.index)
    return p is not None and q is not None and p == q * b.size

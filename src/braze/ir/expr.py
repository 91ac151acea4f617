"""Symbolic integers: sizes, strides and index expressions of every IR.

An :data:`IntLike` is a plain ``int`` or an :class:`Expr`.  An ``Expr`` is a polynomial over atoms in normal form; an
atom is a :class:`Symbol` (a size or a loop index, with a range) or a :class:`Call` (``floordiv``, ``mod``, ``min``,
``max``).  Every operation returns an ``int`` when its result is constant, so static programs never meet an ``Expr``
in their shapes.  ``==`` is structural; ordering is not defined on purpose: ask :func:`known_lt` and friends, which
answer True only where the ranges prove it.

Semantics: ``floordiv`` and ``mod`` are Python's (floor).  Divisors are positive.

>>> b = symbol("b", 1, 64); i = symbol("i", 0, 7)
>>> (b * 8 + i) // 8 == b, (b * 8 + i) % 8 == i
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

INF = 2**62  # "unbounded" for ranges; sizes beyond this do not fit in memory


class Atom:
    """An indivisible factor. Interned by ``key``: identity is equality."""

    __slots__ = ("key", "lo", "hi", "_hash")
    key: str
    lo: int
    hi: int
    _hash: int

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.key


class Symbol(Atom):
    """A named integer in the closed range [lo, hi]; ``hint`` is the value seen when it was made (sizes only);
    ``below`` is a symbolic bound that it does not reach (loop indices only)."""

    __slots__ = ("name", "hint", "below")

    def __init__(self, name: str, lo: int, hi: int, hint: int | None, below: Expr | None = None) -> None:
        self.name, self.key, self.lo, self.hi, self.hint, self.below = name, name, lo, hi, hint, below
        self._hash = hash((name, lo, hi))


class Call(Atom):
    """``op`` applied to ``args``; op is one of floordiv, mod, min, max."""

    __slots__ = ("op", "args")

    def __init__(self, op: str, args: tuple[IntLike, ...], lo: int, hi: int) -> None:
        self.op, self.args, self.lo, self.hi = op, args, lo, hi
        a, b = args
        infix = {"floordiv": "//", "mod": "%"}.get(op)
        self.key = f"({_paren(a)} {infix} {_paren(b)})" if infix else f"{op}({a}, {b})"
        self._hash = hash((op, args))


Mono = tuple[Atom, ...]
Terms = dict[Mono, int]
_SYMBOLS: dict[tuple[str, int, int, Any], Symbol] = {}
_CALLS: dict[tuple[str, IntLike, IntLike], Call] = {}
_key: Callable[[Atom], str] = lambda a: a.key  # noqa: E731


class Expr:
    """A non-constant polynomial with integer coefficients. Immutable."""

    __slots__ = ("terms", "_hash", "_range")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._range: tuple[int, int] | None = None

    def __hash__(self) -> int:
        h = self._hash
        if h is None:
            h = self._hash = hash(frozenset(self.terms.items()))
        return h

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and (self is other or self.terms == other.terms)

    def __add__(self, other: IntLike) -> IntLike:
        return _add(self.terms, _terms(other), 1)

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> IntLike:
        return _add(self.terms, _terms(other), -1)

    def __rsub__(self, other: IntLike) -> IntLike:
        return _add(_terms(other), self.terms, -1)

    def __neg__(self) -> IntLike:
        return Expr({m: -c for m, c in self.terms.items()})

    def __mul__(self, other: IntLike) -> IntLike:
        if isinstance(other, int):
            if other == 1:
                return self
            return Expr({m: c * other for m, c in self.terms.items()}) if other else 0
        return _mul(self.terms, other.terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> IntLike:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> IntLike:
        return floordiv(other, self)

    def __mod__(self, other: IntLike) -> IntLike:
        return mod(self, other)

    def __rmod__(self, other: int) -> IntLike:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic integer {self} is not known; use known_eq/known_lt")

    def __repr__(self) -> str:
        return to_str(self)


IntLike = int | Expr


def symbol(name: str, lo: int = 0, hi: int = INF, hint: int | None = None, below: IntLike | None = None) -> Expr:
    """A symbolic integer in [lo, hi] (and less than ``below``). Two symbols of one name and range are one symbol."""
    limit = below if isinstance(below, Expr) else None
    atom = _SYMBOLS.get((name, lo, hi, limit))
    if atom is None:
        atom = _SYMBOLS[name, lo, hi, limit] = Symbol(name, lo, hi, hint, limit)
    elif hint is not None:
        atom.hint = hint
    return Expr({(atom,): 1})


def _terms(e: IntLike) -> Terms:
    if isinstance(e, Expr):
        return e.terms
    return {(): int(e)} if e else {}


def _make(terms: Terms) -> IntLike:
    if not terms:
        return 0
    if len(terms) == 1:
        ((m, c),) = terms.items()
        if not m:
            return c
    return Expr(terms)


def _add(a: Terms, b: Terms, sign: int) -> IntLike:
    out = dict(a)
    for m, c in b.items():
        v = out.get(m, 0) + sign * c
        if v:
            out[m] = v
        else:
            del out[m]
    return _recombine(out)


def _recombine(terms: Terms) -> IntLike:
    """(x // k) * k + x % k  ->  x."""
    for m, c in terms.items():
        for i, atom in enumerate(m):
            if not (isinstance(atom, Call) and atom.op == "mod"):
                continue
            x, k = atom.args
            rest = m[:i] + m[i + 1 :]
            whole = _mul(_mul_terms({rest: c}, _terms(k)), _terms(floordiv(x, k)))
            if isinstance(whole, Expr) and all(terms.get(n) == d for n, d in whole.terms.items()):
                left = {n: d for n, d in terms.items() if n not in whole.terms and n != m}
                return _make(left) + _mul({rest: c}, _terms(x))
    return _make(terms)


def _mul_terms(a: Terms, b: Terms) -> Terms:
    out: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            k = tuple(sorted(m + n, key=_key)) if m and n else m or n
            v = out.get(k, 0) + c * d
            if v:
                out[k] = v
            else:
                del out[k]
    return out


def _mul(a: Terms, b: Terms) -> IntLike:
    return _make(_mul_terms(a, b))


def bounds(e: IntLike) -> tuple[int, int]:
    """The closed range that ``e`` provably lies in (interval arithmetic over the symbols' ranges)."""
    if not isinstance(e, Expr):
        return e, e
    if e._range is None:
        lo = hi = 0
        for m, c in e.terms.items():
            a = b = c
            for atom in m:
                corners = (a * atom.lo, a * atom.hi, b * atom.lo, b * atom.hi)
                a, b = min(corners), max(corners)
            lo, hi = lo + a, hi + b
        e._range = (max(lo, -INF), min(hi, INF))
    return e._range


def _call(op: str, a: IntLike, b: IntLike) -> Expr:
    atom = _CALLS.get((op, a, b))
    if atom is None:
        (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
        if op == "floordiv":
            d = max(blo, 1)
            lo, hi = (alo // d if alo < 0 else alo // max(bhi, 1)), (ahi // d if ahi >= 0 else ahi // max(bhi, 1))
        elif op == "mod":
            lo, hi = 0, max(bhi - 1, 0)
            if alo >= 0:
                hi = min(hi, ahi)
        elif op == "min":
            lo, hi = min(alo, blo), min(ahi, bhi)
        else:
            lo, hi = max(alo, blo), max(ahi, bhi)
        atom = _CALLS[op, a, b] = Call(op, (a, b), lo, hi)
    return Expr({(atom,): 1})


def cancelled(a: IntLike, b: IntLike) -> tuple[IntLike, IntLike, IntLike]:
    """a and b without the positive factors that every term of both has, and the product of those."""
    common: list[Atom] | None = None
    for m in (*_terms(a), *_terms(b)):
        left = list(m)
        if common is None:
            common = [x for x in left if x.lo > 0]
            continue
        kept = []
        for x in common:
            if x in left:
                left.remove(x)
                kept.append(x)
        common = kept
        if not common:
            break
    if not common:
        return a, b, 1
    return _without(a, common), _without(b, common), Expr({tuple(common): 1})


def _without(e: IntLike, factors: list[Atom]) -> IntLike:
    out: Terms = {}
    for m, c in _terms(e).items():
        left = list(m)
        for x in factors:
            left.remove(x)
        out[tuple(left)] = c
    return _make(out)


def _split(a: IntLike, b: IntLike) -> tuple[IntLike, IntLike]:
    """a = q * b + r, with every term that is a multiple of b moved into q."""
    if not isinstance(b, Expr):
        q = {m: c // b for m, c in _terms(a).items() if c // b and (c % b == 0 or not m)}
        return _make(q), a - _make(q) * b
    if len(b.terms) != 1:
        return _divided(a, b)
    ((bm, bc),) = b.terms.items()
    q = {}
    for m, c in _terms(a).items():
        rest = list(m)
        try:
            for atom in bm:
                rest.remove(atom)
        except ValueError:
            continue
        if c % bc == 0:
            q[tuple(rest)] = c // bc
    return _make(q), a - _make(q) * b


def _divided(a: IntLike, b: Expr) -> tuple[IntLike, IntLike]:
    """a = q * b + r by polynomial division, where that leaves nothing; else (0, a)."""
    lead, k = max(b.terms.items(), key=lambda t: (len(t[0]), [x.key for x in t[0]]))
    q: IntLike = 0
    r = a
    for _ in range(8):
        if not isinstance(r, Expr):
            break
        top = max(r.terms, key=lambda m: (len(m), [x.key for x in m]))
        rest = list(top)
        for atom in lead:
            if atom not in rest:
                return 0, a
            rest.remove(atom)
        if r.terms[top] % k:
            return 0, a
        part = _make({tuple(rest): r.terms[top] // k})
        q, r = q + part, r - part * b
    return (q, 0) if r == 0 else (0, a)


def floordiv(a: IntLike, b: IntLike) -> IntLike:
    """a // b, floor, for b > 0."""
    if not isinstance(b, Expr):
        if not isinstance(a, Expr):
            return a // b
        if b == 1:
            return a
    if isinstance(b, Expr):
        x, y, k = cancelled(a, b)
        if k != 1:
            return floordiv(x, y)
    q, r = _split(a, b)
    lo, hi = bounds(r)
    if lo >= 0 and known_lt(r, b):
        return q
    if isinstance(r, Expr) and not isinstance(b, Expr):
        g = math.gcd(b, *(c for m, c in r.terms.items() if m))
        if g > 1:  # floor((g*x + c) / (g*k)) = floor((x + floor(c/g)) / k)
            return q + floordiv(_make({m: c // g for m, c in r.terms.items() if c // g}), b // g)
        inner = _sole_call(r)
        if inner is not None and not isinstance(inner.args[1], Expr):
            x, k = inner.args
            if inner.op == "floordiv":
                return q + floordiv(x, k * b)
            if inner.op == "mod" and k % b == 0:  # (x % (n*b)) // b = (x // b) % n
                return q + mod(floordiv(x, b), k // b)
    return q + _call("floordiv", r, b)


def mod(a: IntLike, b: IntLike) -> IntLike:
    """a % b, in [0, b), for b > 0."""
    if not isinstance(b, Expr):
        if not isinstance(a, Expr):
            return a % b
        if b == 1:
            return 0
    if isinstance(b, Expr):
        x, y, k = cancelled(a, b)
        if k != 1:
            return mod(x, y) * k
    r = _split(a, b)[1]
    if bounds(r)[0] >= 0 and known_lt(r, b):
        return r
    if isinstance(r, Expr) and not isinstance(b, Expr):
        g = math.gcd(b, *r.terms.values())
        if g > 1:
            return mod(_make({m: c // g for m, c in r.terms.items()}), b // g) * g
        inner = _sole_call(r)
        if inner is not None and inner.op == "mod" and not isinstance(inner.args[1], Expr) and inner.args[1] % b == 0:
            return mod(inner.args[0], b)
    return _call("mod", r, b)


def _sole_call(e: Expr) -> Call | None:
    if len(e.terms) == 1:
        ((m, c),) = e.terms.items()
        if c == 1 and len(m) == 1 and isinstance(m[0], Call):
            return m[0]
    return None


def sym_min(a: IntLike, b: IntLike) -> IntLike:
    """The smaller of two; stays symbolic where the ranges do not decide."""
    if known_le(a, b):
        return a
    return b if known_le(b, a) else _call("min", *sorted((a, b), key=str))


def sym_max(a: IntLike, b: IntLike) -> IntLike:
    """The larger of two; stays symbolic where the ranges do not decide."""
    if known_le(a, b):
        return b
    return a if known_le(b, a) else _call("max", *sorted((a, b), key=str))


def known_eq(a: IntLike, b: IntLike) -> bool:
    """True where a == b for every value of the symbols."""
    return a == b


def known_lt(a: IntLike, b: IntLike) -> bool:
    """True where the ranges prove a < b."""
    d = a - b
    return bounds(d)[1] < 0 or (isinstance(d, Expr) and bounds(_largest(d))[1] < 0)


def known_le(a: IntLike, b: IntLike) -> bool:
    """True where the ranges prove a <= b."""
    d = a - b
    return bounds(d)[1] <= 0 or (isinstance(d, Expr) and bounds(_largest(d))[1] <= 0)


def _largest(e: Expr) -> IntLike:
    """``e`` or something larger: symbols with a symbolic bound, in terms that grow with them, at that bound."""
    out: IntLike = 0
    for m, c in e.terms.items():
        term: IntLike = c
        grows = c > 0 and all(a.lo >= 0 for a in m)
        for a in m:
            limit = a.below if isinstance(a, Symbol) and grows else None
            term = term * (Expr({(a,): 1}) if limit is None else limit - 1)
        out = out + term
    return out


def symbols(*exprs: IntLike) -> set[Symbol]:
    """Every symbol that occurs in the expressions, also inside calls."""
    out: set[Symbol] = set()
    for e in exprs:
        for m in e.terms if isinstance(e, Expr) else ():
            for atom in m:
                if isinstance(atom, Symbol):
                    out.add(atom)
                elif isinstance(atom, Call):
                    out |= symbols(*atom.args)
    return out


def symbol_of(e: IntLike) -> Symbol | None:
    """The symbol when ``e`` is exactly one symbol, else None."""
    if isinstance(e, Expr) and len(e.terms) == 1:
        ((m, c),) = e.terms.items()
        if c == 1 and len(m) == 1 and isinstance(m[0], Symbol):
            return m[0]
    return None


_FUNCS: dict[str, Callable[[IntLike, IntLike], IntLike]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": sym_min,
    "max": sym_max,
}


def substitute(e: IntLike, env: Mapping[Symbol, IntLike]) -> IntLike:
    """``e`` with symbols replaced, renormalised. Symbols not in ``env`` stay."""
    if not isinstance(e, Expr):
        return e
    out: IntLike = 0
    for m, c in e.terms.items():
        term: IntLike = c
        for atom in m:
            if isinstance(atom, Symbol):
                term = term * env[atom] if atom in env else term * Expr({(atom,): 1})
            elif isinstance(atom, Call):
                a, b = (substitute(x, env) for x in atom.args)
                term = term * _FUNCS[atom.op](a, b)
        out = out + term
    return out


def evaluate(e: IntLike, env: Mapping[str, int] | None = None) -> int:
    """The value of ``e`` with symbols taken from ``env`` by name, else from their hints. ValueError if one has none."""
    values: dict[Symbol, IntLike] = {}
    for s in symbols(e):
        v = env.get(s.name) if env else None
        v = s.hint if v is None else v
        if v is None:
            raise ValueError(f"symbol {s.name} has no value and no hint")
        values[s] = v
    out = substitute(e, values)
    assert not isinstance(out, Expr)
    return out


def coefficient(e: IntLike, s: Symbol) -> IntLike | None:
    """The factor k when e = k*s + (terms without s), s not inside a call or a product with itself; else None."""
    k: Terms = {}
    for m, c in _terms(e).items():
        hits = sum(a is s for a in m)
        if hits > 1 or any(isinstance(a, Call) and s in symbols(*a.args) for a in m):
            return None
        if hits:
            k[tuple(a for a in m if a is not s)] = c
    return _make(k)


def terms_of(e: IntLike) -> Iterator[tuple[int, Mono]]:
    """(coefficient, factors) of each term, in a deterministic order."""
    for m, c in sorted(_terms(e).items(), key=lambda t: [a.key for a in t[0]], reverse=True):
        yield c, m


def _paren(e: IntLike) -> str:
    s = to_str(e)
    return f"({s})" if isinstance(e, Expr) and (len(e.terms) > 1 or "*" in s) else s


def to_str(e: IntLike, atom: Callable[[Atom], str] = _key) -> str:
    """``e`` as Python source; ``atom`` prints one atom."""
    parts: list[str] = []
    for c, m in terms_of(e):
        body = "*".join(atom(a) for a in m)
        if body and abs(c) != 1:
            body = f"{abs(c)}*{body}"
        body = body or str(abs(c))
        parts.append((" - " if c < 0 else " + ") + body)
    text = "".join(parts)
    return ("-" + text[3:] if text.startswith(" - ") else text[3:]) if text else "0"

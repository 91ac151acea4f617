"""One-to-one maps between two iteration domains, found from the places where they touch the same buffer.

``match(unknown, known, axes)``: the two index tuples name the same element, one over ``axes``, one over other axes.
Solves for ``axes``.

>>> i, j = symbol("i", 0, 31), symbol("j", 0, 127); m = symbol("m", 0, 4095)
>>> match((i * 128 + j,), (m,), {i: 32, j: 128})       # i = m // 128, j = m % 128
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.inductor.loops.axes import cut_digits
from braze.inductor.loops.ref import delinearize, linearize
from braze.ir import Expr, IntLike, Symbol, coefficient, product, substitute, symbol_of, symbols
from braze.ir.expr import Call

Env = dict[Symbol, IntLike]
Index = tuple[IntLike, ...]
Sizes = Mapping[Symbol, IntLike]


def match(unknown: Sequence[IntLike], known: Sequence[IntLike], axes: Sizes) -> Env | None:
    """The axes that the equations fix, as expressions over the known side; None when they contradict or resist."""
    env: Env = {}
    digits: dict[Symbol, list[tuple[IntLike, IntLike, IntLike]]] = {}  # axis -> (weight, count, value)
    for u, k in zip(unknown, known):
        if not isinstance(u, Expr):
            if u != k:
                return None
            continue
        s = symbol_of(u)
        if s is not None:
            if env.setdefault(s, k) != k:
                return None
            continue
        d = _digit(u, axes)
        if d is not None:
            digits.setdefault(d[0], []).append((d[1], d[2], k))
        elif not _affine(u, k, axes, env):
            return None
    for s, parts in digits.items():
        if s not in env and not _join(s, parts, axes, env):
            return None
    for u, k in zip(unknown, known):
        if isinstance(u, Expr) and substitute(u, env) != k:
            return None
    return env


def _digit(u: Expr, axes: Sizes) -> tuple[Symbol, IntLike, IntLike] | None:
    """``axis // w``, ``axis % n`` or ``axis // w % n`` as (axis, w, n)."""
    call = _call(u)
    if call is None:
        return None
    a, k = call.args
    s = symbol_of(a)
    if s is not None and s in axes:
        return (s, k, axes[s] // k) if call.op == "floordiv" else (s, 1, k)
    inner = _call(a) if isinstance(a, Expr) and call.op == "mod" else None
    if inner is not None and inner.op == "floordiv":
        s = symbol_of(inner.args[0])
        if s is not None and s in axes:
            return s, inner.args[1], k
    return None


def _call(e: IntLike) -> Call | None:
    if isinstance(e, Expr) and len(e.terms) == 1:
        ((mono, c),) = e.terms.items()
        if c == 1 and len(mono) == 1 and isinstance(mono[0], Call):
            return mono[0]
    return None


def _affine(u: Expr, k: IntLike, axes: Sizes, env: Env) -> bool:
    """``u = 768*i0 + 64*i1 + i2`` (a mixed radix): i0 = k // 768, i1 = k // 64 % 12, i2 = k % 64."""
    parts: list[tuple[IntLike, Symbol]] = []
    rest: IntLike = u
    for s in axes:
        c = coefficient(u, s)
        if c is None:
            return False
        if c != 0:
            parts.append((c, s))
            rest = rest - c * _expr(s)
    if rest != 0:
        return False
    step: IntLike = 1
    while parts:
        at = next((n for n, (c, _) in enumerate(parts) if c == step), None)
        if at is None:
            return False
        s = parts.pop(at)[1]
        value = k // step
        if parts:
            value = value % axes[s]
        if env.setdefault(s, value) != value:
            return False
        step = step * axes[s]
    return True


def _join(s: Symbol, parts: list[tuple[IntLike, IntLike, IntLike]], axes: Sizes, env: Env) -> bool:
    parts = list(parts)
    step: IntLike = 1
    total: IntLike = 0
    while parts:
        at = next((i for i, (w, _, _) in enumerate(parts) if w == step), None)
        if at is None:
            return False
        w, n, k = parts.pop(at)
        total = total + k * w
        step = step * n
    if step != axes[s]:
        return False
    env[s] = total
    return True


def complete(env: Env, axes: Sizes, known: Sizes) -> bool:
    """Map the axes that ``env`` leaves open onto the known axes that it does not use, in row-major order. Edits env."""
    open_axes = [s for s in axes if s not in env]
    if not open_axes:
        return True
    used = symbols(*env.values())
    free = [s for s in known if s not in used]
    sizes, frees = [axes[s] for s in open_axes], [known[s] for s in free]
    if sizes == frees:
        env.update({s: _expr(f) for s, f in zip(open_axes, free)})
        return True
    if product(sizes) != product(frees):
        return False
    linear = linearize([_expr(f) for f in free], frees)
    env.update(dict(zip(open_axes, delinearize(linear, sizes))))
    return True


def _expr(s: Symbol) -> Expr:
    return Expr({(s,): 1})


def covers(env: Env, axes: Sizes, known: Sizes) -> frozenset[Symbol] | None:
    """The known axes onto whose points ``axes`` map one to one through ``env``; None when it is no such map."""
    plain = [symbol_of(e) for e in env.values()]
    if all(s is not None for s in plain):
        if len(set(plain)) != len(plain):
            return None
        for s, e in zip(axes, (env[a] for a in axes)):
            other = symbol_of(e)
            if other is None or known.get(other) != axes[s]:
                return None
        return frozenset(s for s in plain if s is not None)
    return _covers_digits(env, axes, known)


def _covers_digits(env: Env, axes: Sizes, known: Sizes) -> frozenset[Symbol] | None:
    """Cut the known axes into digits; each of ``axes`` must be a full mixed radix of digits, each digit used once."""
    cut = cut_digits(known, list(env.values()))
    digits = {d: n for parts, _ in cut.values() for d, n in parts}
    change = {s: linear for s, (_, linear) in cut.items()}
    seen: set[Symbol] = set()
    for s, size in axes.items():
        e = substitute(env[s], change)
        terms: list[tuple[IntLike, Symbol]] = []
        for d in symbols(e) & digits.keys():
            c = coefficient(e, d)
            if c is None or d in seen:
                return None
            seen.add(d)
            terms.append((c, d))
            e = e - c * _expr(d)
        step: IntLike = 1
        while terms:
            at = next((n for n, (c, _) in enumerate(terms) if c == step), None)
            if at is None:
                return None
            step = step * digits[terms.pop(at)[1]]
        if e != 0 or step != size:
            return None
    out = set()
    for s, (parts, _) in cut.items():
        used = [d in seen for d, _ in parts]
        if all(used):
            out.add(s)
        elif any(used):
            return None
    return frozenset(out)

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
from braze.ir import Expr, IntLike, Symbol, product, substitute, symbol_of, symbols
from braze.ir.expr import Call

Env = dict[Symbol, IntLike]
Index = tuple[IntLike, ...]
Sizes = Mapping[Symbol, IntLike]


def match(unknown: Sequence[IntLike], known: Sequence[IntLike], axes: Sizes) -> Env | None:
    """The axes that the equations fix, as expressions over the known side; None when they contradict or resist."""
    env: Env = {}
    digits: dict[Symbol, list[tuple[int, IntLike, IntLike]]] = {}  # axis -> (weight, count, value)
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


def _digit(u: Expr, axes: Sizes) -> tuple[Symbol, int, IntLike] | None:
    """``axis // w``, ``axis % n`` or ``axis // w % n`` as (axis, w, n)."""
    call = _call(u)
    if call is None:
        return None
    a, k = call.args
    if not isinstance(k, int):
        return None
    s = symbol_of(a)
    if s is not None and s in axes:
        n = axes[s]
        return (s, k, n // k if isinstance(n, int) else n) if call.op == "floordiv" else (s, 1, k)
    inner = _call(a) if isinstance(a, Expr) and call.op == "mod" else None
    if inner is not None and inner.op == "floordiv" and isinstance(inner.args[1], int):
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
    parts: list[tuple[int, Symbol]] = []
    for mono, c in u.terms.items():
        if len(mono) != 1 or not isinstance(mono[0], Symbol) or mono[0] not in axes or c <= 0:
            return False
        parts.append((c, mono[0]))
    parts.sort(key=lambda p: p[0])
    step = 1
    for n, (c, s) in enumerate(parts):
        size = axes[s]
        if c != step or not isinstance(size, int):
            return False
        value = k // c if c != 1 else k
        if n + 1 < len(parts):
            value = value % size
        if env.setdefault(s, value) != value:
            return False
        step *= size
    return True


def _join(s: Symbol, parts: list[tuple[int, IntLike, IntLike]], axes: Sizes, env: Env) -> bool:
    parts = sorted(parts, key=lambda p: p[0])
    step: IntLike = 1
    total: IntLike = 0
    for w, n, k in parts:
        if w != step:
            return False
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
            if other not in known or known[other] != axes[s]:
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
        if not isinstance(e, Expr):
            return None
        terms = []
        for mono, c in e.terms.items():
            if len(mono) != 1 or mono[0] not in digits or mono[0] in seen:
                return None
            seen.add(mono[0])  # type: ignore[arg-type]
            terms.append((c, mono[0]))
        step: IntLike = 1
        for c, d in sorted(terms, key=lambda t: t[0]):
            if c != step:
                return None
            step = step * digits[d]  # type: ignore[index]
        if step != size:
            return None
    out = set()
    for s, (parts, _) in cut.items():
        used = [d in seen for d, _ in parts]
        if all(used):
            out.add(s)
        elif any(used):
            return None
    return frozenset(out)

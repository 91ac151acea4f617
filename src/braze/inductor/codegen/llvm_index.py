"""Index expressions and memory: the address of an access, loads and stores of scalars, vectors and scattered lanes.

A :class:`Scope` holds what the code at one place can refer to.  It is copied on entering a loop, so nothing computed
inside a loop is visible after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from braze.errors import Unsupported
from braze.inductor.loops.ir import Buffer, Load, Store, Value
from braze.ir import Expr, IntLike, Symbol, bounds, coefficient, symbols
from braze.ir.expr import Call

from .llvm_builder import BITS, ELEM, Builder, V, vec_type
from .llvm_ops import constant, convert
from .llvm_shuffle import strided


@dataclass
class Scope:
    """Values by instruction, loop counters and sizes by symbol, pointers by (buffer, offset so far), integers by
    expression."""

    values: dict[Any, V] = field(default_factory=dict)
    symbols: dict[Symbol, V] = field(default_factory=dict)
    pointers: dict[tuple[Buffer, IntLike], V] = field(default_factory=dict)
    integers: dict[Any, V] = field(default_factory=dict)

    def copy(self) -> Scope:
        return Scope(dict(self.values), dict(self.symbols), dict(self.pointers), dict(self.integers))


@dataclass(frozen=True)
class Lanes:
    """How code is being written: ``count`` lanes along ``axis`` (1: scalar code), of which ``mask`` are wanted (None:
    all)."""

    axis: Symbol | None = None
    count: int = 1
    mask: V | None = None


def axis_expr(s: Symbol) -> Expr:
    """The expression that is one symbol."""
    return Expr({(s,): 1})


MEMORY = {torch.bool: "i8"}


def memory_elem(dtype: torch.dtype) -> str:
    """Element type in memory."""
    return MEMORY.get(dtype, ELEM[dtype])


# -- integers


def scalar_index(b: Builder, e: IntLike, scope: Scope) -> V:
    """An index expression as an i64."""
    if not isinstance(e, Expr):
        return b.const("i64", e)
    found = scope.integers.get(e)
    if found is not None:
        return found
    total: V | None = None
    for mono, c in e.terms.items():
        term: V | None = None
        for a in mono:
            v = scope.symbols[a] if isinstance(a, Symbol) else _scalar_call(b, a, scope)
            term = v if term is None else b.mul(term, v)
        if term is None:
            term = b.const("i64", c)
        elif c != 1:
            term = b.mul(term, b.const("i64", c))
        total = term if total is None else b.add(total, term)
    assert total is not None
    scope.integers[e] = total
    return total


def _scalar_call(b: Builder, a: Any, scope: Scope) -> V:
    assert isinstance(a, Call)
    key = ("call", a)
    if key not in scope.integers:
        x, y = (scalar_index(b, t, scope) for t in a.args)
        scope.integers[key] = _integer_call(b, a, x, y)
    return scope.integers[key]


def _integer_call(b: Builder, a: Call, x: V, y: V) -> V:
    """floordiv, mod (floor semantics, positive divisor), min, max."""
    x, y = b.unify(x, y)
    if a.op in ("min", "max"):
        return b.select(b.compare("slt" if a.op == "min" else "sgt", x, y), x, y)
    positive = bounds(a.args[0])[0] >= 0
    if a.op == "floordiv":
        if positive:
            return b.binary("udiv", x, y)
        q = b.binary("sdiv", x, y)
        r = b.sub(x, b.mul(q, y))
        return b.select(b.compare("slt", r, b.like(r, 0)), b.sub(q, b.like(q, 1)), q)
    if positive:
        return b.binary("urem", x, y)
    r = b.binary("srem", x, y)
    return b.select(b.compare("slt", r, b.like(r, 0)), b.add(r, y), r)


def lane_index(b: Builder, e: IntLike, scope: Scope, lanes: Lanes, elem: str = "i64") -> V:
    """An index expression in every lane. Symbols bound to vectors (indirect ones) are taken lane by lane."""
    if not isinstance(e, Expr):
        return b.const(elem, e)
    key = ("lanes", elem, lanes.count, e)
    if key in scope.integers:
        return scope.integers[key]
    total: V | None = None
    for mono, c in e.terms.items():
        term: V | None = None
        for a in mono:
            v = _lane_atom(b, a, scope, lanes, elem)
            term = v if term is None else b.mul(term, v)
        if term is None:
            term = b.const(elem, c)
        elif c != 1:
            term = b.mul(term, b.const(elem, c))
        total = term if total is None else b.add(total, term)
    assert total is not None
    scope.integers[key] = total
    return total


def _lane_atom(b: Builder, a: Any, scope: Scope, lanes: Lanes, elem: str) -> V:
    if isinstance(a, Symbol):
        v = scope.symbols[a]
        if elem != "i64":
            v = b.cast("trunc", v, elem)
        if a is lanes.axis and lanes.count > 1:
            v = b.add(b.splat(v, lanes.count), b.iota(elem, lanes.count))
        return v
    assert isinstance(a, Call)
    x, y = (lane_index(b, t, scope, lanes, elem) for t in a.args)
    return _integer_call(b, a, x, y)


def narrow(*exprs: IntLike) -> str:
    """The integer type that an expression and all its parts fit in: "i32" where the ranges prove it, else "i64"."""

    def fits(e: IntLike) -> bool:
        lo, hi = bounds(e)
        if lo < -(2**30) or hi > 2**30:
            return False
        if isinstance(e, Expr):
            for mono, c in e.terms.items():
                size = abs(c)
                for a in mono:
                    size *= max(abs(a.lo), abs(a.hi), 1)
                    if isinstance(a, Call) and not all(fits(t) for t in a.args):
                        return False
                if size > 2**30:
                    return False
        return True

    return "i32" if all(fits(e) for e in exprs) else "i64"


# -- addresses


def level_groups(e: IntLike, level_of: dict[Symbol, int]) -> list[tuple[int, IntLike]]:
    """The terms of an offset grouped by the level of the innermost loop that each depends on, outermost first."""
    if not isinstance(e, Expr):
        return [(0, e)] if e else []
    groups: dict[int, IntLike] = {}
    for mono, c in e.terms.items():
        level = 0
        for a in mono:
            found = (a,) if isinstance(a, Symbol) else symbols(*a.args)  # type: ignore[attr-defined]
            level = max([level, *(level_of.get(s, 0) for s in found)])
        groups[level] = groups.get(level, 0) + Expr({mono: c})
    return sorted(groups.items())


def pointer(b: Builder, buffer: Buffer, e: IntLike, scope: Scope, level_of: dict[Symbol, int], upto: int) -> V:
    """Address of ``buffer`` at the terms of ``e`` whose level is at most ``upto``; partial addresses are shared."""
    so_far: IntLike = 0
    at = scope.pointers[buffer, 0]
    for level, group in level_groups(e, level_of):
        if level > upto:
            break
        so_far = so_far + group
        found = scope.pointers.get((buffer, so_far))
        if found is None:
            index = scalar_index(b, group, scope)
            found = b.let(
                "ptr", 1, f"getelementptr inbounds {memory_elem(buffer.type.dtype)}, {at.typed}, {index.typed}"
            )
            scope.pointers[buffer, so_far] = found
        at = found
    return at


@dataclass(frozen=True)
class Place:
    """Where an access lands: a base address, and for lanes their distance (``step`` elements, or ``offsets`` a lane
    each)."""

    base: V
    step: int | None
    offsets: V | None


def place(b: Builder, i: Load | Store, e: IntLike, scope: Scope, lanes: Lanes, level_of: dict[Symbol, int]) -> Place:
    """The place of an access. ``scope.symbols`` has the indirect symbols bound already (scalars or vectors)."""
    vectors = {s for s, _ in i.indirect if scope.symbols[s].lanes > 1}
    if lanes.count == 1 or lanes.axis is None:
        return Place(pointer(b, i.buffer, e, scope, level_of, 99), 0, None)
    step = None if vectors else coefficient(e, lanes.axis)
    if isinstance(step, int):
        return Place(pointer(b, i.buffer, e, scope, level_of, 99), step, None)
    varying, fixed = _split(e, vectors | {lanes.axis})
    base = pointer(b, i.buffer, fixed, scope, level_of, 99)
    return Place(base, None, b.splat(lane_index(b, varying, scope, lanes, narrow(varying)), lanes.count))


def _split(e: IntLike, varying: set[Symbol]) -> tuple[IntLike, IntLike]:
    """(terms that depend on the symbols, the other terms)."""
    moves: IntLike = 0
    rest: IntLike = 0
    if not isinstance(e, Expr):
        return 0, e
    for mono, c in e.terms.items():
        term = Expr({mono: c}) if mono else c
        if symbols(term) & varying:
            moves = moves + term
        else:
            rest = rest + term
    return moves, rest


# -- loads and stores


def load(b: Builder, i: Load, at: Place, lanes: Lanes, mask: V | None, vector: bool) -> V:
    """The loaded value in register form. ``mask`` joins the instruction's own and the tail's."""
    dtype = i.dtype
    elem, align = memory_elem(dtype), dtype.itemsize
    other = b.const("i8", bool(i.other)) if dtype == torch.bool else constant(b, dtype, i.other)
    if not vector:
        base = at.base if mask is None else b.select(mask, at.base, _safe(b))
        raw = b.let(elem, 1, f"load {elem}, {base.typed}, align {align}")
        raw = raw if mask is None else b.select(mask, raw, other)
    elif at.step == 1 and mask is None:
        t = vec_type(elem, lanes.count)
        raw = b.let(elem, lanes.count, f"load {t}, {at.base.typed}, align {align}")
    elif at.step == 1:
        assert mask is not None
        raw = masked_load(b, elem, at.base, align, mask, b.splat(other, lanes.count))
    elif at.step == -1:
        raw = _reversed_load(b, elem, at.base, align, lanes.count, mask, other)
    elif at.step is not None and mask is None:
        raw = _strided_load(b, elem, at.base, at.step, align, lanes.count)
    else:
        raw = _gather(b, elem, lane_pointers(b, elem, at, lanes.count), align, mask, b.splat(other, lanes.count))
    return from_memory(b, dtype, raw)


def from_memory(b: Builder, dtype: torch.dtype, raw: V) -> V:
    """A value as registers hold it."""
    return b.compare("ne", raw, b.like(raw, 0)) if dtype == torch.bool else raw


def keep(b: Builder, dtype: torch.dtype, at: Place, value: V) -> None:
    """Write a value of any lane count to private memory."""
    value = b.cast("zext", value, "i8") if dtype == torch.bool else value
    b.emit(f"store {value.typed}, {at.base.typed}, align {dtype.itemsize}")


def kept(b: Builder, dtype: torch.dtype, at: Place, count: int) -> V:
    """Read back what ``keep`` wrote."""
    elem = memory_elem(dtype)
    raw = b.let(elem, count, f"load {vec_type(elem, count)}, {at.base.typed}, align {dtype.itemsize}")
    return from_memory(b, dtype, raw)


def _safe(b: Builder) -> V:
    """Memory that may always be read: what a masked-off scalar load touches."""
    b.helpers["braze.zeros"] = "@braze.zeros = private unnamed_addr constant [16 x i8] zeroinitializer, align 16"
    return V("@braze.zeros", "ptr", 1, True)


def _suffix(elem: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(elem, elem)


def masked_load(b: Builder, elem: str, base: V, align: int, mask: V, other: V) -> V:
    """Neighbouring elements where the mask holds, ``other`` elsewhere; memory there is not touched."""
    n = mask.lanes
    name, t = f"llvm.masked.load.v{n}{_suffix(elem)}.p0", vec_type(elem, n)
    if b.version >= 22:
        b.declare(name, t, ["ptr", f"<{n} x i1>", t])
        return b.let(elem, n, f"call {t} @{name}(ptr align {align} {base.name}, {mask.typed}, {other.typed})")
    b.declare(name, t, ["ptr", "i32 immarg", f"<{n} x i1>", t])
    return b.let(elem, n, f"call {t} @{name}({base.typed}, i32 {align}, {mask.typed}, {other.typed})")


def lane_pointers(b: Builder, elem: str, at: Place, count: int) -> V:
    """One address a lane."""
    if at.offsets is not None:
        offsets = at.offsets if at.offsets.elem == "i64" else b.cast("sext", at.offsets, "i64")
    else:
        assert at.step is not None
        offsets = b.iota("i64", count, at.step)
    return b.let("ptr", count, f"getelementptr inbounds {elem}, {at.base.typed}, {offsets.typed}")


def _gather(b: Builder, elem: str, pointers: V, align: int, mask: V | None, other: V) -> V:
    n = pointers.lanes
    t = vec_type(elem, n)
    if mask is None or BITS[elem] < 32 and "avx512f" in b.features:
        return _gather_by_scalars(b, elem, pointers, align, mask, other)
    name = f"llvm.masked.gather.v{n}{_suffix(elem)}.v{n}p0"
    where = b.splat(mask, n)
    if b.version >= 22:
        b.declare(name, t, [f"<{n} x ptr>", f"<{n} x i1>", t])
        return b.let(
            elem, n, f"call {t} @{name}(<{n} x ptr> align {align} {pointers.name}, {where.typed}, {other.typed})"
        )
    b.declare(name, t, [f"<{n} x ptr>", "i32 immarg", f"<{n} x i1>", t])
    return b.let(elem, n, f"call {t} @{name}({pointers.typed}, i32 {align}, {where.typed}, {other.typed})")


def row_load(b: Builder, i: Load, base: V, distance: V, count: int, mask: V | None) -> V:
    """``count`` neighbouring elements, as they are in memory, ``distance`` elements after ``base``."""
    elem, align = memory_elem(i.dtype), i.dtype.itemsize
    p = b.let("ptr", 1, f"getelementptr inbounds {elem}, {base.typed}, {distance.typed}")
    if mask is not None:
        return masked_load(b, elem, p, align, mask, b.splat(b.const(elem, 0), count))
    return b.let(elem, count, f"load <{count} x {elem}>, {p.typed}, align {align}")


def prefetch(b: Builder, i: Load, base: V, distance: V) -> None:
    """Ask for the cache line ``distance`` elements after ``base``, into the second-level cache; any address will do."""
    p = b.let("ptr", 1, f"getelementptr {memory_elem(i.dtype)}, {base.typed}, {distance.typed}")
    b.declare("llvm.prefetch.p0", "void", ["ptr", "i32 immarg", "i32 immarg", "i32 immarg"])
    b.emit(f"call void @llvm.prefetch.p0({p.typed}, i32 0, i32 2, i32 1)")


def _reversed_load(b: Builder, elem: str, base: V, align: int, n: int, mask: V | None, other: V) -> V:
    """Neighbouring elements in falling order: one load, reversed."""
    p = b.let("ptr", 1, f"getelementptr inbounds {elem}, {base.typed}, i64 {1 - n}")
    if mask is None:
        return b.reverse(b.let(elem, n, f"load {vec_type(elem, n)}, {p.typed}, align {align}"))
    return b.reverse(masked_load(b, elem, p, align, b.reverse(b.splat(mask, n)), b.splat(other, n)))


def _strided_load(b: Builder, elem: str, base: V, step: int, align: int, n: int) -> V:
    """Evenly spaced elements: picked from loads that stay within the elements' span, or one load each."""
    if 2 <= step <= min(8 if "avx512f" in b.features else 3, n):
        parts = []
        for first in [j * n for j in range(step - 1)] + [(n - 1) * step + 1 - n]:
            p = b.let("ptr", 1, f"getelementptr inbounds {elem}, {base.typed}, i64 {first}")
            parts.append(b.let(elem, n, f"load {vec_type(elem, n)}, {p.typed}, align {align}"))
        return strided(b, parts, step)
    out = V("poison", elem, n, True)
    for k in range(n):
        p = b.let("ptr", 1, f"getelementptr inbounds {elem}, {base.typed}, i64 {k * step}")
        x = b.let(elem, 1, f"load {elem}, {p.typed}, align {align}")
        out = b.let(elem, n, f"insertelement {out.typed}, {x.typed}, i64 {k}")
    return out


def _gather_by_scalars(b: Builder, elem: str, pointers: V, align: int, mask: V | None, other: V) -> V:
    """Loads lane by lane: as fast as a hardware gather where all lanes are wanted."""
    n = pointers.lanes
    if mask is not None:
        safe = b.splat(_safe(b), 1)
        pointers = b.select(mask, pointers, _splat_pointer(b, safe, n))
    out = V("poison", elem, n, True)
    for k in range(n):
        p = b.extract(pointers, k)
        x = b.let(elem, 1, f"load {elem}, {p.typed}, align {align}")
        out = b.let(elem, n, f"insertelement {out.typed}, {x.typed}, i64 {k}")
    return out if mask is None else b.select(mask, out, other)


def _splat_pointer(b: Builder, p: V, n: int) -> V:
    first = b.let("ptr", n, f"insertelement <{n} x ptr> poison, {p.typed}, i64 0")
    return b.let("ptr", n, f"shufflevector {first.typed}, {first.type} poison, <{n} x i32> zeroinitializer")


def store(
    b: Builder,
    i: Store,
    at: Place,
    value: V,
    lanes: Lanes,
    mask: V | None,
    vector: bool,
    first: V | None = None,
    line: int = 0,
) -> None:
    """Write a value to memory, with the mask of the instruction and the tail joined. ``first``: of a sum, whether this
    is the first point that hits the element. ``line``: go past the caches with whole lines of these bytes."""
    dtype = i.buffer.type.dtype
    elem, align = memory_elem(dtype), dtype.itemsize
    if dtype == torch.bool:
        value = b.cast("zext", value, "i8")
    if i.mode == "atomic_add":
        _add(b, i, at, value, lanes, mask, vector)
        return
    if first is not None:
        old = load(b, Load(i.buffer, i.index), at, lanes, mask, vector)
        value = _sum(b, b.select(first, b.like(old, 0), old), value, dtype)
    if not vector:
        if mask is None:
            b.emit(f"store {value.typed}, {at.base.typed}, align {align}")
        else:
            b.when(mask, lambda: b.emit(f"store {value.typed}, {at.base.typed}, align {align}"))
        return
    value = b.splat(value, lanes.count)
    if at.step == 1 and mask is None:
        hint = f"align {line}, !nontemporal !{{i32 1}}" if line else f"align {align}"
        b.emit(f"store {value.typed}, {at.base.typed}, {hint}")
    elif at.step == 1:
        assert mask is not None
        _masked_store(b, elem, value, at.base, align, b.splat(mask, lanes.count))
    else:
        _scatter(b, elem, value, lane_pointers(b, elem, at, lanes.count), align, mask)


def _masked_store(b: Builder, elem: str, value: V, base: V, align: int, mask: V) -> None:
    n = value.lanes
    name = f"llvm.masked.store.v{n}{_suffix(elem)}.p0"
    if b.version >= 22:
        b.declare(name, "void", [value.type, "ptr", f"<{n} x i1>"])
        b.emit(f"call void @{name}({value.typed}, ptr align {align} {base.name}, {mask.typed})")
    else:
        b.declare(name, "void", [value.type, "ptr", "i32 immarg", f"<{n} x i1>"])
        b.emit(f"call void @{name}({value.typed}, {base.typed}, i32 {align}, {mask.typed})")


def _scatter(b: Builder, elem: str, value: V, pointers: V, align: int, mask: V | None) -> None:
    n = value.lanes
    if mask is None:
        for k in range(n):
            b.emit(f"store {b.extract(value, k).typed}, {b.extract(pointers, k).typed}, align {align}")
        return
    mask = b.splat(mask, n)
    name = f"llvm.masked.scatter.v{n}{_suffix(elem)}.v{n}p0"
    if b.version >= 22:
        b.declare(name, "void", [value.type, f"<{n} x ptr>", f"<{n} x i1>"])
        b.emit(f"call void @{name}({value.typed}, <{n} x ptr> align {align} {pointers.name}, {mask.typed})")
    else:
        b.declare(name, "void", [value.type, f"<{n} x ptr>", "i32 immarg", f"<{n} x i1>"])
        b.emit(f"call void @{name}({value.typed}, {pointers.typed}, i32 {align}, {mask.typed})")


def _add(b: Builder, i: Store, at: Place, value: V, lanes: Lanes, mask: V | None, vector: bool) -> None:
    """buffer[...] += value. The plan gives threads disjoint elements; lanes that may meet add one after another."""
    dtype = i.buffer.type.dtype
    elem, align = memory_elem(dtype), dtype.itemsize
    if vector and at.step == 1:
        whole = Load(i.buffer, i.index, i.indirect)
        old = load(b, whole, at, lanes, None if mask is None else b.splat(mask, lanes.count), True)
        new = _sum(b, old, b.splat(value, lanes.count), dtype)
        store(b, Store(i.buffer, i.index, i.value), at, new, lanes, mask, True)
        return

    def one(p: V, x: V) -> tuple[()]:
        old = b.let(elem, 1, f"load {elem}, {p.typed}, align {align}")
        b.emit(f"store {_sum(b, old, x, dtype).typed}, {p.typed}, align {align}")
        return ()

    if not vector:
        if mask is None:
            one(at.base, value)
        else:
            b.when(mask, lambda: one(at.base, value))
        return
    pointers, value = lane_pointers(b, elem, at, lanes.count), b.splat(value, lanes.count)
    for k in range(lanes.count):
        if mask is None:
            one(b.extract(pointers, k), b.extract(value, k))
        else:
            p, x = b.extract(pointers, k), b.extract(value, k)
            b.when(b.extract(b.splat(mask, lanes.count), k), lambda p=p, x=x: one(p, x))  # type: ignore[misc]


def _sum(b: Builder, x: V, y: V, dtype: torch.dtype) -> V:
    if dtype in (torch.float16, torch.bfloat16):
        wide = torch.float32
        return convert(b, b.add(convert(b, x, dtype, wide), convert(b, y, dtype, wide)), wide, dtype)
    if dtype == torch.bool:
        raise Unsupported("atomic_add to a bool buffer")
    return b.add(x, y)


def bind_indirect(scope: Scope, indirect: tuple[tuple[Symbol, Value], ...], b: Builder) -> None:
    """Bind the symbols of indirect indices to their values, as i64."""
    for s, v in indirect:
        value = scope.values[v]
        scope.symbols[s] = value if value.elem == "i64" else convert(b, value, v.dtype, torch.int64)

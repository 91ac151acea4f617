"""Concatenations, paddings and rolls without masks.

*Cuts*: where a kernel compares the vector axis with constants, its loop is cut there, and in each piece the comparisons
are known, so that masked loads and selections by them vanish.

*Late loads*: a selection by a condition that is the same in all lanes picks an address, and one load follows::

    where(c, x[i] if c, y[i])        # two masked loads and a blend
    *(c ? &x[i] : &y[i])             # one load

A value that is loaded late must have no user but the selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from braze.inductor.loops.ir import Axis, Compute, Const, Index, Instr, Load, Value, operands
from braze.ir import Expr, Symbol

from . import llvm_index as ix
from .llvm_builder import Builder, V
from .llvm_ops import constant

if TYPE_CHECKING:
    from .llvm_kernel import Writer

MAX_CUTS = 8
SHIFT = {"lt": (0, True), "ge": (0, False), "le": (1, True), "gt": (1, False)}
"""fn -> (how far after the constant the change is, the value before it)."""


def _change(i: Instr, axis: Symbol) -> int | None:
    """The point of the axis from which on a comparison has its other value; None for another instruction."""
    if not isinstance(i, Compute) or i.fn not in SHIFT:
        return None
    at, end = i.args
    if not isinstance(at, Index) or not isinstance(end, Const) or not isinstance(at.expr, Expr):
        return None
    rest = at.expr - Expr({(axis,): 1})
    return int(end.value) - rest + SHIFT[i.fn][0] if isinstance(rest, int) else None


def find_cuts(body: list[Instr], axis: Axis) -> tuple[int, ...]:
    """Where to cut the vector axis; empty for not at all."""
    if not isinstance(axis.size, int):
        return ()
    found = sorted({c for i in body for c in [_change(i, axis.index)] if c is not None and 0 < c < axis.size})
    return tuple(found) if len(found) <= MAX_CUTS else ()


def known_in_piece(body: list[Instr], axis: Axis, first: int) -> dict[Value, bool]:
    """The comparisons that the piece from ``first`` on decides."""
    out: dict[Value, bool] = {}
    for i in body:
        c = _change(i, axis.index)
        if c is not None and isinstance(i, Compute):
            out[i] = (first < c) == SHIFT[i.fn][1]
    return out


def late_values(body: list[Instr]) -> frozenset[Value]:
    """Loads and selections whose one use is a selection of them."""
    uses: dict[Value, list[Instr]] = {}
    for i in body:
        for v in operands(i):
            uses.setdefault(v, []).append(i)
    out: set[Value] = set()
    for i in body:
        if isinstance(i, Load) or (isinstance(i, Compute) and i.fn == "where"):
            users = uses.get(i, [])
            if (
                len(users) == 1
                and isinstance(users[0], Compute)
                and users[0].fn == "where"
                and users[0].args[0] is not i
            ):
                out.add(i)
    return frozenset(out)


class Late(NamedTuple):
    """A value still in memory: its address, and whether it is wanted (one lane; None: yes) or else ``load.other``."""

    load: Load
    base: V
    mask: V | None


def fill(b: Builder, i: Load, lanes: int, value: float | int | bool) -> V:
    """Memory that holds a constant in every lane."""
    elem = ix.memory_elem(i.dtype)
    v = b.const("i8", bool(value)) if i.dtype == torch.bool else constant(b, i.dtype, value)
    name = f"braze.fill.{lanes}.{elem}.{''.join(c if c.isalnum() else '_' for c in v.name)}"
    b.helpers[name] = f"@{name} = private unnamed_addr constant <{lanes} x {elem}> splat ({elem} {v.name}), align 64"
    return V(f"@{name}", "ptr", 1, True)


def choose(w: Writer, c: V, i: Compute) -> Late | None:
    """``where(c, x, y)`` of two values in memory, c the same in all lanes."""
    x, y = (_late(w, a, i) for a in i.args[1:])
    if x is None or y is None or x.load.dtype != y.load.dtype:
        return None
    if x.mask is not None and y.mask is not None and repr(x.load.other) != repr(y.load.other):
        return None
    b = w.b
    mask = None
    if x.mask is not None or y.mask is not None:
        true = b.const("i1", True)
        mask = b.select(c, x.mask or true, y.mask or true)
    return Late(x.load if x.mask is not None else y.load, b.select(c, x.base, y.base), mask)


def _late(w: Writer, v: Value, user: Compute) -> Late | None:
    found = w.late.get(v)
    if found is None and isinstance(v, Const):
        load = next((x.load for a in user.args[1:] for x in [w.late.get(a)] if x is not None), None)
        if load is not None and load.dtype == v.dtype:
            found = Late(load, fill(w.b, load, w.lanes.count, v.value), None)
    return found


def finish(w: Writer, x: Late) -> V:
    """Load it."""
    base = x.base if x.mask is None else w.b.select(x.mask, x.base, fill(w.b, x.load, w.lanes.count, x.load.other))
    return ix.load(w.b, x.load, ix.Place(base, 1, None), w.lanes, w.lanes.mask, True)

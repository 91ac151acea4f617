"""The order of a body: dead instructions dropped, the rest sorted into passes over the row.

A kernel with reductions runs in passes: pass 0 computes what needs no reduction, pass 1 what needs the results of pass
0, and so on.  Reductions happen in the earliest pass that can feed them, everything else in the pass that first uses
it, row-level values before point-level ones.  So a generator that forms passes by reading the body in order needs the
fewest of them, and keeps no value longer than it must.

Before: ``v1 = reduce_sum(v0); v2 = v0 - v1; v3 = load; v4 = reduce_sum(v3)``.
After: ``v3 = load; v1 = reduce_sum(v0); v4 = reduce_sum(v3); v2 = v0 - v1``.
"""

from __future__ import annotations

from typing import Any

from braze.inductor.loops import Axis, Index, Instr, Load, Reduce, Store, operands
from braze.ir import symbols


def in_passes(body: list[Instr], r: tuple[Axis, ...]) -> list[Instr]:
    """The instructions that a store needs, in pass order."""
    body = live(body)
    if not r:
        return body
    point = _point_level(body, r)
    stage: dict[Any, int] = {}
    for i in body:
        s = 0
        for v in operands(i):
            t = stage[v] + (1 if isinstance(v, Reduce) else 0)
            s = max(s, t)
        stage[i] = s
    late: dict[Any, int] = {}
    for i in reversed(body):
        if isinstance(i, (Reduce, Store)):
            late[i] = stage[i]
        for v in operands(i):
            if not isinstance(v, Reduce):
                late[v] = min(late.get(v, late[i]), late[i])
    return sorted(body, key=lambda i: (late[i], i in point or isinstance(i, Reduce)))


def _point_level(body: list[Instr], r: tuple[Axis, ...]) -> set[Any]:
    axes = {a.index for a in r}
    out: set[Any] = set()
    for i in body:
        if isinstance(i, Reduce):
            continue
        index = i.index if isinstance(i, (Load, Store)) else (i.expr,) if isinstance(i, Index) else ()
        if any(v in out for v in operands(i)) or (index and axes & symbols(*index)):
            out.add(i)
    return out


def live(body: list[Instr]) -> list[Instr]:
    """The instructions that a store needs."""
    needed: set[Any] = set()
    out = []
    for i in reversed(body):
        if isinstance(i, Store) or i in needed:
            out.append(i)
            needed.update(operands(i))
    out.reverse()
    return out

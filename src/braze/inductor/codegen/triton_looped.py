"""Reductions over rows too long for registers: loops over r, one for each level of reductions.

``level`` of a value: how many reductions, one after the other, it waits for.  Loop n folds the reductions of level n
and recomputes the point values that they need; the last loop does all point stores (an output may take over the memory
of an input that an earlier loop reads).  Softmax of long rows is three loops: the maximum, the sum of exponentials, the
division.  Row values are computed once, between the loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braze.ir import symbols

from ..loops.ir import Const, Index, Instr, Load, Reduce, Store, Value, operands

if TYPE_CHECKING:
    from .triton_emit import _Emitter


class Schedule:
    """Levels, and which instructions are point-level."""

    def __init__(self, e: _Emitter) -> None:
        r = e.block["r"].flat
        self.level: dict[Instr, int] = {}
        self.point: set[Instr] = set()
        for i in e.kernel.body:
            ins = list(operands(i))
            self.level[i] = max((self.level[v] + isinstance(v, Reduce) for v in ins), default=0)  # type: ignore[index]
            here = isinstance(i, (Load, Index, Store)) and r in symbols(e.flat[i])
            if not isinstance(i, Reduce) and (here or any(v in self.point for v in ins)):
                self.point.add(i)
        body = e.kernel.body
        self.rows = [i for i in body if i not in self.point and not isinstance(i, (Reduce, Store, Const))]
        self.row_stores = [i for i in body if isinstance(i, Store) and i not in self.point]
        self.point_stores = [i for i in body if isinstance(i, Store) and i in self.point]
        self.reduces = [i for i in body if isinstance(i, Reduce)]
        levels = [self.level[i] for i in self.reduces + self.point_stores]
        self.loops = max(levels, default=-1) + 1

    def needed(self, e: _Emitter, roots: list[Instr]) -> list[Instr]:
        """The point values that ``roots`` need, in order."""
        seen: set[Instr] = set()
        todo: list[Value] = [v for i in roots for v in operands(i)]
        while todo:
            v = todo.pop()
            if v in self.point and v not in seen:
                seen.add(v)
                todo += operands(v)
        return [i for i in e.kernel.body if i in seen]


def emit_looped(e: _Emitter) -> None:
    """The kernel's body as loops."""
    s = Schedule(e)
    stored: list[Store] = []
    for i in e.kernel.body:
        if isinstance(i, Store):
            stored.append(i)
        e.check_order(i, stored)
    for n in range(s.loops):
        _rows(e, s, n)
        reduces = [i for i in s.reduces if s.level[i] == n]
        stores = s.point_stores if n == s.loops - 1 else []
        for i in reduces:
            e.start(i)
        _loop(e, s, reduces, stores, last=n == s.loops - 1)
        for i in reduces:
            e.finish(i)
    _rows(e, s, None)
    e.stores(s.row_stores)


def _rows(e: _Emitter, s: Schedule, level: int | None) -> None:
    """The row values that have become known."""
    for i in s.rows:
        if i not in e.names and (level is None or s.level[i] <= level):
            e.instr(i)


def _loop(e: _Emitter, s: Schedule, reduces: list[Reduce], stores: list[Store], last: bool) -> None:
    """One walk over r."""
    body = s.needed(e, [*reduces, *stores])
    count = e.size(e.block["r"].numel, "rnumel")
    e.line(f"for roffset in range(0, {count}, RBLOCK):")
    e.indent += 1
    with e.r_index("roffset"):
        for i in body:
            if isinstance(i, Load):
                e.load(i, "" if s.loops == 1 else "evict_first" if last else "evict_last")
            else:
                e.instr(i)
        for r in reduces:
            e.accumulate(r)
        e.stores(stores)
    e.indent -= 1
    for i in body:
        if isinstance(i, Value):
            e.names.pop(i, None)

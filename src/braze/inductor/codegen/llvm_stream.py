"""Reductions over rows with lanes along the columns, row by row: the running results of all columns are kept in
memory (in the first-level cache) while blocks of rows stream by.  Walking each column down all rows would touch a new
page at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braze.inductor.loops.ir import Axis, Reduce, Store
from braze.ir import product

from . import llvm_index as ix
from .llvm_builder import V
from .llvm_passes import RUN, PassWriter
from .llvm_plan import estimate
from .llvm_reduce import Fold, fold_of

if TYPE_CHECKING:
    from .llvm_kernel import Writer


def _folds(w: Writer) -> list[Fold]:
    return [fold_of(i, True) for i in w.nest.body if isinstance(i, Reduce)]


def declare_states(w: Writer) -> None:
    """Stack memory for the running results."""
    if w.plan.streamed:
        for n, f in enumerate(_folds(w)):
            for k, v in enumerate(f.outer_identity(w.b, 1)):
                size = w.plan.streamed + w.plan.lanes
                w.b.emit(f"%state{n}.{k} = alloca [{size} x {_memory(v)}], align 64")


def _memory(v: V) -> str:
    return "i8" if v.elem == "i1" else v.elem


class Stream:
    """The vector axis over [lo, hi) (``even``: a multiple of the lanes), all rows."""

    def __init__(self, w: Writer, axis: Axis, lo: V, hi: V, even: bool) -> None:
        self.w, self.b, self.axis, self.lo, self.hi, self.even = w, w.b, axis, lo, hi, even
        self.folds = _folds(w)
        self.level = w.plan.row_level

    def write(self) -> None:
        w, b, plan = self.w, self.b, self.w.plan
        rows = plan.loops[plan.row_level - 1]
        inner = estimate(product([a.size for a in w.nest.r if a is not rows]))
        block = max(1, RUN // max(inner, 1))
        zero = b.const("i64", 0)
        for number in range(plan.last_pass + 1):
            mine = [n for n, f in enumerate(self.folds) if w.nest.passes[f.reduce] == number + 1]
            self._columns(lambda mine=mine: self._reset(mine))
            size = ix.scalar_index(b, rows.size, w.scope)

            def run(first: V, _: list[V], number: int = number, mine: list[int] = mine, size: V = size) -> tuple[()]:
                last = b.add(first, b.const("i64", block))
                last = b.select(b.compare("slt", last, size), last, size)
                self._columns(lambda: self._block(number, mine, first, last))
                return ()

            b.loop(zero, size, block, run)
        self._columns(self._finish)

    @property
    def count(self) -> int:
        return self.w.lanes.count

    def _columns(self, body: Any) -> None:
        """``body`` for every vector of columns."""
        w = self.w

        def one(i: V, accumulators: list[V]) -> list[V]:
            outer = w.scope
            w.scope = outer.copy()
            w.scope.symbols[self.axis.index] = i
            body()
            w.scope = outer
            return []

        w.vector_loop(self.axis, self.lo, self.hi, self.even, one, [], [])

    def _prologue(self, passes: int) -> None:
        """Row-level values, given the results of the first ``passes`` passes."""
        w = self.w
        w.enter(self.level, w.rows)
        for done in range(1, passes + 1):
            for n, f in enumerate(self.folds):
                if w.nest.passes[f.reduce] == done:
                    w.scope.values[f.reduce] = f.result(f.outer_result(self._restore(n)))
            w.emit_rows(done)

    def _block(self, number: int, mine: list[int], first: V, last: V) -> None:
        """Rows [first, last) of these columns."""
        w = self.w
        self._prologue(number)
        p = PassWriter(w, number, cascade=False)
        w.number = number
        p.enter(self.level)
        out = p.loops(w.plan.row_level - 1, p.identities(), (first, last))
        n = 0
        for k, f in zip(mine, p.folds):
            m = len(f.identity(self.b, 1))
            self._save(k, f.outer_merge(self.b, self._restore(k), out[n : n + m]))
            n += m

    def _reset(self, mine: list[int]) -> None:
        for n in mine:
            self._save(n, self.folds[n].outer_identity(self.b, self.count))

    def _finish(self) -> None:
        self._prologue(self.w.plan.last_pass + 1)
        for i in self.w.rows:
            if isinstance(i, Store):
                self.w.instr(i)

    # -- running results in memory

    def _at(self, n: int, k: int, elem: str) -> V:
        b = self.b
        column = b.sub(self.w.scope.symbols[self.axis.index], self.lo)
        return b.let("ptr", 1, f"getelementptr inbounds {elem}, ptr %state{n}.{k}, {column.typed}")

    def _save(self, n: int, state: list[V]) -> None:
        for k, v in enumerate(state):
            raw = self.b.cast("zext", v, "i8") if v.elem == "i1" else v
            self.b.emit(f"store {raw.typed}, {self._at(n, k, raw.elem).typed}, align 1")

    def _restore(self, n: int) -> list[V]:
        out = []
        for k, v in enumerate(self.folds[n].outer_identity(self.b, self.count)):
            raw = V("", _memory(v), v.lanes)
            raw = self.b.let(raw.elem, raw.lanes, f"load {raw.type}, {self._at(n, k, raw.elem).typed}, align 1")
            out.append(self.b.compare("ne", raw, self.b.like(raw, 0)) if v.elem == "i1" else raw)
        return out

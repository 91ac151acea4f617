"""One pass of a kernel over its reduction axes, written as LLVM IR, and values that one pass keeps for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from braze.inductor.loops.ir import Axis, Instr, Reduce, Store, Value
from braze.ir import IntLike, product

from . import llvm_index as ix
from .llvm_builder import V
from .llvm_index import Lanes
from .llvm_plan import estimate, is_point, needed_in_pass, product_of_outer
from .llvm_reduce import Fold, fold_of, merge_all

if TYPE_CHECKING:
    from .llvm_kernel import Writer

RUN = 64
"""Steps of the innermost loop that are summed plainly before the compensated addition."""

Body = Callable[[V, list[V]], Sequence[V]]


class PassWriter:
    """Writes pass ``number`` at one point (or vector of points) of the x axes, and binds its reductions' results."""

    def __init__(self, w: Writer, number: int, cascade: bool | None = None) -> None:
        self.w, self.b, self.plan, self.number = w, w.b, w.plan, number
        self.need: list[Instr] = needed_in_pass(w.plan, number)
        if cascade is None:
            trips = product([a.size for a in w.nest.r])
            steps = estimate(trips) // (w.plan.lanes if w.plan.in_r else 1)
            cascade = steps > RUN or not isinstance(trips, int)
        self.cascade = cascade
        self.folds: list[Fold] = [fold_of(i, True) for i in self.need if isinstance(i, Reduce)]

    def write(self) -> None:
        """The whole pass."""
        if not self.need:
            return
        w, b, plan = self.w, self.b, self.plan
        lanes = plan.lanes if plan.in_r else w.lanes.count
        outer = w.scope
        w.scope = outer.copy()
        w.number = self.number
        start = [v for f in self.folds for v in (f.outer_identity if self.cascade else f.identity)(b, lanes)]
        self.enter(plan.row_level)
        result = self.loops(plan.row_level - 1, start)
        w.scope = outer
        n = 0
        for f in self.folds:
            m = len((f.outer_identity if self.cascade else f.identity)(b, 1))
            state = f.outer_result(result[n : n + m]) if self.cascade else result[n : n + m]
            n += m
            w.scope.values[f.reduce] = f.result(f.fold_lanes(b, state) if plan.in_r else state)

    def enter(self, level: int) -> None:
        """The point-level values that live at a level."""
        self.w.enter(level, [i for i in self.need if is_point(self.w.nest, i)])

    def loops(self, k: int, state: list[V], span: tuple[V, V] | None = None) -> list[V]:
        """The r loops from the k-th loop of the plan (only ``span`` of that one); inside them all, one point."""
        w, b, plan = self.w, self.b, self.plan
        if k >= len(plan.loops):
            return self.merge(state, self.point(self.identities())) if self.cascade else self.point(state)
        axis = plan.loops[k]
        last = k == len(plan.loops) - 1

        def body(i: V, accumulators: list[V]) -> list[V]:
            outer = w.scope
            w.scope = outer.copy()
            w.scope.symbols[axis.index] = i
            self.enter(k + 2)
            out = self.point(accumulators) if last else self.loops(k + 1, accumulators)
            w.scope = outer
            return out

        lo, hi = span or (b.const("i64", 0), ix.scalar_index(b, axis.size, w.scope))
        if not last:
            return b.loop(lo, hi, 1, body, state, _runs(lo, hi))
        if not self.cascade:
            return self._span(axis, lo, hi, body, state)
        return self._runs_of(axis, hi, body, state)

    def _span(self, axis: Axis, lo: V, hi: V, body: Body, state: list[V]) -> list[V]:
        if axis is self.plan.vector:
            even = lo.const and hi.const and (int(hi.name) - int(lo.name)) % self.plan.lanes == 0
            return self.w.vector_loop(axis, lo, hi, even, body, state, self.folds)
        return self.b.loop(lo, hi, 1, body, state, _runs(lo, hi))

    def _runs_of(self, axis: Axis, size: V, body: Body, state: list[V]) -> list[V]:
        """The innermost loop cut into runs, whose results are merged into ``state``."""
        b, w = self.b, self.w
        vector = axis is self.plan.vector
        step = self.plan.lanes if vector else 1
        length = RUN * step
        zero = b.const("i64", 0)
        if isinstance(axis.size, int) and axis.size <= length:
            return self.merge(state, self._span(axis, zero, size, body, self.identities()))
        if isinstance(axis.size, int):
            cut = b.const("i64", axis.size - axis.size % length)
        else:
            cut = b.sub(size, b.binary("urem", size, b.const("i64", length)))

        def run(lo: V, accumulators: list[V]) -> list[V]:
            hi = b.add(lo, b.const("i64", length))
            lanes = Lanes(axis.index, step) if vector else w.lanes
            out = w.with_lanes(lanes, lambda: b.loop(lo, hi, step, body, self.identities(), True))
            return self.merge(accumulators, out)

        state = b.loop(zero, cut, length, run, state, _runs(zero, cut))
        if cut.const and cut == size:
            return state
        return self.merge(state, self._span(axis, cut, size, body, self.identities()))

    def identities(self) -> list[V]:
        lanes = self.plan.lanes if self.plan.in_r else self.w.lanes.count
        return [v for f in self.folds for v in f.identity(self.b, lanes)]

    def merge(self, outer: list[V], runs: list[V]) -> list[V]:
        return merge_all(self.b, self.folds, outer, runs)

    def point(self, state: list[V]) -> list[V]:
        """One point (or vector of points): fold into the reductions, do the stores."""
        w, b = self.w, self.b
        out: list[V] = []
        n = 0
        position: V | None = None
        for f in self.folds:
            m = len(f.identity(b, 1))
            if f.reduce.kind in ("argmax", "argmin") and position is None:
                position = self._position()
            out += f.step(b, state[n : n + m], w.scope.values[f.reduce.value], w.lanes.mask, position)
            n += m
        for i in self.need:
            if isinstance(i, Store):
                w.instr(i)
        return out

    def _position(self) -> V:
        """The flat position over the r axes, in every lane."""
        flat: IntLike = 0
        for axis in self.w.nest.r:
            flat = flat * axis.size + ix.axis_expr(axis.index)
        return ix.lane_index(self.b, flat, self.w.scope, self.w.lanes)


def _runs(lo: V, hi: V) -> bool:
    """True when a loop from lo to hi is known to run at least once."""
    return lo.const and hi.const and int(lo.name) < int(hi.name)


# -- values kept between passes


def declare_kept(w: Writer) -> None:
    """Stack memory for the kept values of one row."""
    for n, i in enumerate(w.plan.stash):
        assert isinstance(i, Value)
        room = _kept_stride(w) * product_of_outer(w.plan)
        w.b.emit(f"%stash{n} = alloca [{room} x {ix.memory_elem(i.dtype)}], align 64")


def _kept_stride(w: Writer) -> int:
    """Elements between kept rows: the vector axis, padded to whole vectors."""
    size = w.plan.row_limit or (w.plan.vector.size if w.plan.vector else 1)
    assert isinstance(size, int)
    return -(-size // w.plan.lanes) * w.plan.lanes


def _kept_place(w: Writer, i: Value) -> ix.Place:
    e: IntLike = 0
    for axis in w.nest.r:
        if axis is not w.plan.vector:
            e = e * axis.size + ix.axis_expr(axis.index)
    assert w.plan.vector is not None
    at = ix.scalar_index(w.b, e * _kept_stride(w) + ix.axis_expr(w.plan.vector.index), w.scope)
    name = f"%stash{list(w.plan.stash).index(i)}"
    return ix.Place(
        w.b.let("ptr", 1, f"getelementptr inbounds {ix.memory_elem(i.dtype)}, ptr {name}, {at.typed}"), 1, None
    )


def keep(w: Writer, i: Value) -> None:
    """Write a value for later passes (also the lanes beyond the row's end: there is room)."""
    ix.keep(w.b, i.dtype, _kept_place(w, i), w.scope.values[i])


def read_kept(w: Writer, i: Value) -> V:
    """The value that an earlier pass kept."""
    return ix.kept(w.b, i.dtype, _kept_place(w, i), w.lanes.count)

"""The body of a CPU kernel: a plan's loop nest written as LLVM IR."""

from __future__ import annotations

from typing import Any

import torch

from braze.inductor.loops.ir import Axis, Buffer, Compute, Const, Index, Instr, Load, Reduce, Store, Value
from braze.ir import IntLike, Symbol, coefficient, mod, symbols
from braze.runtime.cpu import Target

from . import llvm_index as ix
from .llvm_builder import Builder, V
from .llvm_cuts import Late, choose, finish, known_in_piece, late_values
from .llvm_index import Lanes, Scope
from .llvm_ops import Site, constant, convert, emit_compute
from .llvm_passes import PassWriter, declare_kept, keep, read_kept
from .llvm_plan import LINE, OWNED_UNITS, Plan, arguments, is_point, row_instrs
from .llvm_random import philox, philox_row
from .llvm_reduce import Fold
from .llvm_stream import Stream, declare_states
from .llvm_tile import declare_tiles, staged_place, walk_tile
from .llvm_weave import write_woven


class Writer:
    """Writes the work function of a plan: ``work(buffers..., sizes..., begin, end)`` runs the units [begin, end)."""

    def __init__(self, plan: Plan, target: Target) -> None:
        self.plan, self.nest, self.target = plan, plan.nest, target
        self.b = Builder(target.flags, target.llvm_version)
        self.scope = Scope()
        self.lanes = Lanes()
        self.levels: dict[Symbol, int] = {a.index: 1 for a in plan.units}
        self.levels.update({a.index: 2 + k for k, a in enumerate(plan.loops)})
        self.rows = list(row_instrs(plan))
        self.number = 0  # of the pass that is being written
        self.known: dict[Value, bool] = {}  # comparisons that the current piece of the vector axis decides
        self.late: dict[Value, Late] = {}  # values still in memory
        self.staged: dict[Instr, V] = {}  # transposed rows in registers, as they are in memory
        self.owned_share: tuple[V, V] | None = None  # of the owned index: this thread's first value, how many it has
        self.woven: dict[Store, tuple[V, list[V]]] | None = (
            None  # address and values of stores that are being collected
        )
        self.may_wait = frozenset() if self.nest.r else late_values(self.nest.body)

    # -- levels and scopes

    def level(self, i: Instr) -> int:
        """The level of the innermost loop that an instruction depends on."""
        level = max((self.levels[s] for s in self.nest.deps[i]), default=0)
        waits = self.nest.passes[i] > 0 and not is_point(self.nest, i)
        return max(level, self.plan.row_level) if waits or isinstance(i, Store) else level

    def is_vector(self, i: Instr) -> bool:
        return self.lanes.count > 1 and self.lanes.axis in self.nest.deps[i]

    def write(self) -> None:
        """The function's body; its arguments are named %p0.. (buffers), %s0.. (sizes), %begin, %end."""
        self.enter(0, self.rows)
        plan = self.plan
        declare_states(self)
        declare_kept(self)
        declare_tiles(self)
        begin, end = V("%begin", "i64"), V("%end", "i64")
        if plan.owned is not None:
            self._owned_rows(begin, end, plan.owned[1])
            return
        if plan.chunk and plan.merges_chunks:
            self._chunks(begin, end)
            return

        def one(q: V, _: list[V]) -> tuple[()]:
            outer = self.scope
            self.scope = outer.copy()
            if plan.chunk:
                assert plan.vector is not None
                pieces = ix.scalar_index(self.b, -(-plan.vector.size // plan.chunk), self.scope)
                piece = self.b.binary("urem", q, pieces)
                self._delinearize(self.b.binary("udiv", q, pieces))
                self.enter(1, self.rows)
                self._chunks(piece, self.b.add(piece, self.b.const("i64", 1)))
            else:
                self._delinearize(q)
                self.enter(1, self.rows)
                self._x_loops(0)
            self.scope = outer
            return ()

        self.b.loop(begin, end, 1, one, runs=True)

    def _owned_rows(self, begin: V, end: V, rows: int) -> None:
        """All points of the serial axes, of which those count whose owned index is in this thread's share."""
        b = self.b
        first, last = (
            b.binary("udiv", b.mul(v, b.const("i64", rows)), b.const("i64", OWNED_UNITS)) for v in (begin, end)
        )
        self.owned_share = first, b.sub(last, first)
        self.enter(1, self.rows)
        self._x_loops(0)

    def _delinearize(self, q: V) -> None:
        """Bind the unit axes from their flat position."""
        for k in range(len(self.plan.units) - 1, -1, -1):
            axis = self.plan.units[k]
            if k == 0:
                self.scope.symbols[axis.index] = q
            else:
                size = ix.scalar_index(self.b, axis.size, self.scope)
                self.scope.symbols[axis.index] = self.b.binary("urem", q, size)
                q = self.b.binary("udiv", q, size)

    def _chunks(self, first: V, last: V) -> None:
        """The vector axis over chunks [first, last)."""
        plan, b = self.plan, self.b
        assert plan.vector is not None
        size = ix.scalar_index(b, plan.vector.size, self.scope)
        lo = b.mul(first, b.const("i64", plan.chunk))
        hi = b.mul(last, b.const("i64", plan.chunk))
        hi = b.select(b.compare("slt", hi, size), hi, size)
        whole = isinstance(plan.vector.size, int) and plan.vector.size % plan.lanes == 0
        self._x_loops(0, (lo, hi, whole))

    def _x_loops(self, k: int, span: tuple[V, V, bool] | None = None) -> None:
        """The x loops inside the unit loop, from the k-th; ``span`` limits the vector axis (lo, hi, is a multiple of
        lanes)."""
        plan = self.plan
        if k == plan.row_level - 1:
            self._row()
            return
        if plan.owned is not None and k == len(plan.serial) and self.owned_share is not None:
            b, (first, count) = self.b, self.owned_share
            mine = b.compare("ult", b.sub(self.scope.values[plan.owned[0]], first), count)
            self.owned_share = None
            b.when(mine, lambda: self._x_loops(k, span))
            return
        axis = plan.loops[k]
        size = ix.scalar_index(self.b, axis.size, self.scope)

        def body(i: V, accumulators: list[V]) -> list[V]:
            outer = self.scope
            self.scope = outer.copy()
            self.scope.symbols[axis.index] = i
            self.enter(k + 2, self.rows)
            self._x_loops(k + 1, span)
            self.scope = outer
            return []

        if axis is plan.vector:
            zero = self.b.const("i64", 0)
            whole = isinstance(axis.size, int) and axis.size % plan.lanes == 0
            lo, hi, even = span or (zero, size, whole)
            if plan.streamed:
                Stream(self, axis, lo, hi, even).write()
            elif plan.cuts:
                self._pieces(axis, lo, hi, body)
            else:
                self.vector_loop(axis, lo, hi, even, body, [], [])
        elif plan.tile is not None and axis is plan.tile.axis:
            walk_tile(self, plan.tile, body)
        elif axis is plan.woven:
            write_woven(self, axis, lambda i: None if body(i, []) else None)
        else:
            self.b.loop(self.b.const("i64", 0), size, 1, body, runs=_runs(axis.size))

    def _pieces(self, axis: Axis, lo: V, hi: V, body: Any) -> None:
        """The vector axis over [lo, hi), one loop for each piece between the plan's cuts."""
        b = self.b
        assert isinstance(axis.size, int)
        for first, last in zip((0, *self.plan.cuts), (*self.plan.cuts, axis.size)):
            start, end = b.const("i64", first), b.const("i64", last)
            if not (lo.const and hi.const):
                start = b.select(b.compare("sgt", lo, start), lo, start)
                end = b.select(b.compare("slt", hi, end), hi, end)
                end = b.select(b.compare("slt", end, start), start, end)
            self.known = known_in_piece(self.nest.body, axis, first)
            self.vector_loop(axis, start, end, False, body, [], [])
        self.known = {}

    # -- loops over lanes

    def vector_loop(
        self, axis: Axis, lo: V, hi: V, even: bool, body: Any, start: list[V], folds: list[Fold]
    ) -> list[V]:
        """``body(i, accumulators)`` over [lo, hi): full vectors, then the rest masked or one by one. ``even``: no
        rest."""
        lanes = self.plan.lanes
        if lanes == 1:
            return self.with_lanes(Lanes(axis.index, 1), lambda: self.b.loop(lo, hi, 1, body, start))
        b = self.b
        main, rest = hi, None
        if not even:
            if lo.const and hi.const:
                rest = (int(hi.name) - int(lo.name)) % lanes
                main = b.const("i64", int(hi.name) - rest)
            else:
                count = b.binary("and", b.sub(hi, lo), b.const("i64", -lanes))
                main = b.add(lo, count)
        runs = lo.const and main.const and int(lo.name) < int(main.name)
        out = self.with_lanes(Lanes(axis.index, lanes), lambda: b.loop(lo, main, lanes, body, start, runs))
        if even or rest == 0:
            return out
        # One lane alone is never masked: LLVM makes a truncating store under such a mask store the wide element.
        if rest is not None and not out and self.plan.scattered:
            return self._narrow_rest(axis, main, rest, body)
        if self.plan.masked_tail and rest != 1:
            return self._masked_rest(axis, main, hi, rest, body, out)
        return self._scalar_rest(axis, main, hi, body, out, folds)

    def _narrow_rest(self, axis: Axis, main: V, rest: int, body: Any) -> list[V]:
        """A rest of known length in ever narrower vectors: no masks, which are slow for lanes that lie apart."""
        b, width = self.b, self.plan.lanes // 2
        while width:
            if rest & width:
                at = main
                self.with_lanes(Lanes(axis.index, width), lambda at=at: list(body(at, [])))
                main = b.const("i64", int(main.name) + width) if main.const else b.add(main, b.const("i64", width))
            width //= 2
        return []

    def with_lanes(self, lanes: Lanes, run: Any) -> list[V]:
        before = self.lanes
        self.lanes = lanes
        out: list[V] = run()
        self.lanes = before
        return out

    def _masked_rest(self, axis: Axis, main: V, hi: V, rest: int | None, body: Any, out: list[V]) -> list[V]:
        b, lanes = self.b, self.plan.lanes
        if rest is not None:
            width = lanes
            while not out and not self.plan.tile and width // 2 >= rest:
                width //= 2
            mask = _first_lanes(rest, width) if width > 1 else None
            return self.with_lanes(Lanes(axis.index, width, mask), lambda: list(body(main, out)))

        def run() -> list[V]:
            left = b.cast("trunc", b.sub(hi, main), "i32")
            mask = b.compare("slt", b.iota("i32", lanes), left)
            return self.with_lanes(Lanes(axis.index, lanes, mask), lambda: list(body(main, out)))

        return b.when(b.compare("slt", main, hi), run, out)

    def _scalar_rest(self, axis: Axis, main: V, hi: V, body: Any, out: list[V], folds: list[Fold]) -> list[V]:
        b = self.b
        start = [v for f in folds for v in f.identity(b, 1)]
        last = self.with_lanes(Lanes(axis.index, 1), lambda: b.loop(main, hi, 1, body, start))
        result: list[V] = []
        n = 0
        for f in folds:
            m = len(f.identity(b, 1))
            result += f.insert(b, out[n : n + m], last[n : n + m])
            n += m
        return result

    # -- one point of the x axes

    def _row(self) -> None:
        """Everything at one point (or vector of points) of the x axes."""
        plan = self.plan
        reductions = [i for i in self.nest.body if isinstance(i, Reduce)]
        stores = any(isinstance(i, Store) and is_point(self.nest, i) for i in self.nest.body)
        for number in range(plan.last_pass + 1 if reductions or stores else 0):
            PassWriter(self, number).write()
            self.emit_rows(number + 1)
        for i in self.rows:
            if isinstance(i, Store):
                self.instr(i)

    def emit_rows(self, passes: int) -> None:
        """Row-level values that the first ``passes`` passes make computable."""
        for i in self.rows:
            if not isinstance(i, Store) and i not in self.scope.values and self.nest.passes[i] == passes:
                self.instr(i)

    def enter(self, level: int, instrs: list[Instr]) -> None:
        """On entering a loop (0: the function): what lives at its level, and the addresses that inner levels build
        on."""
        if level == 0:
            for k, buffer in enumerate(self.buffers):
                self.scope.pointers[buffer, 0] = V(f"%p{k}", "ptr")
            for k, s in enumerate(self.sizes):
                self.scope.symbols[s] = V(f"%s{k}", "i64")
        for i in instrs:
            if isinstance(i, (Store, Reduce)) or i in self.scope.values or self.level(i) != level:
                continue
            if self.nest.passes[i] == 0 or is_point(self.nest, i):
                self.instr(i)
        for i in instrs:
            if isinstance(i, (Load, Store)) and self.level(i) > level and not i.indirect:
                ix.pointer(self.b, i.buffer, self.nest.offsets[i], self.scope, self.levels, level)

    @property
    def buffers(self) -> list[Buffer]:
        k = self.nest.kernel
        return list(dict.fromkeys(k.reads + k.writes))

    @property
    def sizes(self) -> list[Symbol]:
        return arguments(self.nest.kernel)[1]

    # -- instructions

    def instr(self, i: Instr) -> None:
        """Write one instruction at the current place."""
        self.late.pop(i, None)  # type: ignore[arg-type]  # of another piece of the loop
        if not isinstance(i, Store) and self.plan.stash.get(i, self.number) < self.number:
            self.scope.values[i] = read_kept(self, i)
        elif isinstance(i, Const):
            self.scope.values[i] = constant(self.b, i.dtype, i.value)
        elif isinstance(i, Index):
            self.scope.values[i] = self._index(i)
        elif isinstance(i, Load):
            self._load(i)
        elif i in self.known:
            self.scope.values[i] = self.b.const("i1", self.known[i])
        elif isinstance(i, Compute):
            made = self._where(i) if i.fn == "where" else self._compute(i)
            if made is not None:
                self.scope.values[i] = made
        elif isinstance(i, Store) and self.woven is not None:
            at, _ = self._place(i)
            self.woven.setdefault(i, (at.base, []))[1].append(self.scope.values[i.value])
        elif isinstance(i, Store):
            at, mask = self._place(i)
            vector = self.is_vector(i) or (self.lanes.count > 1 and i.mode != "set")
            first = self._first_point(i) if i.mode == "sum" else None
            whole = self.lanes.count == self.plan.lanes and self.lanes.mask is None
            past = LINE if whole and i.buffer in self.plan.past else 0
            ix.store(self.b, i, at, self.scope.values[i.value], self.lanes, mask, vector, first, past)
        if not isinstance(i, Store) and self.plan.stash.get(i) == self.number:
            keep(self, i)

    def _load(self, i: Load) -> None:
        wanted = None if i.mask is None else self.scope.values[i.mask]
        vector = self.is_vector(i)
        if wanted is not None and wanted.const and wanted.lanes == 1 and wanted.name == "false":
            other = self.b.const("i1", bool(i.other)) if i.dtype == torch.bool else constant(self.b, i.dtype, i.other)
            self.scope.values[i] = other
            return
        if i in self.staged:
            self.scope.values[i] = ix.from_memory(self.b, i.dtype, self.staged[i])
            return
        staged = staged_place(self, i)
        at, mask = (staged, None) if staged else self._place(i)
        plain = vector and at.step == 1 and not staged and (wanted is None or wanted.lanes == 1)
        if plain and (i in self.may_wait or wanted is not None):
            late = Late(i, at.base, None if wanted is None or wanted.const else wanted)
            if i in self.may_wait:
                self.late[i] = late
            else:
                self.scope.values[i] = finish(self, late)
            return
        self.scope.values[i] = ix.load(self.b, i, at, self.lanes, mask, vector)

    def operand(self, v: Value) -> V:
        """A value in registers."""
        late = self.late.get(v)
        return self.scope.values[v] if late is None else finish(self, late)

    def _where(self, i: Compute) -> V | None:
        """A selection; None where its result stays in memory."""
        c = self.scope.values[i.args[0]]
        if c.const and c.lanes == 1:
            chosen = i.args[1] if c.name == "true" else i.args[2]
            late = self.late.get(chosen)
            if late is None or i not in self.may_wait:
                return self.operand(chosen)
        else:
            late = choose(self, c, i) if c.lanes == 1 and self.lanes.count > 1 else None
            if late is None:
                return emit_compute(Site(self.b, i, self.target.vector_math), [c, *map(self.operand, i.args[1:])])
            if i not in self.may_wait:
                return finish(self, late)
        self.late[i] = late
        return None

    def _index(self, i: Index) -> V:
        e = self.nest.indices[i]
        if self.is_vector(i):
            elem = ix.narrow(e)
            v = ix.lane_index(self.b, e, self.scope, self.lanes, elem)
        else:
            v = ix.scalar_index(self.b, e, self.scope)
        return convert(self.b, v, torch.int32 if v.elem == "i32" else torch.int64, i.dtype)

    def _place(self, i: Load | Store) -> tuple[ix.Place, V | None]:
        ix.bind_indirect(self.scope, i.indirect, self.b)
        at = ix.place(self.b, i, self.nest.offsets[i], self.scope, self.lanes, self._levels_of(i))
        mask = None if i.mask is None else self.scope.values[i.mask]
        vector = self.is_vector(i) or (isinstance(i, Store) and i.mode != "set" and self.lanes.count > 1)
        if vector:
            if self.lanes.mask is not None:
                mask = self.lanes.mask if mask is None else self.b.binary("and", mask, self.lanes.mask)
            if mask is not None and mask.const and mask.lanes == 1 and mask.name == "true":
                mask = None
            mask = None if mask is None else self.b.splat(mask, self.lanes.count)
        return at, mask

    def _first_point(self, i: Store) -> V:
        """True at the first of the points that hit one element of a sum."""
        b = self.b
        own = symbols(self.nest.offsets[i])
        folded = tuple([a.index for a in self.plan.serial if a.index not in own])
        found = self.scope.integers.get(("first", folded))
        if found is None:
            total = b.const("i64", 0)
            for s in folded:
                total = b.binary("or", total, self.scope.symbols[s])
            found = self.scope.integers["first", folded] = b.compare("eq", total, b.const("i64", 0))
        return found

    def _levels_of(self, i: Load | Store) -> dict[Symbol, int]:
        if not i.indirect:
            return self.levels
        own = {s: max((self.levels[a] for a in self.nest.deps[v]), default=0) for s, v in i.indirect}
        return {**self.levels, **own}

    def _compute(self, i: Compute) -> V:
        args = [self.scope.values[a] for a in i.args]
        if i.fn == "check_index":
            return self._check_index(i, args[0])
        if i.fn == "philox":
            return self._philox(i, args)
        if i.fn == "bitwise_and" and any(a.const and a.elem == "i1" and a.lanes == 1 for a in args):
            known = next(a for a in args if a.const and a.lanes == 1)
            return (args[1] if args[0] is known else args[0]) if known.name == "true" else known
        return emit_compute(Site(self.b, i, self.target.vector_math), args)

    def _philox(self, i: Compute, args: list[V]) -> V:
        """Neighbouring lanes with neighbouring indices share their Philox blocks."""
        source, lanes = i.args[2], self.lanes
        if isinstance(source, Index) and lanes.count >= 4 and args[0].lanes == args[1].lanes == 1 and lanes.axis:
            e = self.nest.indices[source]
            axis = ix.axis_expr(lanes.axis)
            aligned = coefficient(e, lanes.axis) == 1 and mod(e - axis, 4) == 0
            if aligned:
                return philox_row(self.b, args[0], args[1], ix.scalar_index(self.b, e, self.scope), lanes.count)
        return philox(self.b, *args)

    def _check_index(self, i: Compute, v: V) -> V:
        """Wrap a negative index; out of range: report it and use 0. Both are aside from the way of good indices."""
        b = self.b
        size = convert(b, ix.scalar_index(b, dict(i.attrs)["size"], self.scope), torch.int64, i.args[0].dtype)

        def beyond(v: V) -> tuple[V, V]:
            bad = b.compare("uge", v, size)
            if bad.lanes == 1:
                return bad, bad
            if self.lanes.mask is not None and self.lanes.count == bad.lanes:
                bad = b.binary("and", bad, self.lanes.mask)
            name = f"llvm.vector.reduce.or.v{bad.lanes}i1"
            b.declare(name, "i1", [bad.type])
            return bad, b.let("i1", 1, f"call i1 @{name}({bad.typed})")

        def aside() -> list[V]:
            wrapped = b.select(b.compare("slt", v, b.like(v, 0)), b.add(v, size), v)
            bad, some = beyond(wrapped)
            b.when(some, lambda: b.emit("store atomic i32 1, ptr %failed monotonic, align 4"))
            return [b.select(bad, b.splat(b.like(v, 0), bad.lanes), wrapped)]

        return b.when(beyond(v)[1], aside, [v])[0]


def _first_lanes(count: int, width: int) -> V:
    """The constant mask of the first ``count`` lanes."""
    if width >= 8:  # LLVM's code generator crashes on casts of integers that are narrower than a byte
        return V(f"bitcast (i{width} {(1 << count) - 1} to <{width} x i1>)", "i1", width, True)
    return V("<" + ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(width)) + ">", "i1", width, True)


def _runs(size: IntLike) -> bool:
    return isinstance(size, int) and size > 0

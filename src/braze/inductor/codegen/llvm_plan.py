"""From a loop-IR kernel to a loop nest for the CPU: which axis becomes vector lanes, which loops are shared by
threads, and how many passes over the reduction axes there are.

The nest, outermost first::

    unit        the parallel x axes, flattened (and chunks of the vector axis, if that is an x axis); split over threads
    serial x    axes that must not run in parallel (several points add, sum or indirectly store to one element), and
                those that make a unit's work out of rows that are short
    vector x    if the vector axis is an x axis
    pass 0, 1   each a loop over the r axes (the vector axis last, if it is an r axis)

A value lives at the level of the innermost loop that it depends on.  A reduction ends its pass; point-level values
that a later pass needs are computed again there.  Stores of point-level values all go to the last pass, so that a
buffer which takes over the memory of one that the kernel reads is written only after the last read of that point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from braze.errors import Unsupported
from braze.inductor.loops.canonical import Canonical
from braze.inductor.loops.ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Instr,
    Kernel,
    Load,
    Reduce,
    Store,
    Value,
    operands,
)
from braze.ir import Expr, IntLike, Symbol, bounds, coefficient, evaluate, product, symbol, symbol_of, symbols, terms_of
from braze.runtime.cpu import Target

from .llvm_builder import BITS, ELEM
from .llvm_cuts import find_cuts

Access = Load | Store
Item = Value | Store  # any instruction
LINE = 64  # bytes of a cache line
MAX_STEP = 8  # of lanes that are picked from whole vectors: above, one load each is as fast
HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc"
    " erfinv lgamma digamma sigmoid pow atan2 fmod remainder floor_div philox".split()
)
"""Computations that cost as much as ten or more simple ones."""


@dataclass
class Nest:
    """A canonical kernel: expressions of every access and index, and what each value depends on."""

    kernel: Kernel
    x: list[Axis]
    r: list[Axis]
    body: list[Instr]  # what the stores need, in order
    offsets: dict[Access, IntLike]  # element offset from the buffer's data pointer
    indices: dict[Index, IntLike]
    deps: dict[Item, frozenset[Symbol]] = field(default_factory=dict)
    passes: dict[Item, int] = field(default_factory=dict)

    def size(self, s: Symbol) -> IntLike:
        return next(a.size for a in self.x + self.r if a.index is s)


@dataclass
class Tile:
    """A transpose in registers: ``loads`` are scattered in the lanes but contiguous along ``axis``.  ``block`` is the
    unit axis that counts blocks of ``span`` elements (a multiple of TILE) of ``axis``, whose own loop runs inside the
    vector loop.  ``unroll``: no loop over TILE of them; ``prefetch``: ask for the operand's lines early."""

    axis: Axis
    block: Axis
    loads: list[Load]
    span: int
    unroll: bool
    prefetch: bool


@dataclass
class Plan:
    """The decisions. ``lanes`` is the vector width in elements; ``chunk`` the elements of the vector x axis that a
    unit takes (0: all of them)."""

    nest: Nest
    units: list[Axis]
    serial: list[Axis]
    vector: Axis | None
    in_r: bool
    lanes: int
    chunk: int
    last_pass: int
    parallel: bool
    masked_tail: bool
    tile: Tile | None = None
    owned: tuple[Compute, int] | None = None  # an index of the stores, whose values [0, n) are divided among threads
    woven: Axis | None = None  # a short axis, written out, whose stores fill the gaps between the lanes
    scattered: bool = False  # some lanes lie apart in memory
    row_limit: int = 0  # elements of a row that the kept values have room for, where its size is symbolic
    stash: dict[Item, int] = field(default_factory=dict)  # values kept for later passes -> the pass that computes each
    cuts: tuple[int, ...] = ()  # points of the vector axis where comparisons change: a loop for each piece
    past: frozenset[Buffer] = frozenset()  # buffers that are stored past the caches (llvm_past)
    streamed: int = 0  # columns whose running results are kept in memory while rows stream by (0: not done)

    @property
    def merges_chunks(self) -> bool:
        """A thread walks its neighbouring chunks as one span."""
        return not self.units and (not self.streamed or self.chunk < self.streamed)

    @property
    def loops(self) -> list[Axis]:
        """x loops inside the unit loop, then r loops, outermost first."""
        inner = self.serial + ([self.vector] if self.vector and not self.in_r else [])
        inner += [self.tile.axis] if self.tile else [self.woven] if self.woven else []
        r = [a for a in self.nest.r if a is not self.vector]
        return inner + r + ([self.vector] if self.vector and self.in_r else [])

    @property
    def row_level(self) -> int:
        """Level of the innermost x loop. 0: outside all; 1: the unit loop; then one a loop."""
        inner = self.tile is not None or self.woven is not None
        return 1 + len(self.serial) + (1 if self.vector and not self.in_r else 0) + inner


def estimate(e: IntLike) -> int:
    """A size's value, by its hint when it is symbolic (1024 without one)."""
    try:
        return evaluate(e)
    except ValueError:
        return 1024


# -- axes


def offset(i: Access) -> IntLike:
    """Element offset of an access from the buffer's first element (a tensor's data pointer is past its storage
    offset)."""
    out: IntLike = 0
    for e, s in zip(i.index, i.buffer.type.strides):
        out = out + e * s
    return out


def build_nest(kernel: Kernel) -> Nest:
    """What a canonical kernel (simplified axes, one offset an access) needs and depends on."""
    body = live(kernel)
    _check(body)
    offsets: dict[Access, IntLike] = {i: offset(i) for i in body if isinstance(i, (Load, Store))}
    indices: dict[Index, IntLike] = {i: i.expr for i in body if isinstance(i, Index)}
    nest = Nest(kernel, list(kernel.x), list(kernel.r), body, offsets, indices)
    _dependencies(nest)
    _number_passes(nest)
    return nest


def _check(body: list[Instr]) -> None:
    """Unsupported for what the CPU code generator has no code for."""
    written: set[Buffer] = set()
    for i in body:
        dtype = i.buffer.type.dtype if isinstance(i, Store) else i.dtype
        if dtype not in ELEM:
            raise Unsupported(f"CPU kernels have no code for {dtype}")
        if isinstance(i, Store):
            written.add(i.buffer)
        elif isinstance(i, Load) and i.buffer in written:
            raise Unsupported(f"a CPU kernel that reads {i.buffer.name} after writing it")


def live(kernel: Kernel) -> list[Instr]:
    """The instructions that the stores need, in body order."""
    need: set[object] = set()
    for i in reversed(kernel.body):
        if isinstance(i, Store) or i in need:
            need.add(i)
            need.update(operands(i))
    return [i for i in kernel.body if i in need]


# -- dependence and passes


def _dependencies(nest: Nest) -> None:
    axes = {a.index for a in nest.x + nest.r}
    r = {a.index for a in nest.r}
    for i in nest.body:
        found: set[Symbol] = set()
        for v in operands(i):
            found |= nest.deps[v]
        if isinstance(i, (Load, Store)):
            found |= symbols(nest.offsets[i]) & axes
        elif isinstance(i, Index):
            found |= symbols(nest.indices[i]) & axes
        elif isinstance(i, Reduce):
            found -= r
        nest.deps[i] = frozenset(found)


def _number_passes(nest: Nest) -> None:
    """For each instruction the pass in which it can first be computed; for a row-level one the number of finished
    passes."""
    for i in nest.body:
        ready = max((nest.passes[v] for v in operands(i)), default=0)
        nest.passes[i] = ready + 1 if isinstance(i, Reduce) else ready


def is_point(nest: Nest, i: Item) -> bool:
    """True when the instruction depends on an r axis."""
    return not nest.deps[i].isdisjoint(a.index for a in nest.r)


# -- the vector axis


def lane_step(nest: Nest, i: Access, axis: Symbol) -> IntLike | None:
    """Elements between neighbouring lanes of an access; None when they are not evenly spaced."""
    if any(axis in nest.deps[v] for _, v in i.indirect):
        return None
    return coefficient(nest.offsets[i], axis)


def _lane_cost(nest: Nest, axis: Axis, woven: bool = False) -> float:
    """``woven``: the stores are woven along another axis."""
    cost = 0.0
    for i in nest.offsets:
        step = lane_step(nest, i, axis.index)
        if isinstance(i, Store) and woven:
            cost += 1.5
        elif isinstance(i, Store) and i.mode == "sum" and step != 1:
            cost += 1e6  # its points must come one after another, in lanes of its own
        elif isinstance(i, Store) and i.mode == "atomic_add" and step != 1:
            cost += 24.0
        elif isinstance(i, Store) and i.mode == "set" and i.indirect and not _last_repeating(nest, i, axis):
            cost += 1e6  # lanes along it would change which of the stores to one element is the last
        elif step in (0, 1) or (step == -1 and isinstance(i, Load)):
            cost += 0.25 if step == 0 else 1.0
        elif isinstance(i, Load) and i.mask is None and isinstance(step, int) and 2 <= step <= MAX_STEP:
            cost += 0.6 + 0.4 * step
        else:
            cost += 12.0 if isinstance(i, Store) else 8.0
    for e in nest.indices.values():
        if axis.index in symbols(e) and coefficient(e, axis.index) is None:
            cost += 4.0
    for op in nest.body:
        if isinstance(op, Compute):
            cost += 8.0 if op.fn in HEAVY else 0.5
    size = estimate(axis.size)
    return cost * (16.0 / min(size, 16) if size else 1.0)


def _last_repeating(nest: Nest, i: Store, axis: Axis) -> bool:
    """No axis after this one may hit an element again that this one has hit too."""
    repeating = [a for a in nest.x + nest.r if not _distinct(nest.offsets[i], a)]
    return axis not in repeating[:-1]


def choose_vector(nest: Nest) -> tuple[Axis | None, bool]:
    """(the axis of the lanes, is it an r axis). Ties go to the longer axis, then to the later."""
    best: tuple[float, int, int] | None = None
    chosen: tuple[Axis | None, bool] = (None, False)
    for n, (axis, in_r) in enumerate([(a, False) for a in nest.x] + [(a, True) for a in nest.r]):
        key = (_lane_cost(nest, axis), -min(estimate(axis.size), 64), -n)
        if best is None or key < best:
            best, chosen = key, (axis, in_r)
    return chosen


MAX_WOVEN = 8


def choose_woven(nest: Nest, instead_of: Axis | None) -> tuple[Axis, Axis] | None:
    """(the axis of the lanes, a short axis that fills the gaps between their stores), where that is better than lanes
    along one axis alone."""
    stores = [i for i in nest.body if isinstance(i, Store)]
    if nest.r or any(i.mode != "set" or i.indirect or i.mask is not None for i in stores):
        return None
    best = None if instead_of is None else _lane_cost(nest, instead_of)
    chosen = None
    for short in nest.x:
        if not isinstance(short.size, int) or not 2 <= short.size <= MAX_WOVEN:
            continue
        if any(lane_step(nest, i, short.index) != 1 for i in stores):
            continue
        for axis in nest.x:
            if axis is not short and all(lane_step(nest, i, axis.index) == short.size for i in stores):
                cost = _lane_cost(nest, axis, woven=True)
                if best is None or cost < best:
                    best, chosen = cost, (axis, short)
    return chosen


def _widest(nest: Nest) -> int:
    """Bits of the widest element that vectors hold."""
    widths = [32]
    for i in nest.body:
        if isinstance(i, (Const, Store, Index)):
            continue
        widths.append(BITS[ELEM[i.dtype]])
    return max(widths)


def _pressure(nest: Nest) -> int:
    """Roughly how many vectors are alive at once."""
    last: dict[object, int] = {}
    for n, i in enumerate(nest.body):
        for v in operands(i):
            last[v] = n
    alive = most = 0
    ends: dict[int, int] = {}
    for n, i in enumerate(nest.body):
        alive -= ends.pop(n, 0)
        if isinstance(i, (Load, Compute, Reduce)) and i in last:
            alive += 1
            ends[last[i]] = ends.get(last[i], 0) + 1
        heavy = 3 if isinstance(i, Compute) and i.fn in HEAVY else 0
        most = max(most, alive + heavy)
    return max(most, 1)


def choose_lanes(nest: Nest, axis: Axis, target: Target) -> int:
    """A power of two: several registers wide, fewer where many values are alive or lanes are gathered."""
    if _one_by_one(nest, axis):
        return 1
    per_register = target.vector_bits // _widest(nest)
    registers = 32 if target.vector_bits == 512 else 16
    count = 4
    while count > 1 and _pressure(nest) * count > registers:
        count //= 2
    scattered = any(lane_step(nest, i, axis.index) not in (-1, 0, 1) for i in nest.offsets)
    if scattered:
        count = 1
    lanes = per_register * count
    size = axis.size
    if isinstance(size, int):
        while lanes > 1 and lanes > size:
            lanes //= 2
    return max(lanes, 1)


def _one_by_one(nest: Nest, axis: Axis) -> bool:
    """Indirect stores of little else than what is loaded: taking lanes apart costs more than they save."""
    apart = any(isinstance(i, Store) and lane_step(nest, i, axis.index) is None for i in nest.offsets)
    work = sum(isinstance(i, Compute) and i.fn != "check_index" for i in nest.body)
    return apart and work <= 4 and not any(isinstance(i, Compute) and i.fn in HEAVY for i in nest.body)


# -- threads


def conflict_free(nest: Nest, axis: Axis) -> bool:
    """True when different values of the axis never make an atomic_add, a sum or an indirect store hit one element: of
    several indirect stores to one element the last in the order of the axes stays, as in eager."""
    return all(_distinct(nest.offsets[i], axis) for i in nest.body if isinstance(i, Store) and _may_repeat(i))


def _may_repeat(i: Store) -> bool:
    """Several points may write one element."""
    return i.mode != "set" or bool(i.indirect)


def _distinct(e: IntLike, axis: Axis) -> bool:
    """Offsets with different values of the axis differ: its step is wider than all that the other terms can move, or
    its whole walk fits below the steps of all others."""
    step = coefficient(e, axis.index)
    if not isinstance(step, int) or step == 0 or not isinstance(axis.size, int):
        return False
    step, rest = abs(step), e - step * Expr({(axis.index,): 1})
    lo, hi = bounds(rest)
    if hi - lo < step:
        return True
    walk = step * axis.size
    return all(not mono or c % walk == 0 for c, mono in terms_of(rest))


OWNED_UNITS = 256  # that the values of an owned index are divided into
OWNED_ROW = 32  # elements of a row that are worth looking at all indices


def find_owned(nest: Nest, serial: list[Axis], vector: Axis) -> tuple[Compute, int] | None:
    """An index of rows that are stored to in the order of the serial axes: every thread walks all of them, and does
    those of the rows that are its own. Each row is one thread's, so that no two meet and the order stays."""
    stores = [i for i in nest.body if isinstance(i, Store)]
    walked = {a.index for a in serial}
    if nest.r or not serial or estimate(vector.size) < OWNED_ROW:
        return None
    for _, v in stores[0].indirect:
        if isinstance(v, Compute) and v.fn == "check_index" and nest.deps[v] <= walked:
            size = dict(v.attrs)["size"]
            if isinstance(size, int) and size > 1 and all(_owns(nest, i, v, size) for i in stores):
                return v, size
    return None


def _owns(nest: Nest, i: Store, v: Compute, size: int) -> bool:
    """Different values of the index make different elements."""
    own = [s for s, w in i.indirect if w is v]
    return len(own) == 1 and _distinct(nest.offsets[i], Axis(own[0], size))


GRAIN_NS = 15_000.0  # a kernel estimated shorter than this runs on the calling thread


def cost_ns(nest: Nest) -> float:
    """A rough running time on one thread."""
    points = float(estimate(product([a.size for a in nest.x + nest.r])))
    rows = float(estimate(product([a.size for a in nest.x])))
    total = 0.0
    for i in nest.body:
        each = 0.4 if isinstance(i, Compute) and i.fn in HEAVY else 0.03 if isinstance(i, Compute) else 0.1
        total += each * (points if is_point(nest, i) or not nest.r else rows)
    return total


def make_plan(kernel: Kernel, target: Target) -> Plan:
    """All decisions for one kernel."""
    nest = build_nest(kernel)
    vector, in_r = choose_vector(nest)
    pair = None if in_r else choose_woven(nest, vector)
    vector, woven = pair or (vector, None)
    lanes = choose_lanes(nest, vector, target) if vector else 1
    safe = [a for a in nest.x if conflict_free(nest, a)]
    units = [a for a in safe if a is not vector and a is not woven]
    serial = [a for a in nest.x if a not in safe and a is not vector]
    last = max(
        (
            nest.passes[i] - (1 if isinstance(i, Reduce) else 0)
            for i in nest.body
            if isinstance(i, Reduce) or (isinstance(i, Store) and is_point(nest, i))
        ),
        default=0,
    )
    vector_safe = vector is not None and not in_r and vector in safe
    tile = find_tile(nest, vector, units) if vector_safe and vector and not serial and not woven else None
    if tile is not None:
        lanes = TILE
        units[units.index(tile.axis)] = tile.block
    owned = find_owned(nest, serial, vector) if vector and not in_r and not units and tile is None else None
    chunk = _chunk(units, vector, lanes) if vector_safe and vector and not owned else 0
    streamed = 0
    if vector_safe and vector and _streams(nest, vector, lanes):
        columns = estimate(vector.size)
        streamed = -(-columns // lanes) * lanes
        if columns > COLUMNS:
            streamed = chunk = COLUMNS
        elif chunk and units:
            streamed = min(streamed, chunk)
    if vector_safe and vector and not nest.r and not chunk and tile is None and woven is None:
        units, short = split_short(units, vector)
        serial = short + serial
    parallel = target.openmp and (bool(units) or chunk > 0 or owned is not None) and _worth_threads(nest)
    masked = target.vector_bits == 512
    plan = Plan(nest, units, serial, vector, in_r, lanes, chunk, last, parallel, masked, tile)
    plan.streamed, plan.woven, plan.owned = streamed, woven, owned
    plan.scattered = vector is not None and any(
        lane_step(nest, i, vector.index) not in (-1, 0, 1) for i in nest.offsets
    )
    if vector is not None and not in_r and not nest.r and tile is None:
        plan.cuts = find_cuts(nest.body, vector)
    plan.stash = choose_stash(plan)
    return plan


UNIT = 128  # elements, below which finding a unit's place costs about as much as its work
ENOUGH_UNITS = 512


def split_short(units: list[Axis], vector: Axis) -> tuple[list[Axis], list[Axis]]:
    """(unit axes, last ones that are loops inside of a unit instead): a short row alone is less work than the divisions
    that find its place."""
    units = list(units)
    inner: list[Axis] = []
    each = estimate(vector.size)
    while len(units) > 1 and each < UNIT:
        size = units[-1].size
        if not isinstance(size, int) or estimate(product([a.size for a in units[:-1]])) < ENOUGH_UNITS:
            break
        each *= size
        inner.insert(0, units.pop())
    return units, inner


COLUMNS = 4096  # whose running results fit the first-level cache


def _streams(nest: Nest, vector: Axis, lanes: int) -> bool:
    """A reduction over rows, with lanes along the columns, that is better read row by row: many long rows."""
    if not nest.r or not isinstance(vector.size, int) or not any(isinstance(i, Reduce) for i in nest.body):
        return False
    rows = estimate(product([a.size for a in nest.r]))
    return rows >= 128 and vector.size >= 2 * lanes and COLUMNS % lanes == 0


TILE = 16  # elements each way: a cache line of floats


def find_tile(nest: Nest, vector: Axis, units: list[Axis]) -> Tile | None:
    """A pointwise kernel that reads an operand across the lanes: the unit axis along which it is contiguous."""
    best: Axis | None = None
    loads = [i for i in nest.offsets if isinstance(i, Load) and _scattered(nest, i, vector)]
    for i in loads if not nest.r else ():
        for a in units:
            if lane_step(nest, i, a.index) == 1 and (best is None or estimate(a.size) > estimate(best.size)):
                best = a
    if best is None or min(estimate(best.size), estimate(vector.size)) < TILE:
        return None
    span = _span(nest, vector, best, units)
    size = -(-best.size // span)
    block = symbol(f"{best.index.name}_block", 0, max(bounds(size)[1] - 1, 0))
    found = symbol_of(block)
    assert found is not None
    tiled = [i for i in loads if lane_step(nest, i, best.index) == 1]
    work = [i for i in nest.body if isinstance(i, Compute)]
    unroll = len(work) <= 8 and not any(i.fn in HEAVY for i in work)
    return Tile(best, Axis(found, size), tiled, span, unroll, span == TILE)


def _span(nest: Nest, vector: Axis, axis: Axis, units: list[Axis]) -> int:
    """Elements of the tile's axis in a unit: several blocks where the vector axis is short, and enough units left."""
    span, others = TILE, estimate(product([a.size for a in units if a is not axis]))
    if estimate(vector.size) <= 8 * TILE:
        while span < 16 * TILE and others * (estimate(axis.size) // (2 * span)) >= 16:
            span *= 2
    return span


def _scattered(nest: Nest, i: Load, vector: Axis) -> bool:
    step = lane_step(nest, i, vector.index)
    apart = step not in (-1, 0, 1) if isinstance(step, int) else step is not None and bounds(step)[0] > 1
    return apart and i.mask is None and not i.indirect


def _worth_threads(nest: Nest) -> bool:
    return any(not isinstance(a.size, int) for a in nest.x + nest.r) or cost_ns(nest) > GRAIN_NS


def _chunk(units: list[Axis], vector: Axis, lanes: int) -> int:
    """Elements of the vector axis in one unit of parallel work: a multiple of ``lanes``; 0 for the whole axis."""
    if not units:
        return lanes
    size, others = estimate(vector.size), max(estimate(product([a.size for a in units])), 1)
    pieces = max(1, 64 // others)
    if pieces == 1 or size <= 4 * lanes:
        return 0
    each = -(-size // pieces)
    return max(-(-each // lanes) * lanes, 4 * lanes)


def needed_in_pass(plan: Plan, number: int) -> list[Instr]:
    """Point-level instructions that pass ``number`` runs, in body order: what its reductions and, in the last pass, the
    stores read. Of a value that an earlier pass has kept, nothing but the value."""
    nest = plan.nest
    need: set[object] = set()
    for i in reversed(nest.body):
        root = (isinstance(i, Reduce) and nest.passes[i] - 1 == number) or (
            isinstance(i, Store) and number == plan.last_pass and is_point(nest, i)
        )
        if root or (i in need and not isinstance(i, Reduce) and is_point(nest, i)):
            need.add(i)
            if plan.stash.get(i, number) >= number:
                need.update(operands(i))
    return [
        i
        for i in nest.body
        if i in need and (is_point(nest, i) or (isinstance(i, Reduce) and nest.passes[i] - 1 == number))
    ]


STASH_BYTES = 1 << 17  # of stack for kept values
STASH_ROW = 4096  # elements of a row of symbolic size that are kept; longer rows are computed again
STASH_COST = 4.0  # what storing and reloading costs, in simple operations


def choose_stash(plan: Plan) -> dict[Item, int]:
    """Values worth keeping for a later pass instead of computing them again (exp in softmax, random numbers)."""
    if plan.last_pass == 0 or not plan.in_r or plan.vector is None:
        return {}
    nest = plan.nest
    kept: dict[Item, int] = {}
    points = product([a.size for a in nest.r])
    if not isinstance(points, int):
        if len(nest.r) > 1:
            return {}
        points = plan.row_limit = STASH_ROW
    first: dict[Item, int] = {}
    for number in range(plan.last_pass + 1):
        need = needed_in_pass(plan, number)
        for i in need:
            for v in operands(i):
                home = first.get(v)
                if home is not None and home < number and first.get(i, number) == number and v not in kept:
                    if plan.vector.index in nest.deps[v] and _cost(nest, v) > STASH_COST:
                        kept[v] = home
        for i in need:
            first.setdefault(i, number)
    room = STASH_BYTES // (8 * (points + 64 * product_of_outer(plan)))
    if not kept or not room:
        plan.row_limit = 0
    best = sorted(kept, key=lambda v: -_cost(nest, v))[:room]
    return {v: kept[v] for v in best}


def product_of_outer(plan: Plan) -> int:
    """Points of the r axes other than the vector axis."""
    out = product([a.size for a in plan.nest.r if a is not plan.vector])
    assert isinstance(out, int)
    return out


def _cost(nest: Nest, v: Item) -> float:
    """What computing a point-level value again costs, in simple operations."""
    seen: set[object] = set()
    total = 0.0
    todo: list[Item] = [v]
    while todo:
        i = todo.pop()
        if i in seen or not is_point(nest, i):
            continue
        seen.add(i)
        if isinstance(i, Compute):
            total += 40.0 if i.fn == "philox" else 12.0 if i.fn in HEAVY else 1.0
        elif isinstance(i, Load):
            total += 1.0
        todo += operands(i)  # type: ignore[arg-type]
    return total


def row_instrs(plan: Plan) -> Iterator[Instr]:
    """Instructions that depend on no r axis, reductions apart, in body order."""
    for i in plan.nest.body:
        if not isinstance(i, Reduce) and not is_point(plan.nest, i):
            yield i


def arguments(kernel: Kernel) -> tuple[list[Buffer], list[Symbol]]:
    """The calling convention: tensors (buffers read, then those only written, each in order of first use), then
    symbolic sizes by name."""
    buffers = list(dict.fromkeys(kernel.reads + kernel.writes))
    return buffers, sorted(_size_symbols(kernel, buffers), key=lambda s: s.name)


def program_arguments(form: Canonical) -> tuple[list[Buffer], list[Symbol]]:
    """The same for a kernel of a program, with the program's buffers."""
    first_use = dict.fromkeys(i.buffer for i in form.kernel.body if isinstance(i, (Load, Store)))
    own = dict(zip(first_use, form.buffers))
    buffers, sizes = arguments(form.kernel)
    return [own[b] for b in buffers], sizes


def _size_symbols(kernel: Kernel, buffers: Iterable[Buffer]) -> set[Symbol]:
    axes = {a.index for a in kernel.x + kernel.r}
    found: set[Symbol] = symbols(*[a.size for a in kernel.x + kernel.r])
    for b in buffers:
        found |= symbols(*b.type.sizes, *b.type.strides)
    bound: set[Symbol] = set(axes)
    for i in kernel.body:
        if isinstance(i, (Load, Store)):
            found |= symbols(*i.index)
            bound |= {s for s, _ in i.indirect}
        elif isinstance(i, Index):
            found |= symbols(i.expr)
        elif isinstance(i, Compute):
            found |= {s for _, e in i.attrs if isinstance(e, Expr) for s in symbols(e)}
    return found - bound

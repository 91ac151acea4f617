"""Stores that go past the caches: a kernel that touches more memory than the last cache holds does not read the lines
that it is about to overwrite (a third less traffic where it reads two arrays and writes one).

The rest is only known when it runs, so that ``@work`` looks at the tensors' addresses and calls one of two functions:
such a store must be aligned; a result that takes over an operand's memory finds its lines in the caches; so does one in
memory that the system has yet to map, since it zeroes each page just before the first store.  The order of these stores
is weak on x86; a fence ends the work.
"""

from __future__ import annotations

from braze.inductor.loops.ir import Buffer, Load, Store
from braze.ir import terms_of
from braze.runtime.cpu import Target, has_symbol

from .llvm_builder import Builder, V
from .llvm_plan import LINE, Plan, arguments, lane_step

SHARE = 1.0  # of the last cache: what a kernel that touches less writes is read from there by the next one
LEAST = 0.125  # of the last cache: smaller results stay there
PAGE = 4096


def stored_past_caches(plan: Plan, target: Target) -> frozenset[Buffer]:
    """The buffers whose whole vectors are better stored past the caches."""
    if plan.vector is None or plan.cuts or plan.woven or plan.streamed or not target.triple.startswith("x86"):
        return frozenset()
    if not has_symbol("mincore") or not target.last_cache or _bytes_touched(plan) < SHARE * target.last_cache:
        return frozenset()
    stores = [i for i in plan.nest.body if isinstance(i, Store)]
    unfit = {i.buffer for i in stores if not _whole_lines(plan, i)}
    read = {i.buffer for i in plan.nest.body if isinstance(i, Load)}  # its lines are in the caches already
    large = {i.buffer for i in stores if _size(i.buffer) >= LEAST * target.last_cache}
    return frozenset(large - unfit - read)


def suited(b: Builder, plan: Plan) -> V:
    """Whether all these buffers begin a line, in memory that no operand has."""
    found = b.const("i1", True)
    at = {buffer: b.let("i64", 1, f"ptrtoint {p.typed} to i64") for buffer, p in _pointers(plan).items()}
    for buffer in _past(plan):
        begin = b.binary("and", at[buffer], b.const("i64", LINE - 1))
        found = b.binary("and", found, b.compare("eq", begin, b.const("i64", 0)))
        for other in plan.nest.kernel.reads:
            found = b.binary("and", found, b.compare("ne", at[buffer], at[other]))
    return found


def resident(b: Builder, plan: Plan) -> V:
    """Whether the last page of each of these buffers is mapped."""
    b.declare("mincore", "i32", ["ptr", "i64", "ptr"])
    found, pointers = b.const("i1", True), _pointers(plan)
    for buffer in _past(plan):
        last = b.let("ptr", 1, f"getelementptr i8, {pointers[buffer].typed}, i64 {_size(buffer) - 1}")
        page = b.binary("and", b.let("i64", 1, f"ptrtoint {last.typed} to i64"), b.const("i64", -PAGE))
        page = b.let("ptr", 1, f"inttoptr {page.typed} to ptr")
        b.emit("store i8 1, ptr %answer")
        b.emit(f"call i32 @mincore({page.typed}, i64 {PAGE}, ptr %answer)")
        answer = b.binary("and", b.let("i8", 1, "load i8, ptr %answer"), b.const("i8", 1))
        found = b.binary("and", found, b.compare("ne", answer, b.const("i8", 0)))
    return found


def _pointers(plan: Plan) -> dict[Buffer, V]:
    return {buffer: V(f"%p{k}", "ptr") for k, buffer in enumerate(arguments(plan.nest.kernel)[0])}


def _past(plan: Plan) -> list[Buffer]:
    return [buffer for buffer in _pointers(plan) if buffer in plan.past]


def _bytes_touched(plan: Plan) -> int:
    return sum(map(_size, {i.buffer for i in plan.nest.offsets}))


def _size(b: Buffer) -> int:
    n = b.type.numel
    return n * b.type.dtype.itemsize if isinstance(n, int) else 0


def _whole_lines(plan: Plan, i: Store) -> bool:
    """Every full vector of the store begins where a cache line does, if the buffer does."""
    size = i.buffer.type.dtype.itemsize
    if plan.vector is None or i.mode != "set" or i.indirect or i.mask is not None:
        return False
    lane = plan.vector.index
    steps = [plan.lanes, plan.chunk]
    steps += [c for c, factors in terms_of(plan.nest.offsets[i]) if factors != (lane,)]
    return lane_step(plan.nest, i, lane) == 1 and all(n * size % LINE == 0 for n in steps)

"""Stores that go past the caches: a kernel that touches more memory than the last cache holds does not read the lines
that it is about to overwrite (a third less traffic where it reads two arrays and writes one).

A store of whole lines with the hint for it must be aligned, which only the tensors' addresses can say: ``@work`` looks
at them and calls one of two functions.  The order of such stores is weak on x86; a fence ends the work.
"""

from __future__ import annotations

from braze.inductor.loops.ir import Buffer, Load, Store
from braze.ir import terms_of
from braze.runtime.cpu import Target

from .llvm_plan import LINE, Plan, lane_step

SHARE = 0.75  # of the last cache: a kernel that touches less may leave its results there for the next one
LEAST = 0.125  # of the last cache: smaller results stay there
FRESH = 32 << 20
"""Bytes from which glibc maps memory anew for each allocation: the system has just zeroed it, in the caches."""


def stored_past_caches(plan: Plan, target: Target) -> frozenset[Buffer]:
    """The buffers whose whole vectors are better stored past the caches."""
    if plan.vector is None or plan.cuts or plan.woven or plan.streamed or not target.triple.startswith("x86"):
        return frozenset()
    if not target.last_cache or _bytes_touched(plan) < SHARE * target.last_cache:
        return frozenset()
    stores = [i for i in plan.nest.body if isinstance(i, Store)]
    unfit = {i.buffer for i in stores if not _whole_lines(plan, i)}
    read = {i.buffer for i in plan.nest.body if isinstance(i, Load)}  # its lines are in the caches already
    large = {i.buffer for i in stores if LEAST * target.last_cache <= _size(i.buffer) <= FRESH}
    return frozenset(large - unfit - read)


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

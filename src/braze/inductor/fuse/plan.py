"""Memory: which buffer takes over the memory of a dead one.

Walks the steps once.  A buffer that a kernel writes takes, in this order: an operand that dies in this very kernel, if
every point reads it only where it writes the result (in place); else the most recently freed buffer of the same size.
Inputs, constants and outputs are never given away, but for inputs that get a new value (``overwrite``).  Vendor calls
allocate their own results, which may be taken over later.  Kernels of one group run at the same time: what dies in one
of them is free only after all, and only a kernel that alone touches an operand may write over it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from braze.inductor.loops import Buffer, Kernel, Load, Program, Store
from braze.inductor.loops.build import dense
from braze.inductor.loops.interpret import buffers_in
from braze.inductor.loops.ref import offset_of
from braze.ir import IntLike, symbols

from .group import members
from .overlap import is_wait
from .overwrite import returned, written_inputs
from .schedule import reads_of, writes_of

Size = tuple[IntLike, torch.device]


def plan(program: Program) -> Program:
    """The program with ``reuse`` filled in."""
    last: dict[Buffer, int] = {}
    for k, step in enumerate(program.steps):
        for b in [*reads_of(step), *writes_of(step)]:
            last[b] = k
    keep = set(buffers_in(program.outputs)) | {b for b in program.inputs if isinstance(b, Buffer)}
    keep |= set(program.constants)
    keep |= {b for s in program.steps if is_wait(s) for b in reads_of(s)[:1]}  # it lives on as the wait's result
    taken = written_inputs(program, _in_place)
    group = members(program)
    shared = _shared(program)
    dies: dict[int, list[Buffer]] = {}
    ends: dict[int, list[Buffer]] = {}
    for b, k in last.items():
        if b not in keep and dense(b.type):
            dies.setdefault(k, []).append(b)
            ends.setdefault(group[k][1] - 1 if k in group else k, []).append(b)
    reuse: dict[Buffer, Buffer] = dict(taken)
    free: dict[Size, list[Buffer]] = {}
    made: set[Buffer] = set()
    given: set[Buffer] = set()
    for k, step in enumerate(program.steps):
        if isinstance(step, Kernel):
            for b in step.writes:
                if b in made or b in taken or not dense(b.type):
                    continue
                old = _in_place(step, b, [d for d in dies.get(k, ()) if d not in given and d not in shared])
                if old is None:
                    pool = free.get(_size(b))
                    old = pool.pop() if pool else None
                else:
                    given.add(old)
                if old is not None:
                    reuse[b] = old
        made.update(writes_of(step))
        for b in ends.get(k, ()):
            if b not in given:
                free.setdefault(_size(b), []).append(b)
    return replace(program, reuse=reuse, outputs=returned(program, taken))


def _shared(program: Program) -> set[Buffer]:
    """The buffers that several kernels of a group touch."""
    out: set[Buffer] = set()
    for first, end in program.groups:
        seen = Counter(b for k in program.steps[first:end] for b in {*reads_of(k), *writes_of(k)})
        out.update(b for b, n in seen.items() if n > 1)
    return out


def _size(b: Buffer) -> Size:
    return b.type.numel * b.type.dtype.itemsize, b.type.device


def _in_place(kernel: Kernel, out: Buffer, dying: list[Buffer]) -> Buffer | None:
    """An operand that dies here and that each point reads only at the element which it then writes."""
    if not dying:
        return None
    stores = [k for k, i in enumerate(kernel.body) if isinstance(i, Store) and i.buffer is out]
    if len(stores) != 1:
        return None
    store = kernel.body[stores[0]]
    assert isinstance(store, Store)
    if store.indirect or store.mask is not None:
        return None
    used = symbols(*store.index)  # one point (of a reduction: one row) for each element
    if any(a.index in used for a in kernel.r) or any(a.index not in used for a in kernel.x):
        return None
    place = offset_of(out.type.with_(offset=0), store.index)
    for old in dying:
        same = old.type.dtype.itemsize == out.type.dtype.itemsize and _size(old) == _size(out)
        if same and all(_safe(i, k, old, place, stores[0]) for k, i in enumerate(kernel.body)):
            return old
    return None


def _safe(i: object, at: int, old: Buffer, place: IntLike, store_at: int) -> bool:
    if isinstance(i, Store):
        return i.buffer is not old
    if not isinstance(i, Load) or i.buffer is not old:
        return True
    direct = not i.indirect and i.mask is None and at < store_at
    return direct and offset_of(old.type.with_(offset=0), i.index) == place

"""Many small updates of one form become one launch: an optimizer's step over all parameters is a few kernels.

    k0(p0, g0, m0); k1(p1, g1, m1); k2(p2, g2, m2)      ->      k(p0, g0, m0, p1, g1, m1, p2, g2, m2, n0, n1, n2)

The steps of the program stay as they are; members of a group are moved next to each other, and ``Program.groups`` names
their range.  Running a group's members one after another is still the meaning, so that only the code generator needs to
know: one parallel region walks all members, in machine code made once for all of their sizes. On a GPU one grid does.

On a CPU, a kernel may be a member if it is elementwise over dense memory (its canonical form has one axis at most, and
every access walks it or stays in place) and makes nothing but new values of inputs, or a few bytes: moving it up keeps
no large result longer.  On a GPU, any kernel that makes new values of inputs may be one (``alike`` says what is its
like).  Members of a group do not touch what another of them writes, and a member moves only over kernels
of which the same is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from braze.inductor.loops import Buffer, Compute, Const, Kernel, Load, Program, Step, Store, canonical
from braze.ir import symbol_of

from .alike import likeness
from .ops import nbytes
from .overwrite import candidates
from .schedule import reads_of, writes_of

LEAST, MOST = 3, 512  # members of a group
SMALL = 1 << 12  # bytes of a result that may be made early
SPECIAL = frozenset(("philox", "check_index"))

_FAMILIES: dict[str, tuple[Any, int] | None] = {}


def family(kernel: Kernel) -> tuple[Any, int] | None:
    """What a kernel shares with its like of other sizes, and its number of points; None for one that cannot be a member
    of a group. Families agree exactly when the canonical kernels differ in the size of their axis alone; on a GPU, in
    what ``likeness`` leaves open."""
    if kernel.device.type == "cuda":
        alike = likeness(kernel)
        return None if alike is None else (alike.key, alike.points)
    form = canonical(kernel)
    if form.key not in _FAMILIES:
        _FAMILIES[form.key] = _family(form.kernel)
    return _FAMILIES[form.key]


def _family(k: Kernel) -> tuple[Any, int] | None:
    if k.device.type != "cpu" or k.r or len(k.x) > 1 or (k.x and not isinstance(k.x[0].size, int)):
        return None
    axis = k.x[0].index if k.x else None
    values: dict[Any, int] = {}
    buffers: dict[Buffer, int] = {}
    seen: dict[Buffer, bool] = {}
    rows: list[Any] = []
    for i in k.body:
        if isinstance(i, (Load, Store)):
            walks = axis is not None and symbol_of(i.index[0]) is axis
            plain = not i.indirect and i.mask is None and (walks or i.index[0] == 0)
            if not plain or (isinstance(i, Store) and (i.mode != "set" or walks != bool(k.x))):
                return None
            if seen.setdefault(i.buffer, walks) != walks:
                return None
            at = (buffers.setdefault(i.buffer, len(buffers)), walks, i.buffer.type.dtype)
            rows.append(("load", *at) if isinstance(i, Load) else ("store", *at, values[i.value]))
        elif isinstance(i, Compute) and i.fn not in SPECIAL:
            rows.append((i.fn, tuple([values[a] for a in i.args]), i.dtype, i.attrs))
        elif isinstance(i, Const):
            rows.append(("const", type(i.value).__name__, repr(i.value), i.dtype))
        else:
            return None
        values[i] = len(values)
    size = k.x[0].size if k.x else 1
    return ((bool(k.x), tuple(rows)), size) if isinstance(size, int) else None


@dataclass
class _Slot:
    """A step, or the members of a group in the making, with the memory that they read and write."""

    steps: list[Step]
    key: Any
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)

    def touches(self, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> bool:
        """True when the order of this slot and a step that reads and writes these buffers matters."""
        return any(b in self.writes or b in self.reads for b in writes) or any(b in self.writes for b in reads)

    def add(self, step: Step, reads: set[Buffer], writes: set[Buffer]) -> None:
        self.steps.append(step)
        self.reads |= reads
        self.writes |= writes


def group(program: Program) -> Program:
    """The program with members of groups side by side and ``groups`` filled in."""
    memory = {new: old for new, (old, _) in candidates(program).items()}
    slots: list[_Slot] = []
    start = 0  # of the run of kernels that the step belongs to
    for step in program.steps:
        reads = {memory.get(b, b) for b in reads_of(step)}
        writes = {memory.get(b, b) for b in writes_of(step)}
        key = _key(step, memory)
        home = None if key is None else _home(slots[start:], key, reads, writes)
        if home is None:
            slots.append(home := _Slot([], key))
        home.add(step, reads, writes)
        if not isinstance(step, Kernel):
            start = len(slots)
    if all(len(s.steps) < LEAST for s in slots):
        return program
    steps: list[Step] = []
    groups: list[tuple[int, int]] = []
    for s in slots:
        if len(s.steps) >= LEAST:
            groups.append((len(steps), len(steps) + len(s.steps)))
        steps += s.steps
    return replace(program, steps=steps, groups=tuple(groups))


def _key(step: Step, memory: dict[Buffer, Buffer]) -> Any:
    if not isinstance(step, Kernel) or any(b not in memory and nbytes(b) > SMALL for b in step.writes):
        return None
    if step.device.type == "cuda" and not any(b in memory for b in step.writes):
        return None
    found = family(step)
    return None if found is None else found[0]


def _home(slots: list[_Slot], key: Any, reads: set[Buffer], writes: set[Buffer]) -> _Slot | None:
    """The last group of this key that a step may move up to."""
    for s in reversed(slots):
        if s.touches(reads, writes):
            return None
        if s.key == key and len(s.steps) < MOST:
            return s
    return None


def members(program: Program) -> dict[int, tuple[int, int]]:
    """The range of its group, for each step in one."""
    return {k: (first, end) for first, end in program.groups for k in range(first, end)}

"""One launch for many kernels of one form on a GPU (``Program.groups``): an optimizer's step over all parameters.

The members' function is the form's (``fuse.alike``); a driver finds the member of each program and loads its pointers
from a table in the card's memory::

    @triton.jit
    def group_x3(table, shared0, XBLOCK: tl.constexpr):
        program = tl.program_id(0)
        first, start, count, size = 0, 0, 16, 32768       # two members of 32768 points, then one of 768
        later = program >= 32
        first, start, count, size = tl.where(later, 2, first), ...
        member = first + (program - start) // count
        row = table + member * 3
        ...
        part((program - start) % count, ptr(row), ptr(row + 1), ptr(row + 2), shared0, size, XBLOCK)

Small kernels before it (``pointers``) write the table from their arguments: addresses are those of this very call,
and a CUDA graph holds them like any other argument.  Groups that follow each other share a table.  Where a member's
tensors do not begin at multiples of 16 bytes, its programs take a branch that assumes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from braze.inductor.fuse.alike import DIVISOR, Likeness, likeness
from braze.inductor.loops import Buffer, Kernel, Load, Store, canonical
from braze.ir import symbols
from braze.runtime.cuda_group import TritonGroup
from braze.runtime.cuda_kernel import GridDim, Launch, TritonKernel

from .triton_emit import HEADER, Emitted, emit_part
from .triton_ops import POINTERS, TYPES

CHUNK = 400  # pointers that one launch writes into the table


@dataclass(frozen=True)
class Slot:
    """Where a pointer comes from: a buffer of the program, and the bytes up to the element meant."""

    buffer: Buffer
    offset: int


@dataclass(frozen=True, eq=False)
class Member:
    """One kernel of a group: what each buffer of the form is, and the number of points (0: the form's own)."""

    slots: tuple[Slot, ...]
    points: int


@dataclass(frozen=True, eq=False)
class Group:
    """The launches for a run of groups, and the tensors that a call passes, in order."""

    key: str
    code: TritonGroup
    buffers: tuple[Buffer, ...]


def emit_groups(groups: Sequence[Sequence[Kernel]], memory: Mapping[Buffer, Buffer]) -> Group:
    """Adjacent groups as one call. ``memory``: the buffers that lie where another one does (``Program.reuse``)."""
    table: list[Slot] = []
    mains = [_main(kernels, memory, table) for kernels in groups]
    buffers = list(dict.fromkeys([s.buffer for s in table] + [b for _, own in mains for b in own]))
    place = {b: k for k, b in enumerate(buffers)}
    fillers = _fillers(table, place)
    code = TritonGroup(
        len(table), fillers, tuple(m for m, _ in mains), tuple(tuple(place[b] for b in own) for _, own in mains)
    )
    return Group(hashlib.sha256(repr(code).encode()).hexdigest()[:32], code, tuple(buffers))


def _main(
    kernels: Sequence[Kernel], memory: Mapping[Buffer, Buffer], table: list[Slot]
) -> tuple[TritonKernel, list[Buffer]]:
    """One group's kernel, and the tensors that it takes itself. Its rows are added to the table."""
    likes = sorted(((_likeness(k), k) for k in kernels), key=lambda found: -found[0].points)
    members = [Member(_slots(like, [memory.get(b, b) for b in canonical(k).buffers]), like.points) for like, k in likes]
    form = likes[0][0].kernel
    for s in symbols(*(a.size for a in form.x)):  # as if all members' points were one's
        s.hint = max(sum(m.points for m in members) // (DIVISOR if s.name == "sixteenths" else 1), 1)
    part = emit_part(form)
    order = list(dict.fromkeys(i.buffer for i in form.body if isinstance(i, (Load, Store))))
    columns = {k: tuple(m.slots[k] for m in members) for k in range(len(order))}
    first = {column: k for k, column in reversed(columns.items())}  # a new value lies where the old one does
    which = [order.index(b) for b in part.buffers]  # the function's arguments as numbers of slots
    shared = [k for k in which if len(set(columns[k])) == 1 and members[0].slots[k].offset == 0]
    own = list(dict.fromkeys(first[columns[k]] for k in which if k not in shared))
    same = {k: first[column] for k, column in columns.items()}
    source = _Driver(part, members, which, shared, own, same, len(table)).write(_scalars(form, order))
    table += [m.slots[k] for m in members for k in own]
    return source, [members[0].slots[k].buffer for k in shared]


def _likeness(k: Kernel) -> Likeness:
    found = likeness(k)
    assert found is not None, f"{k.name} is no member of a group"
    return found


def _slots(like: Likeness, buffers: Sequence[Buffer]) -> tuple[Slot, ...]:
    return tuple(Slot(buffers[k], at * buffers[k].type.dtype.itemsize) for k, at in like.places)


def _scalars(form: Kernel, order: Sequence[Buffer]) -> set[int]:
    """The buffers of one element, whose address may be any."""
    return {k for k, b in enumerate(order) if b.type.numel == 1}


@dataclass
class _Driver:
    """The text of one group's launch."""

    part: Emitted
    members: list[Member]
    which: list[int]  # slots in the order of the part's arguments
    shared: list[int]  # of them, those that are arguments of the launch
    own: list[int]  # and those that the table holds, each address once
    same: dict[int, int]  # for each slot the first one of the same address in every member
    base: int  # of the group's rows in the table

    def write(self, scalars: set[int]) -> TritonKernel:
        code, members = self.part.code, self.members
        name = f"{code.name}_x{len(members)}"
        sizes = {m.points: self._programs(m) for m in members}
        types = dict(zip(self.which, [t for _, t in code.signature]))
        blocks = [n for n, _ in code.launch.blocks]
        shared = [f"shared{n}" for n in range(len(self.shared))]
        signature = [("table", "*i64"), *zip(shared, [types[k] for k in self.shared])]
        params = ", ".join([*(n for n, _ in signature), *(f"{b}: tl.constexpr" for b in blocks)])
        lines = [f"def {name}({params}):", f'    """{len(members)} times {code.name}, by a table of pointers."""']
        lines += ["    " + text for text in [*self._find(sizes), *self._rows()]]
        rest = (["size"] if self.part.sizes else []) + blocks

        def call(aligned: bool) -> str:
            args = [
                shared[self.shared.index(k)] if k in self.shared else self._pointer(k, types[k], aligned, scalars)
                for k in self.which
            ]
            return f"{code.name}({', '.join(['place', *args, *rest])})"

        wide = [f"p{n}" for n, k in enumerate(self.own) if k not in scalars]
        if wide:
            lines += [f"    if (({' | '.join(wide)}) & 15) == 0:", "        " + call(True), "    else:"]
            lines.append("        " + call(False))
        else:
            lines.append("    " + call(False))
        source = code.source + "\n\n@triton.jit\n" + "\n".join(lines) + "\n"
        grid = (GridDim(sum(sizes[m.points] for m in members), ""),)
        return replace(
            code, name=name, source=source, signature=tuple(signature), grid=grid, candidates=(), divisible=()
        )

    def _programs(self, m: Member) -> int:
        integers = [n for n, t in self.part.code.signature if not t.startswith("*")]  # at most the number of points
        return self.part.code.programs(dict.fromkeys(integers, m.points))

    def _find(self, sizes: dict[int, int]) -> list[str]:
        """Lines that set ``member``, ``place`` (the program's number in it) and ``size``."""
        out = ["program = tl.program_id(0)"]
        runs: list[tuple[int, int, int, int]] = []  # first member, first program, programs a member, points
        start = 0
        for n, m in enumerate(self.members):
            if not runs or runs[-1][3] != m.points:
                runs.append((n, start, sizes[m.points], m.points))
            start += sizes[m.points]
        names = ("first", "start", "count", "size")
        out += [f"{name} = {value}" for name, value in zip(names, runs[0])]
        for k, run in enumerate(runs[1:]):
            out.append(f"later{k} = program >= {run[1]}")
            out += [f"{name} = tl.where(later{k}, {value}, {name})" for name, value in zip(names, run)]
        if len(runs) > 1 and all(run[3] % 16 == 0 for run in runs):
            out.append("size = tl.multiple_of(size, 16)")
        out += ["number = (program - start) // count", "place = (program - start) - number * count"]
        return out

    def _rows(self) -> list[str]:
        base = f" + {self.base}" if self.base else ""
        row = f"row = table{base} + (first + number) * {len(self.own)}"
        return [row, *(f"p{n} = tl.load(row + {n})" for n in range(len(self.own)))]

    def _pointer(self, slot: int, kind: str, aligned: bool, scalars: set[int]) -> str:
        text = f"p{self.own.index(self.same[slot])}.to(tl.pointer_type({_element(kind)}))"
        return f"tl.multiple_of({text}, 16)" if aligned and slot not in scalars else text


def _element(pointer: str) -> str:
    """``*fp32`` as ``tl.float32``."""
    return TYPES[next(t for t, p in POINTERS.items() if p == pointer)]


def _fillers(table: Sequence[Slot], place: dict[Buffer, int]) -> tuple[tuple[TritonKernel, tuple[int, ...]], ...]:
    """Kernels that write the table, each with the arguments that it takes after the table."""
    out = []
    at = 0
    while at < len(table):
        given: dict[Buffer, str] = {}
        lines = []
        while at < len(table) and (table[at].buffer in given or len(given) < CHUNK):
            name = given.setdefault(table[at].buffer, f"p{len(given)}")
            offset = f" + {table[at].offset}" if table[at].offset else ""
            lines.append(f"    tl.store(table + {at}, {name}.to(tl.int64){offset})")
            at += 1
        names = list(given.values())
        head = f"\n\n@triton.jit\ndef pointers({', '.join(['table', *names])}):\n"
        signature = (("table", "*i64"), *((n, "*i8") for n in names))
        one, warp = (GridDim(1, ""),), Launch((), num_warps=1)
        code = TritonKernel("pointers", HEADER + head + "\n".join(lines) + "\n", signature, one, warp, aligned=False)
        out.append((code, tuple(place[b] for b in given)))
    return tuple(out)

"""Symbolic bytecode of CPython 3.11 to 3.13: instructions with names, constants and labels in place of numbers.

``instructions_of(code)`` reads a code object into a :class:`Bytecode`; ``assemble.assemble`` turns one back.  What the
interpreter versions spell differently is made equal where that loses nothing:

- ``EXTENDED_ARG`` and ``CACHE`` are gone, superinstructions (3.13) are split.
- Jumps have no direction: ``JUMP``, ``JUMP_NO_INTERRUPT``, ``POP_JUMP_IF_TRUE/FALSE/NONE/NOT_NONE``; the real opcode
  is the assembler's choice.
- ``arg`` is the operand itself: a constant, a name, a variable's name, a :class:`Label`, else an int.  The low bits
  packed beside a name are in ``flags`` (``LOAD_GLOBAL``: 1 pushes NULL; ``LOAD_ATTR`` from 3.12: 1 loads a method;
  ``LOAD_SUPER_ATTR``: 1 method, 2 two-argument super).
- A variable whose name two slots share (an inlined comprehension's and a free variable, 3.12+) is its slot number.
"""

from __future__ import annotations

import dis
import opcode
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

VERSION = sys.version_info[:2]
Position = tuple[int | None, int | None, int | None, int | None]  # line, end line, column, end column
NO_POSITION: Position = (None, None, None, None)

_entries: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]  # a list in 3.11 and 3.12, a dict in 3.13
CACHES: dict[str, int] = dict(_entries) if isinstance(_entries, dict) else dict(zip(dis.opname, _entries))

JUMPS = frozenset(dis.opname[i] for i in dis.hasjrel)
LOCALS = frozenset(dis.opname[i] for i in dis.haslocal)
CELLS = frozenset(dis.opname[i] for i in dis.hasfree) | {"LOAD_CLOSURE"}
NAMES = frozenset(dis.opname[i] for i in dis.hasname)
CONSTS = frozenset(dis.opname[i] for i in dis.hasconst)
FLAG_BITS: dict[str, int] = {"LOAD_GLOBAL": 1}
if VERSION >= (3, 12):
    FLAG_BITS |= {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}
SPLIT: dict[str, tuple[str, str]] = {  # superinstructions of 3.13: the high and the low four bits of the operand
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


def _canonical(op: str) -> str:
    """The direction-free name of a jump; other names as they are."""
    if op in ("JUMP_FORWARD", "JUMP_BACKWARD"):
        return "JUMP"
    if op == "JUMP_BACKWARD_NO_INTERRUPT":
        return "JUMP_NO_INTERRUPT"
    return op.replace("POP_JUMP_FORWARD_", "POP_JUMP_").replace("POP_JUMP_BACKWARD_", "POP_JUMP_")


CANONICAL: dict[str, str] = {op: _canonical(op) for op in JUMPS}


class Label:
    """A place between instructions. Identity is what counts; ``offset`` is where it was in the code read, else -1."""

    __slots__ = ("name", "offset")

    def __init__(self, name: str = "L", offset: int = -1) -> None:
        self.name, self.offset = name, offset

    def __repr__(self) -> str:
        return f"{self.name}{self.offset}" if self.offset >= 0 else self.name


@dataclass(slots=True, eq=False)
class Instr:
    """One instruction. ``offset`` is its byte offset in the code that it was read from (-1: made up)."""

    op: str
    arg: Any = None
    flags: int = 0
    pos: Position = NO_POSITION
    offset: int = -1

    @property
    def line(self) -> int | None:
        return self.pos[0]

    def __repr__(self) -> str:
        text = self.op if self.arg is None and self.op not in CONSTS else f"{self.op} {self.arg!r}"
        return text + (f" +{self.flags}" if self.flags else "")


@dataclass(slots=True)
class Region:
    """Instructions in [start, end) whose exceptions go to ``handler``, with the stack cut to ``depth`` entries.

    The handler finds those entries, the offset of the raising instruction if ``lasti``, and the exception.
    """

    start: Label
    end: Label
    handler: Label
    depth: int
    lasti: bool


@dataclass(slots=True)
class Bytecode:
    """A function's code as data: the instructions and labels in order, and what else a code object has."""

    items: list[Instr | Label] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    name: str = "f"
    qualname: str = "f"
    filename: str = "<braze>"
    firstlineno: int = 1
    flags: int = 0x03  # OPTIMIZED | NEWLOCALS
    argcount: int = 0
    posonlyargcount: int = 0
    kwonlyargcount: int = 0
    varnames: list[str] = field(default_factory=list)
    cellvars: list[str] = field(default_factory=list)
    freevars: list[str] = field(default_factory=list)
    consts: list[Any] = field(default_factory=list)  # constants with a fixed place (the docstring is consts[0])
    names: list[str] = field(default_factory=list)  # names with a fixed place

    @property
    def instructions(self) -> list[Instr]:
        return [i for i in self.items if isinstance(i, Instr)]

    def slots(self) -> list[str]:
        """The names of the frame's variable slots, in order: locals, cells that are no locals, free variables."""
        return [*self.varnames, *(c for c in self.cellvars if c not in self.varnames), *self.freevars]

    def text(self) -> str:
        """The instructions, one a line, with labels and regions."""
        lines = [f"{i!r}:" if isinstance(i, Label) else f"    {i!r}" for i in self.items]
        lines += [
            f"  region {r.start!r}..{r.end!r} -> {r.handler!r} depth {r.depth}{' lasti' if r.lasti else ''}"
            for r in self.regions
        ]
        return "\n".join(lines)


def exception_table(code: CodeType) -> Iterator[tuple[int, int, int, int, bool]]:
    """(start, end, handler: byte offsets; stack depth; lasti) of each entry of a code object's exception table."""
    data = iter(code.co_exceptiontable)

    def varint(first: int) -> int:
        value, byte = first & 63, first
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    for first in data:
        start = varint(first) * 2
        length, target, packed = varint(next(data)) * 2, varint(next(data)) * 2, varint(next(data))
        yield start, start + length, target, packed >> 1, bool(packed & 1)


def _raw(code: bytes) -> Iterator[tuple[int, int, str, int]]:
    """(offset of the first EXTENDED_ARG or the instruction, offset, opname, operand) of each instruction."""
    i, n, extended, start = 0, len(code), 0, -1
    while i < n:
        op, arg = dis.opname[code[i]], code[i + 1] | extended << 8
        if start < 0:
            start = i
        if op == "EXTENDED_ARG":
            extended = arg
        else:
            yield start, i, op, arg
            extended, start = 0, -1
            i += 2 * CACHES.get(op, 0)
        i += 2


_made: dict[int, tuple[CodeType, Bytecode]] = {}  # by id: hashing a code object walks all of it


def remember_bytecode(code: CodeType, b: Bytecode) -> None:
    """Let :func:`instructions_of` give the data that a code object was assembled from, instruction for instruction."""
    _made[id(code)] = code, b


def forget_bytecode() -> None:
    """Drop what was remembered."""
    _made.clear()


def _copied(b: Bytecode) -> Bytecode:
    return replace(
        b,
        items=[Instr(i.op, i.arg, i.flags, i.pos, i.offset) if isinstance(i, Instr) else i for i in b.items],
        regions=list(b.regions),
        varnames=list(b.varnames),
        cellvars=list(b.cellvars),
        freevars=list(b.freevars),
        consts=list(b.consts),
        names=list(b.names),
    )


def instructions_of(code: CodeType) -> Bytecode:
    """A code object as symbolic bytecode; ``assemble`` of it behaves like the original."""
    made = _made.get(id(code))
    if made is not None:
        return _copied(made[1])
    out = Bytecode(
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        flags=code.co_flags,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        varnames=list(code.co_varnames),
        cellvars=list(code.co_cellvars),
        freevars=list(code.co_freevars),
        consts=list(code.co_consts),
        names=list(code.co_names),
    )
    raw = list(_raw(code.co_code))
    labels: dict[int, Label] = {}

    def label(offset: int) -> Label:
        return labels.setdefault(offset, Label("L", offset))

    for start, end, target, depth, lasti in exception_table(code):
        out.regions.append(Region(label(start), label(end), label(target), depth, lasti))
    slots = out.slots()
    variables: list[str | int] = [i if slots.count(s) > 1 else s for i, s in enumerate(slots)]
    positions = list(code.co_positions())
    placed: list[tuple[int, list[Instr]]] = []
    for start, offset, op, arg in raw:
        pos = positions[offset // 2]
        placed.append((start, _decode(code, variables, offset, op, arg, pos, label)))
    for start, instrs in placed:
        if start in labels:
            out.items.append(labels.pop(start))
        out.items += instrs
    out.items += [labels[k] for k in sorted(labels)]  # the end of the code
    return out


def _decode(
    code: CodeType, variables: list[str | int], offset: int, op: str, arg: int, pos: Position, label: Any
) -> list[Instr]:
    if op in SPLIT:
        first, second = SPLIT[op]
        return [
            Instr(first, variables[arg >> 4], 0, pos, offset),
            Instr(second, variables[arg & 15], 0, pos, offset),
        ]
    value: Any = arg if dis.opmap[op] >= dis.HAVE_ARGUMENT else None
    flags = 0
    if op in JUMPS:
        after = offset + 2 + 2 * CACHES.get(op, 0)
        value = label(after - 2 * arg if "BACKWARD" in op else after + 2 * arg)
        op = CANONICAL[op]
    elif op in CONSTS:
        value = code.co_consts[arg]
    elif op in NAMES:
        bits = FLAG_BITS.get(op, 0)
        flags = arg & ((1 << bits) - 1)
        value = code.co_names[arg >> bits]
    elif op in LOCALS or op in CELLS:
        value = variables[arg]
    return [Instr(op, value, flags, pos, offset)]

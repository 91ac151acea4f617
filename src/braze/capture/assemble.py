"""The assembler: symbolic bytecode to a code object of the running CPython (3.11, 3.12 or 3.13).

Computes operands, inline caches, EXTENDED_ARG, jump directions, the stack size, the line table and the exception table.
``assemble(instructions_of(code))`` behaves like ``code``.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import Any

from .bytecode import (
    CACHES,
    CELLS,
    CONSTS,
    FLAG_BITS,
    LOCALS,
    NAMES,
    VERSION,
    Bytecode,
    Instr,
    Label,
    Position,
    instructions_of,
)

__all__ = ["assemble", "instructions_of", "stack_size"]

_INVERSE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}
_NO_FALL_THROUGH = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP", "JUMP_NO_INTERRUPT"}
_GENERATOR_FLAGS = 0x20 | 0x80 | 0x200  # GENERATOR | COROUTINE | ASYNC_GENERATOR


class _Table:
    """Numbers constants by identity (equal constants of different types stay apart) and names by value."""

    def __init__(self, values: Sequence[Any], by_identity: bool) -> None:
        self.values = list(values)
        self.key = id if by_identity else lambda v: v
        self.index = {self.key(v): i for i, v in reversed(list(enumerate(self.values)))}

    def number(self, value: Any) -> int:
        i = self.index.get(self.key(value))
        if i is None:
            i = self.index[self.key(value)] = len(self.values)
            self.values.append(value)
        return i


class _Op:
    """An instruction with its real opcode; ``arg`` is an int or, for a jump, a Label."""

    __slots__ = ("op", "arg", "pos", "caches", "offset", "size", "backward")

    def __init__(self, op: str, arg: int | Label, pos: Position, backward: bool = False) -> None:
        self.op, self.arg, self.pos, self.backward = op, arg, pos, backward
        self.caches = CACHES.get(op, 0)
        self.offset, self.size = 0, 1 + self.caches  # in code units; size includes EXTENDED_ARG


def assemble(b: Bytecode) -> CodeType:
    """The code object. ValueError names an instruction that this CPython does not have or cannot encode."""
    consts, names = _Table(b.consts, True), _Table(b.names, False)
    items = _lower(b, consts, names)
    places = _layout(items)
    ops = [i for i in items if isinstance(i, _Op)]
    return CodeType(
        b.argcount,
        b.posonlyargcount,
        b.kwonlyargcount,
        len(b.varnames),
        stack_size(b),
        b.flags,
        _encode(ops, places),
        tuple(consts.values),
        tuple(names.values),
        tuple(b.varnames),
        b.filename,
        b.name,
        b.qualname,
        b.firstlineno,
        _line_table(ops, b.firstlineno),
        _exception_table(b, places),
        tuple(b.freevars),
        tuple(b.cellvars),
    )


# ---- symbolic operands to numbers


def _variables(b: Bytecode) -> tuple[dict[Any, int], dict[Any, int]]:
    """name -> slot as LOAD_FAST and as LOAD_DEREF see it."""
    slots = b.slots()
    fast: dict[Any, int] = {}
    cells: dict[Any, int] = {}
    for i, name in enumerate(slots):
        fast.setdefault(name, i)
        if i >= len(b.varnames) or name in b.cellvars:
            cells.setdefault(name, i)
    return fast, cells


def _lower(b: Bytecode, consts: _Table, names: _Table) -> list[_Op | Label]:
    fast, cells = _variables(b)
    order = {label: i for i, label in enumerate(b.items) if isinstance(label, Label)}
    out: list[_Op | Label] = []
    for at, item in enumerate(b.items):
        if isinstance(item, Label):
            out.append(item)
            continue
        op, arg = item.op, item.arg
        if isinstance(arg, Label):
            if arg not in order:
                raise ValueError(f"{item!r} jumps to a label that is not placed")
            out += _jump(item, arg, order[arg] < at)
            continue
        if op in CONSTS:
            arg = consts.number(arg)
        elif op in NAMES:
            arg = names.number(arg) << FLAG_BITS.get(op, 0) | item.flags
        elif op in LOCALS or op in CELLS:
            table = cells if op in CELLS else fast
            if not isinstance(arg, int):
                if arg not in table:
                    raise ValueError(f"{item!r} in {b.qualname}: no such variable")
                arg = table[arg]
        if op == "LOAD_CLOSURE" and VERSION >= (3, 13):
            op = "LOAD_FAST"
        if op not in dis.opmap:
            raise ValueError(f"CPython {VERSION[0]}.{VERSION[1]} has no instruction {op}")
        out.append(_Op(op, arg or 0, item.pos))
    return out


def _jump(item: Instr, target: Label, backward: bool) -> list[_Op | Label]:
    op, pos = item.op, item.pos
    if op == "JUMP":
        return [_Op("JUMP_BACKWARD" if backward else "JUMP_FORWARD", target, pos, backward)]
    if op == "JUMP_NO_INTERRUPT":
        return [_Op("JUMP_BACKWARD_NO_INTERRUPT" if backward else "JUMP_FORWARD", target, pos, backward)]
    if op in _INVERSE and VERSION < (3, 12):
        return [_Op(op.replace("JUMP_", "JUMP_BACKWARD_" if backward else "JUMP_FORWARD_"), target, pos, backward)]
    if op in _INVERSE and backward:
        skip = Label("skip")
        return [_Op(_INVERSE[op], skip, pos), _Op("JUMP_BACKWARD", target, pos, True), skip]
    if backward or op not in dis.opmap:
        raise ValueError(f"CPython {VERSION[0]}.{VERSION[1]} cannot encode {item!r}{' backwards' if backward else ''}")
    return [_Op(op, target, pos)]


# ---- sizes and code


def _jump_operand(op: _Op, places: dict[Label, int]) -> int:
    assert isinstance(op.arg, Label)
    end = op.offset + op.size
    distance = end - places[op.arg] if op.backward else places[op.arg] - end
    return max(distance, 0)


def _layout(items: list[_Op | Label]) -> dict[Label, int]:
    """The place of each label in code units, with room for EXTENDED_ARG where needed. Sizes only grow: it ends."""
    places: dict[Label, int] = {}
    for item in items:
        if isinstance(item, _Op) and isinstance(item.arg, int):
            item.size += _extended(item.arg)
    grown = True
    while grown:
        at = 0
        for item in items:
            if isinstance(item, Label):
                places[item] = at
            else:
                item.offset = at
                at += item.size
        grown = False
        for item in items:
            if isinstance(item, _Op) and isinstance(item.arg, Label):
                want = 1 + item.caches + _extended(_jump_operand(item, places))
                if want > item.size:
                    item.size, grown = want, True
    return places


def _extended(arg: int) -> int:
    return 0 if arg < 0x100 else 1 if arg < 0x10000 else 2 if arg < 0x1000000 else 3


def _encode(ops: list[_Op], places: dict[Label, int]) -> bytes:
    out = bytearray()
    for op in ops:
        arg = op.arg if isinstance(op.arg, int) else _jump_operand(op, places)
        for i in range(op.size - 1 - op.caches, 0, -1):
            out += bytes((dis.EXTENDED_ARG, arg >> 8 * i & 0xFF))
        out += bytes((dis.opmap[op.op], arg & 0xFF)) + bytes(2 * op.caches)
    return bytes(out)


# ---- tables


def _varint(value: int) -> bytearray:
    out = bytearray()
    while value >= 64:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return out


def _signed(value: int) -> bytearray:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


def _line_table(ops: list[_Op], first: int) -> bytes:
    """Location entries (``Objects/locations.md``): the long form, the line-only form, or none."""
    out = bytearray()
    line = first
    for op in ops:
        start, end, column, end_column = op.pos
        left = op.size
        while left > 0:
            n = min(left, 8)
            left -= n
            if start is None:
                out.append(0x80 | 15 << 3 | n - 1)
                continue
            if end is None or column is None or end_column is None:
                out.append(0x80 | 13 << 3 | n - 1)
                out += _signed(start - line)
            else:
                out.append(0x80 | 14 << 3 | n - 1)
                out += _signed(start - line) + _varint(end - start) + _varint(column + 1) + _varint(end_column + 1)
            line = start
    return bytes(out)


def _exception_table(b: Bytecode, places: dict[Label, int]) -> bytes:
    """Entries sorted by start; where regions overlap the later one of ``b.regions`` is the inner one and wins."""
    flat: list[tuple[int, int, int, int]] = []
    for r in b.regions:
        start, end = places[r.start], places[r.end]
        if start < end:
            flat = _override(flat, start, end, places[r.handler], r.depth << 1 | r.lasti)
    out = bytearray()
    for start, end, target, packed in sorted(flat):
        entry = bytearray()
        for value in (start, end - start, target, packed):
            chunks = [value & 63]
            while value >= 64:
                value >>= 6
                chunks.append(value & 63 | 64)
            entry += bytes(reversed(chunks))
        entry[0] |= 0x80
        out += entry
    return bytes(out)


def _override(
    flat: list[tuple[int, int, int, int]], start: int, end: int, target: int, packed: int
) -> list[tuple[int, int, int, int]]:
    out = [(start, end, target, packed)]
    for s, e, t, p in flat:
        if s < min(e, start):
            out.append((s, min(e, start), t, p))
        if max(s, end) < e:
            out.append((max(s, end), e, t, p))
    return out


# ---- stack size


def stack_size(b: Bytecode) -> int:
    """The deepest that the value stack gets on any path. ValueError where two paths disagree or it underflows."""
    index = {item: i for i, item in enumerate(b.items) if isinstance(item, Label)}
    handlers: list[tuple[int, int, Label, int]] = [
        (index[r.start], index[r.end], r.handler, r.depth + r.lasti + 1) for r in b.regions
    ]
    depth_at: dict[int, int] = {}
    seen: set[int] = set()
    generator = b.flags & _GENERATOR_FLAGS and dis.stack_effect(dis.opmap["RETURN_GENERATOR"]) == 0
    work: list[tuple[int, int]] = [(0, 1 if generator else 0)]
    work += [(index[handler], depth) for _, _, handler, depth in handlers]
    deepest = 0
    while work:
        at, depth = work.pop()
        while at < len(b.items):
            item = b.items[at]
            if depth_at.setdefault(at, depth) != depth:
                raise ValueError(f"{item!r} in {b.qualname} is reached with stacks of {depth_at[at]} and {depth}")
            if at in seen:
                break
            seen.add(at)
            at += 1
            if isinstance(item, Label):
                continue
            deepest = max(deepest, depth)
            if isinstance(item.arg, Label):
                jumped = depth + _effect(item, True)
                deepest = max(deepest, jumped)
                work.append((index[item.arg], jumped))
            depth += _effect(item, False)
            if depth < 0:
                raise ValueError(f"{item!r} in {b.qualname} takes more than the stack has")
            deepest = max(deepest, depth)
            if item.op in _NO_FALL_THROUGH:
                break
    return deepest


def _effect(item: Instr, jump: bool) -> int:
    op, arg = item.op, item.arg
    if op in ("JUMP", "JUMP_NO_INTERRUPT"):
        return 0
    if op in _INVERSE:
        return -1
    if op == "LOAD_CLOSURE":
        return 1
    code = dis.opmap[op]
    if isinstance(arg, Label) or op in CONSTS or op in LOCALS or op in CELLS:
        number = 0
    elif op in NAMES:
        number = item.flags
    else:
        number = arg or 0
    return dis.stack_effect(code, number if code >= dis.HAVE_ARGUMENT else None, jump=jump)

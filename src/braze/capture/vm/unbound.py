"""Captured variables of a function that may be unbound where they are read.

In a continuation they are free variables, whose NameError is another one than the UnboundLocalError of a function's own
variables.  So a read or a deletion that may find nothing is a call there, which raises the right error.
"""

from __future__ import annotations

import dis
from types import CellType, CodeType
from typing import TYPE_CHECKING, Any

from braze.capture.bytecode import VERSION, Bytecode, Instr, Label

from .registry import handles
from .values.base import NONE, Value
from .values.functions import CellValue

if TYPE_CHECKING:
    from .tracer import Tracer

ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP", "JUMP_NO_INTERRUPT"))
_FORGETS = frozenset(("STORE_FAST", "DELETE_DEREF", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
_LOOKS = frozenset(("LOAD_DEREF", "DELETE_DEREF"))


def may_be_unbound(code: CodeType, b: Bytecode) -> set[int]:
    """Indices of the items of ``b``, the bytecode of ``code`` with a name of its own for each variable, that read or
    delete a cell of the function itself which may be empty then."""
    bound = set(b.cellvars) - _deleted_inside(code)
    looks = [i for i, x in enumerate(b.items) if isinstance(x, Instr) and x.op in _LOOKS and x.arg in b.cellvars]
    if not looks:
        return set()
    arguments = {n for n in b.varnames if n in code.co_varnames[: _argument_slots(code)]}
    before = _bound_before(b, frozenset(bound & arguments), bound)
    return {i for i in looks if i in before and _name(b, i) not in before[i]}


def _name(b: Bytecode, i: int) -> Any:
    item = b.items[i]
    assert isinstance(item, Instr)
    return item.arg


def _argument_slots(code: CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)


def _deleted_inside(code: CodeType) -> set[str]:
    """Variables that a function defined in the code deletes."""
    out: set[str] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and inner.co_freevars:
            out |= _deleted_inside(inner) | {
                i.argval for i in dis.get_instructions(inner) if i.opname == "DELETE_DEREF"
            }
    return out


def _bound_before(b: Bytecode, first: frozenset[str], tracked: set[str]) -> dict[int, frozenset[str]]:
    """For each item that can be reached, the tracked variables that have a value on all ways to it."""
    where = {item: i for i, item in enumerate(b.items) if isinstance(item, Label)}
    regions = [(where[r.start], where[r.end], where[r.handler]) for r in b.regions]
    before: dict[int, frozenset[str]] = {}
    todo: list[tuple[int, frozenset[str]]] = [(0, first)]
    while todo:
        i, now = todo.pop()
        while i < len(b.items):
            known = before.get(i)
            now = now if known is None else now & known
            if now == known:
                break
            before[i] = now
            item = b.items[i]
            todo += [(h, now) for s, e, h in regions if s <= i < e]
            if isinstance(item, Instr):
                if item.op in ("STORE_DEREF", "LOAD_DEREF") and item.arg in tracked:
                    now |= {item.arg}
                elif item.op in _FORGETS or item.op == "MAKE_CELL" and item.arg not in first:
                    now -= {item.arg}
                if isinstance(item.arg, Label):
                    todo.append((where[item.arg], now))
                if item.op in ENDS:
                    break
            i += 1
    return before


def call_instead(ins: Instr) -> list[Instr]:
    """What does the same as a read or a deletion of a cell, but for the error."""
    cell = Instr("LOAD_CLOSURE", ins.arg, 0, ins.pos)
    function = Instr("LOAD_CONST", read_cell if ins.op == "LOAD_DEREF" else delete_cell, 0, ins.pos)
    null = Instr("PUSH_NULL", None, 0, ins.pos)
    name = Instr("LOAD_CONST", str(ins.arg).partition("#")[0], 0, ins.pos)
    out = [function, null] if VERSION >= (3, 13) else [null, function]
    out += [cell, name]
    if VERSION < (3, 12):
        out.append(Instr("PRECALL", 2, 0, ins.pos))
    out.append(Instr("CALL", 2, 0, ins.pos))
    return out if ins.op == "LOAD_DEREF" else [*out, Instr("POP_TOP", None, 0, ins.pos)]


def _message(name: str) -> str:
    return f"cannot access local variable {name!r} where it is not associated with a value"


def read_cell(cell: CellType, name: str) -> Any:
    """What the cell of the variable holds."""
    try:
        return cell.cell_contents
    except ValueError:
        pass
    raise UnboundLocalError(_message(name))


def delete_cell(cell: CellType, name: str) -> None:
    """Empty the cell of the variable."""
    read_cell(cell, name)
    del cell.cell_contents


def _contents(vm: Tracer, cell: Value, name: Value) -> Value:
    assert isinstance(cell, CellValue)
    out = cell.read(vm)
    if out is None:
        vm.raise_(UnboundLocalError, _message(name.as_const(vm)))
    return out


@handles(read_cell)
def _read(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _contents(vm, *args)


@handles(delete_cell)
def _delete(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cell, name = args
    _contents(vm, cell, name)
    assert isinstance(cell, CellValue)
    cell.write(vm, None)
    return NONE

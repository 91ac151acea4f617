"""Continuation functions: the rest of a frame after a break, as a function of its live variables and its stack.

``continuation(code, target, stack, names)`` is the original code with a new beginning: its arguments are the stack
entries and the live variables, its free variables are the original's cells; it restores the stack and jumps.  One code
object serves all breaks of the same shape, so compiled versions of it are found again; the continuation of a
continuation is one of the original, so that a loop has as many as it has breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from braze.capture.assemble import _effect, assemble
from braze.capture.bytecode import (
    CELLS,
    LOCALS,
    VERSION,
    Bytecode,
    Instr,
    Label,
    Region,
    forget_bytecode,
    instructions_of,
    remember_bytecode,
)
from braze.capture.emit import Emitter

from .decode import variable_slots
from .signals import unsupported
from .unbound import ENDS, call_instead, may_be_unbound

NULL_ENTRY = "null"
VALUE_ENTRY = "value"
EXCEPTION_ENTRY = "exception"  # what PUSH_EXC_INFO leaves below an exception; passed is the one being handled
_VARIABLES = LOCALS | CELLS
CALLEE = "<callee>"
AT_INSTRUCTION, AFTER_CALL, AS_GENERATOR = "at", "after call", "generator"
_CACHE: dict[tuple[Any, ...], CodeType] = {}
_ORIGINS: dict[int, _Origin] = {}  # by id of the continuation's code, which _CACHE keeps


def _unique_names(b: Bytecode) -> None:
    """Give each variable slot a name of its own, and every instruction the name."""
    slots = b.slots()
    fast, cells = variable_slots(b)
    n = len(b.varnames)
    names = [s if slots.index(s) == i else f"{s}#{i}" for i, s in enumerate(slots)]
    for ins in b.instructions:
        if ins.op in _VARIABLES:
            slot = ins.arg if isinstance(ins.arg, int) else (cells if ins.op in CELLS else fast)[ins.arg]
            ins.arg = names[slot]
    b.varnames = names[:n]
    only_cells = [c for c in b.cellvars if c not in slots[:n]]
    b.cellvars = [c for c in b.cellvars if c in slots[:n]] + names[n : n + len(only_cells)]
    b.freevars = names[n + len(only_cells) :]


def reachable(b: Bytecode, start: int) -> set[int]:
    """Indices of the items that can run from item ``start`` on, handlers included."""
    where = {item: i for i, item in enumerate(b.items) if isinstance(item, Label)}
    regions = [(where[r.start], where[r.end], where[r.handler]) for r in b.regions]
    seen: set[int] = set()
    todo = [start]
    while todo:
        i = todo.pop()
        while i < len(b.items) and i not in seen:
            seen.add(i)
            todo += [h for s, e, h in regions if s <= i < e and h not in seen]
            item = b.items[i]
            if isinstance(item, Instr):
                if isinstance(item.arg, Label):
                    todo.append(where[item.arg])
                if item.op in ENDS:
                    break
            i += 1
    return seen


def item_of(b: Bytecode, index: int) -> int:
    """The item index of the index-th instruction."""
    n = -1
    for i, item in enumerate(b.items):
        if isinstance(item, Instr):
            n += 1
            if n == index:
                return i
    raise IndexError(index)


class _Analysis:
    """What is asked of one code object again and again. ``bytecode`` has unique names; do not change it."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        b = self.bytecode = instructions_of(code)
        _unique_names(b)
        self.closure = [*b.cellvars, *b.freevars]
        self.slots = [*b.varnames, *(c for c in b.cellvars if c not in b.varnames), *b.freevars]
        self.live: dict[int, frozenset[str]] = {}
        self.unbound = may_be_unbound(code, b)


_ANALYSES: dict[int, _Analysis] = {}  # by id of the code


def _analysis(code: CodeType) -> _Analysis:
    found = _ANALYSES.get(id(code))
    if found is None:
        if len(_ANALYSES) > 4096:
            _ANALYSES.clear()
        found = _ANALYSES[id(code)] = _Analysis(code)
    return found


def live_names(code: CodeType, index: int) -> frozenset[str]:
    """Variables (by unique name) that the code may read from instruction ``index`` on."""
    known = _analysis(code)
    found = known.live.get(index)
    if found is None:
        b = known.bytecode
        out = set()
        for i in reachable(b, item_of(b, index)):
            ins = b.items[i]
            if isinstance(ins, Instr) and ins.op in _VARIABLES and not ins.op.startswith(("STORE_FAST", "MAKE_CELL")):
                out.add(ins.arg)
        if "__class__" in b.freevars and b.argcount:
            out.add(b.varnames[0])  # super() looks for it in the frame
        found = known.live[index] = frozenset(out)
    return found


def unique_slot_names(code: CodeType) -> list[str]:
    """The names that :func:`live_names` uses, by slot."""
    return _analysis(code).slots


def closure_names(code: CodeType) -> list[str]:
    """The free variables of a continuation: the original's cells and free variables, by unique name."""
    return _analysis(code).closure


@dataclass(frozen=True)
class _Origin:
    """Where a continuation comes from: the original code, and which of its instructions each own one is."""

    code: CodeType
    indices: list[int | None]


def original_place(code: CodeType, index: int) -> tuple[CodeType, int]:
    """The original code and the index in it of an instruction of a continuation; others are their own original."""
    found = _ORIGINS.get(id(code))
    if found is None:
        return code, index
    at = found.indices[index]
    if at is None:
        unsupported("a break in the deletion of an unbound captured variable")
    return found.code, at


def continuation(
    code: CodeType, index: int, stack: Sequence[str], names: Sequence[str], entry: str = AT_INSTRUCTION
) -> CodeType:
    """The code object of the rest from instruction ``index``.

    ``stack``: one entry an item, NULL_ENTRY, VALUE_ENTRY or EXCEPTION_ENTRY; ``names``: the plain variables passed,
    before the stack values. Free variables: :func:`closure_names`.

    ``entry`` AFTER_CALL: the instruction is a call that has begun; its result is what the last argument, a tuple of a
    function and its arguments, gives, which is called in the call's place. AS_GENERATOR: the instruction is a yield;
    the code is a generator's, and yields the topmost stack entry first.
    """
    code, index = original_place(code, index)
    key = (id(code), index, tuple(stack), tuple(names), entry)
    found = _CACHE.get(key)
    if found is not None:
        return found
    if len(_CACHE) > 4096:
        _CACHE.clear()
        _ORIGINS.clear()
        _ANALYSES.clear()
        forget_bytecode()
    out, origin_ = _make(code, index, stack, names, entry)
    _CACHE[key] = out
    _ORIGINS[id(out)] = origin_
    return out


def _make(
    code: CodeType, index: int, stack: Sequence[str], names: Sequence[str], entry: str
) -> tuple[CodeType, _Origin]:
    b = instructions_of(code)
    _unique_names(b)
    place: dict[Instr, int] = {ins: i for i, ins in enumerate(b.instructions)}
    at = item_of(b, index)
    keep, unbound = reachable(b, at), _analysis(code).unbound
    start = Label("entry")
    items: list[Instr | Label] = []
    for i, item in enumerate(b.items):
        if i == at and entry != AFTER_CALL:
            items.append(start)
        if i in unbound and i in keep:
            assert isinstance(item, Instr)
            instead = call_instead(item)
            place.update(dict.fromkeys([x for x in instead if x.op != "POP_TOP"], place[item]))
            items += instead
        elif isinstance(item, Label) or i in keep:
            items.append(item)
        if i == at and entry == AFTER_CALL:
            assert isinstance(item, Instr)
            call, over = Instr("CALL_FUNCTION_EX", 0, 0, item.pos), Label("over")
            jump = Instr("JUMP", over, 0, item.pos)
            place[call], place[jump] = index, index + 1
            items += [jump, start, call, over]
    b.items = items
    cells = list(closure_names(code))
    params = [f"<stack {i}>" for i, s in enumerate(stack) if s != NULL_ENTRY]
    last = [CALLEE] if entry == AFTER_CALL else []
    given = [*names, *params, *last]
    b.varnames = [*given, *(v for v in b.varnames if v not in cells and v not in given)]
    b.cellvars, b.freevars = [], cells
    b.argcount, b.posonlyargcount, b.kwonlyargcount = len(given), 0, 0
    b.flags &= ~(0x04 | 0x08)
    b.consts = [None]
    b.names = []
    b.name, b.qualname = f"{code.co_name}<resume>", f"{code.co_name}<resume>"
    first = _line_at(b.items, start) or b.firstlineno
    _prologue(b, start, stack, params, first, entry)
    b.regions = [r for r in b.regions if _placed(b, r)]
    out = assemble(b)
    remember_bytecode(out, b)
    return out, _Origin(code, [place.get(ins) for ins in b.instructions])


def origin(code: CodeType) -> CodeType:
    """The code of the function that a continuation continues; any other code itself."""
    found = _ORIGINS.get(id(code))
    return code if found is None else found.code


def is_continuation(code: CodeType) -> bool:
    return id(code) in _ORIGINS


def _line_at(items: list[Instr | Label], entry: Label) -> int | None:
    for item in items[items.index(entry) :]:
        if isinstance(item, Instr) and item.line is not None:
            return item.line
    return None


def _prologue(b: Bytecode, start: Label, stack: Sequence[str], params: list[str], line: int, entry: str) -> None:
    body = b.items
    b.items = []
    e = Emitter(b)
    e.line(line)
    if entry == AS_GENERATOR:
        if b.freevars:
            e.emit("COPY_FREE_VARS", len(b.freevars))
        e.emit("RETURN_GENERATOR")
        e.pop()
        e.emit("RESUME", 0)
    else:
        e.prologue()
    names = iter(params)
    for s in stack:
        if s == NULL_ENTRY:
            e.emit("PUSH_NULL")
            continue
        e.load(next(names))
        if s == EXCEPTION_ENTRY:
            e.emit("PUSH_EXC_INFO")
            e.pop()
    if entry == AFTER_CALL:
        e.callee_const(resume)
        e.load(CALLEE)
        params = [*params, CALLEE]
    for name in params:
        e.delete(name)  # the frame must not keep what the stack drops
    e.jump(start)
    b.items += body


# ---- running continuations


class Tail(tuple):  # type: ignore[type-arg]
    """What replacement code of a continuation returns for the next one: (function, *arguments).

    A loop with a break in it thus takes no more of Python's stack than one round does.
    """

    __slots__ = ()


def resume(*call: Any) -> Any:
    """Call a continuation (function, *arguments), and the ones that follow it, for the value that the frame returns."""
    function, *args = call
    out = function(*args)
    while type(out) is Tail:
        function, *args = out
        out = None
        out = function(*args)
    return out


def _placed(b: Bytecode, r: Region) -> bool:
    """Whether any instruction is left in the region."""
    i, j = b.items.index(r.start), b.items.index(r.end)
    return any(isinstance(x, Instr) for x in b.items[i:j])


def stack_effect(ins: Instr, jump: bool) -> int:
    """The change of the stack's depth by an instruction in canonical form."""
    if ins.op == "CALL" and VERSION < (3, 12):
        return -(int(ins.arg) + 1)  # dis counts the arguments with PRECALL, which leaves the stack alone
    return _effect(ins, jump)

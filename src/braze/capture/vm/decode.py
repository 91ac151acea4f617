"""Code objects prepared for interpretation: a handler and an operand for each instruction, handlers of exceptions."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from braze.capture.bytecode import CELLS, LOCALS, Bytecode, Instr, Label, instructions_of

if TYPE_CHECKING:
    from .frame import Frame

OpHandler = Callable[["Frame", "Op"], Any]
OPS: dict[str, OpHandler] = {}


def op(*names: str) -> Callable[[OpHandler], OpHandler]:
    """Register the handler of opcodes (canonical names of ``capture.bytecode``)."""

    def register(f: OpHandler) -> OpHandler:
        for n in names:
            OPS[n] = f
        return f

    return register


class Op:
    """One instruction: ``arg`` is the constant, name, slot number, or (for jumps) the index of the target."""

    __slots__ = ("run", "name", "arg", "flags", "line", "index", "send", "instr")

    def __init__(self, run: OpHandler, instr: Instr, arg: Any, index: int) -> None:
        self.run, self.arg, self.index, self.instr = run, arg, index, instr
        self.name, self.flags, self.line = instr.op, instr.flags, instr.pos[0]
        self.send: Op | None = None  # of a YIELD_VALUE in a ``yield from``: its SEND

    def __repr__(self) -> str:
        return repr(self.instr)


class Code:
    """A decoded code object. ``handlers[i]`` is (target, depth, lasti) of instruction i, or None."""

    __slots__ = ("code", "bytecode", "ops", "handlers", "slots", "nlocals", "consts", "user", "locs")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        b = self.bytecode = instructions_of(code)
        self.slots = b.slots()
        self.nlocals = len(b.varnames)
        where: dict[Label, int] = {}
        n = 0
        for item in b.items:
            if isinstance(item, Label):
                where[item] = n
            else:
                n += 1
        fast, cells = variable_slots(b)
        self.ops: list[Op] = []
        for i, ins in enumerate(b.instructions):
            arg = ins.arg
            if isinstance(arg, Label):
                arg = where[arg]
            elif isinstance(arg, str) and ins.op in LOCALS:
                arg = fast[arg]
            elif isinstance(arg, str) and ins.op in CELLS:
                arg = cells[arg]
            self.ops.append(Op(OPS.get(ins.op) or _unknown, ins, arg, i))
        for before, after in zip(self.ops, self.ops[1:]):
            if before.name == "SEND" and after.name == "YIELD_VALUE":
                after.send = before
        self.handlers: list[tuple[int, int, bool] | None] = [None] * n
        for r in b.regions:
            entry = (where[r.handler], r.depth, r.lasti)
            for i in range(where[r.start], where[r.end]):
                self.handlers[i] = entry
        self.consts: dict[int, Any] = {}
        self.locs: dict[int | None, Any] = {}  # line -> Loc
        self.user: bool | None = None  # whether the code is the user's, not torch's; found on demand


def variable_slots(b: Bytecode) -> tuple[dict[Any, int], dict[Any, int]]:
    """name -> slot, as LOAD_FAST and as LOAD_DEREF see it."""
    fast: dict[Any, int] = {}
    cells: dict[Any, int] = {}
    for i, name in enumerate(b.slots()):
        fast.setdefault(name, i)
        if i >= len(b.varnames) or name in b.cellvars:
            cells.setdefault(name, i)
    return fast, cells


def _unknown(frame: Frame, op: Op) -> None:
    from .signals import unsupported

    unsupported(f"the bytecode instruction {op.name}")


_DECODED: dict[int, Code] = {}  # by id: hashing a code object walks all of it


def decode(code: CodeType) -> Code:
    """The decoded code, kept for later captures (at most a few thousand)."""
    found = _DECODED.get(id(code))
    if found is None:
        if len(_DECODED) > 4096:
            _DECODED.clear()
        found = _DECODED[id(code)] = Code(code)  # which keeps the code alive, hence the id its own
    return found

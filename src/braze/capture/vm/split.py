"""Graph breaks: the replacement code of a frame that was traced up to an instruction that a graph cannot hold.

It runs the graph, makes the state of the frame, runs the instruction in Python, and goes on in a continuation
(:mod:`.resume`). The instruction may be in a callee that was inlined, at any depth: then the frames between are split,
too, each at its call, and the continuation of the outermost one calls those of the inner ones.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, TracebackType
from typing import Any

from braze.capture.bytecode import VERSION, Label

from .decode import Op
from .frame import Frame
from .instr_control import PreviousException
from .output import Captured, CompileGraph, Writer
from .rebuild import Rebuilder
from .resume import (
    AFTER_CALL,
    AS_GENERATOR,
    AT_INSTRUCTION,
    EXCEPTION_ENTRY,
    NULL_ENTRY,
    VALUE_ENTRY,
    Tail,
    closure_names,
    continuation,
    is_continuation,
    live_names,
    resume,
    stack_effect,
    unique_slot_names,
)
from .signals import Break, unsupported
from .tracer import Tracer
from .values.base import NONE, NULL, Const, Value
from .values.functions import CellValue, make_function
from .values.generator import GeneratorValue
from .values.sequences import TupleValue

_CANNOT_BREAK = frozenset(
    "LOAD_FAST LOAD_FAST_CHECK LOAD_DEREF LOAD_CLOSURE DELETE_FAST DELETE_DEREF LOAD_FAST_AND_CLEAR YIELD_VALUE SEND "
    "GET_AWAITABLE GET_AITER GET_ANEXT BEFORE_ASYNC_WITH END_ASYNC_FOR RETURN_GENERATOR LOAD_CLASSDEREF "
    "CHECK_EXC_MATCH LOAD_GLOBAL CHECK_EG_MATCH PREP_RERAISE_STAR CALL_INTRINSIC_2".split()
)
_READS_GLOBALS = frozenset("IMPORT_NAME IMPORT_FROM IMPORT_STAR STORE_GLOBAL DELETE_GLOBAL LOAD_BUILD_CLASS".split())


class _Level:
    """One of the frames that are split, and what its continuation needs."""

    def __init__(self, frame: Frame, inner: bool) -> None:
        self.frame = frame
        self.code = frame.code.code
        self.index = frame.pc if inner else frame.pc - 1  # the instruction that has not been run, or the call
        self.handler = frame.code.handlers[self.index]
        self.names = unique_slot_names(self.code)
        self.closure = closure_names(self.code)
        if "__class__" in self.closure and self.names[0] in self.closure:
            unsupported("a break in a method whose own closures use self")
        self.cells = [self._cell(n) for n in self.closure]

    def slot(self, name: str) -> Value | None:
        v = self.frame.slots[self.names.index(name)]
        return None if v is NULL else v

    def _cell(self, name: str) -> CellValue:
        v = self.slot(name)
        if v is None:
            return CellValue()
        if not isinstance(v, CellValue):
            unsupported("a break inside a comprehension over captured variables")
        return v

    def live(self, index: int) -> list[str]:
        """The plain variables that have a value and may be read from the instruction on."""
        wanted = live_names(self.code, index)
        return [n for n in self.names if n in wanted and n not in self.closure and self.slot(n) is not None]

    def values(self, index: int) -> list[Value]:
        """The values of :meth:`live`."""
        return [v for n in self.live(index) if (v := self.slot(n)) is not None]

    def handled(self) -> list[Value]:
        """The exceptions whose except or finally blocks the frame is in, outermost first."""
        return [v.current for v in self.frame.stack if isinstance(v, PreviousException)]


class MadeValue(Value):
    """A continuation's function as a value: the code, and cells that are values."""

    __slots__ = ("code", "scope", "cells")

    def __init__(self, code: CodeType, scope: dict[str, Any], cells: list[CellValue]) -> None:
        self.source = None
        self.code, self.scope, self.cells = code, scope, cells

    def rebuild(self, rb: Rebuilder) -> None:
        fixed = [rb.constant(self.code), rb.constant(self.scope), Const(self.code.co_qualname)]
        rb.call(make_function, [*fixed, TupleValue([]), TupleValue(self.cells)])


class _Rest:
    """What makes a started generator again: a generator that yields once at the ``yield`` where this one is."""

    def __init__(self, generator: GeneratorValue) -> None:
        self.level = level = _Level(generator.frame, False)
        self.entries = list(generator.frame.stack)
        if generator.frame.pending is not None:
            unsupported("a generator with an exception in flight leaves the compiled region")
        live = level.live(level.index)
        kinds = [*map(_kind, self.entries), VALUE_ENTRY]
        self.code = continuation(level.code, level.index, kinds, live, AS_GENERATOR)
        stack = [v.current if isinstance(v, PreviousException) else v for v in self.entries if v is not NULL]
        self.args = [*level.values(level.index), *stack, NONE]

    def parts(self) -> list[Value]:
        return [*self.args, *self.level.cells]

    def function(self, rb: Rebuilder) -> Value:
        return MadeValue(self.code, self.level.frame.globals, self.level.cells)


def generator_rest(vm: Tracer, generator: GeneratorValue) -> _Rest:
    """The continuation of a started generator."""
    return _Rest(generator)


class _Split(Writer):
    def __init__(self, vm: Tracer, code: CodeType) -> None:
        super().__init__(vm, code)
        frames = vm.stopped
        self.levels = [_Level(f, f is frames[-1]) for f in frames]
        self.inner = self.levels[-1]
        self.frame = self.inner.frame
        self.op: Op = self.frame.code.ops[self.frame.pc]
        self.temps = 0

    def check(self) -> None:
        """Raise where a frame cannot be split here."""
        if self.op.name in _CANNOT_BREAK:
            unsupported(f"a break at {self.op.name}")
        if self.inner.code.co_flags & 0x20:
            unsupported("a break inside a generator")
        if self.op.name in _READS_GLOBALS and self.frame.globals is not self.vm.scope:
            unsupported(f"a break at {self.op.name} in a callee of another module")

    def write(self, compile_graph: CompileGraph) -> CodeType:
        f, index = self.frame, self.inner.index
        no_next = self.op.name in ("RAISE_VARARGS", "RERAISE")
        places = [] if no_next else [(self.inner, index + 1)]
        if isinstance(self.op.instr.arg, Label):
            places.append((self.inner, self._jump_target()))
        catching = next((v for v in reversed(self.levels) if v.handler is not None), None)
        if catching is not None and catching.handler is not None:
            places.append((catching, catching.handler[0]))
        places += [(v, v.index) for v in self.levels[:-1]]
        roots = [
            v.current if isinstance(v, PreviousException) else v
            for level in self.levels
            for v in level.frame.stack
            if v is not NULL
        ]
        roots += [v for level, at in places for v in level.values(at)]
        roots += [c for level in self.levels for c in level.cells]
        self.begin(list(dict.fromkeys(roots)), compile_graph)
        taken = Label("taken")
        kept, results = self._operands()
        self._handle_exceptions()
        for v in f.stack[kept:]:
            self.rb.push(_NO_EXCEPTION if isinstance(v, PreviousException) else v)
        start, end = self.e.label(), Label("end")
        if catching is not None:
            self.e.emit("NOP")  # 3.13 looks up an error of an inlined call one code unit before the call
        self._execute(taken)
        self.e.label(end)
        stack = self._entries(kept)
        if not no_next:
            after = [*stack, *self._store(results)]
            if self.op.name == "WITH_EXCEPT_START":
                after = [*f.stack, after[-1]]
            self._continue(self.inner, index + 1, after)
        if isinstance(self.op.instr.arg, Label):
            self._jumped(taken)
        if catching is not None:
            self._caught(start, end, catching)
        return self.finish()

    # -- the pieces ----
    def _entries(self, n: int) -> list[Value | str]:
        """The first n entries of the inner frame's stack, as :meth:`_continue` takes them."""
        return list(self.frame.stack[:n])

    def _handled(self) -> list[Value]:
        """The exceptions being handled where the break is, outermost first."""
        if self.op.name == "RERAISE":
            return []  # leaves them; which are still handled does not matter to it
        return [v for level in self.levels for v in level.handled()]

    def _handle_exceptions(self) -> None:
        """Make the exceptions being handled known to Python, as they are where the break is."""
        for v in self._handled():
            if v.source is None:
                self.rb.do(_give_traceback, [v])
            self.rb.push(v)
            self.e.emit("PUSH_EXC_INFO")

    def _leave_exceptions(self) -> None:
        """Undo :meth:`_handle_exceptions`; the continuation does it again."""
        for _ in self._handled():
            self.e.pop()
            self.e.emit("POP_EXCEPT")

    def _operands(self) -> tuple[int, list[bool]]:
        """How many stack entries stay as they are, and for each result of the instruction whether it is a NULL."""
        op, stack = self.op, self.frame.stack
        if op.name in _PEEKING:
            left = len(stack) + stack_effect(op.instr, False)
            kept = max(left - op.arg - (3 if op.name == "DICT_MERGE" else 0), 0)  # which names the callee in its error
            return kept, [v is NULL for v in stack[kept:left]]
        if op.name == "WITH_EXCEPT_START":
            return len(stack) - 4, [False] * 5
        if op.name == "RERAISE":
            return len(stack) - 1, []
        effect = stack_effect(op.instr, False)
        count = _RESULTS.get(op.name, 1)
        n: int = count(op.instr) if callable(count) else count
        if _loads_method(op):
            return len(stack) - (2 - effect), [False, True] if VERSION >= (3, 13) else [True, False]
        return len(stack) - (n - effect), [False] * n

    def _execute(self, taken: Label) -> None:
        """Emit the instruction itself."""
        e, op = self.e, self.op
        e.position = self.levels[0].frame.code.ops[self.levels[0].index].instr.pos
        name, flags = op.name, op.flags
        if self.frame.kw_names:
            e.emit("KW_NAMES", self.frame.kw_names)
        if name == "CALL" and VERSION < (3, 12):
            e.emit("PRECALL", op.arg)
        if _loads_method(op):  # as a bound method, since which of the two forms the pair has is not known
            e.emit("LOAD_ATTR" if name == "LOAD_METHOD" else name, op.instr.arg, flags & ~1)
            e.callee_from_top()
            return
        if name == "RERAISE":
            e.emit(name, 0)
            return
        e.emit(name, taken if isinstance(op.instr.arg, Label) else op.instr.arg, flags)

    def _store(self, nulls: list[bool]) -> list[Value | str]:
        """Pop the instruction's results into locals; the entries."""
        out: list[Value | str] = []
        for null in reversed(nulls):
            self.temps += 1
            name = f"<entry {self.temps}>"
            self.e.store(name)  # of a NULL: the local stays unbound
            out.append(NULL if null else name)
        return out[::-1]

    def _jump_target(self) -> int:
        target: int = self.op.arg
        if self.op.name == "FOR_ITER" and VERSION >= (3, 12):
            target += 1 if VERSION < (3, 13) else 2  # past END_FOR, which has nothing to take away
        return target

    def _jumped(self, taken: Label) -> None:
        """The continuation at the target of a jump."""
        e, op, stack = self.e, self.op, self.frame.stack
        e.label(taken)
        if op.name == "FOR_ITER":
            if VERSION >= (3, 12):
                e.emit("END_FOR")
            if VERSION >= (3, 13):
                e.pop()
            entries = self._entries(len(stack) - 1)
        else:
            kept, _ = self._operands()
            left = len(stack) + stack_effect(op.instr, True) - kept
            entries = [*self._entries(kept), *self._store([False] * left)]
        self._continue(self.inner, self._jump_target(), entries)

    def _caught(self, start: Label, end: Label, level: _Level) -> None:
        """The continuation at the exception handler that covers the instruction, or a call on the way to it."""
        assert level.handler is not None
        target, depth, lasti = level.handler
        e = self.e
        caught = e.label(Label("caught"))
        e.region(start, end, caught, 2 * len(self._handled()))
        entries: list[Value | str] = list(level.frame.stack[:depth])
        error = self._store([False])
        # an offset, for tracebacks alone; the real one would be of other code
        self._continue(level, target, [*entries, *([Const(0)] if lasti else []), *error])

    def _continue(self, level: _Level, index: int, entries: list[Value | str]) -> None:
        """Return what the rest of the frames gives, from the instruction ``index`` of ``level`` on.

        ``entries``: the stack of that frame, of values and of locals' names.
        """
        e = self.e
        self._leave_exceptions()
        tail = is_continuation(self.code)
        e.callee_const(Tail if tail else resume)
        outer = self.levels[: self.levels.index(level)]
        count = [self._function(v, v.index, list(v.frame.stack), AFTER_CALL) for v in outer]
        n = self._function(level, index, entries, AT_INSTRUCTION)
        for more in reversed(count):
            e.build("tuple", n)
            n = more + 1
        for v in entries:
            if isinstance(v, str):
                e.delete(v)
        self.drop_temporaries()
        if tail:
            e.build("tuple", n)
            n = 1
        e.call(n)
        e.return_value()

    def _function(self, level: _Level, index: int, entries: list[Value | str], entry: str) -> int:
        """Push a continuation and its arguments; how many entries that is."""
        e, rb = self.e, self.rb
        kinds, live = [_kind(v) for v in entries], level.live(index)
        code = continuation(level.code, index, kinds, live, entry)
        scope = level.frame.globals
        if level.cells:
            rb.push(MadeValue(code, scope, level.cells))
        else:
            e.load_const(FunctionType(code, scope))
        for held in level.values(index):
            rb.push(held)
        for v in entries:
            if isinstance(v, str):
                e.load(v)
            elif isinstance(v, PreviousException):
                rb.push(v.current)
            elif v is not NULL:
                rb.push(v)
        return 1 + len(kinds) - kinds.count(NULL_ENTRY) + len(live)


def _give_traceback(e: BaseException) -> None:
    """An exception that is being handled has a traceback; 3.11 crashes in ``with`` where it has none."""
    frame = sys._getframe(1)
    e.__traceback__ = TracebackType(None, frame, 0, frame.f_lineno)


_NO_EXCEPTION = Const(None)


def _kind(entry: Value | str) -> str:
    if isinstance(entry, PreviousException):
        return EXCEPTION_ENTRY
    return NULL_ENTRY if entry is NULL else VALUE_ENTRY


def _loads_method(op: Op) -> bool:
    return op.name == "LOAD_METHOD" or op.name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool(op.flags & 1)


_PEEKING = frozenset(("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "LIST_APPEND", "SET_ADD", "MAP_ADD"))
_RESULTS: dict[str, Any] = {
    "UNPACK_SEQUENCE": lambda i: i.arg,
    "UNPACK_EX": lambda i: (i.arg & 0xFF) + (i.arg >> 8) + 1,
    "BEFORE_WITH": 2,
    "FOR_ITER": 2,
    "GET_LEN": 2,
    "LOAD_GLOBAL": lambda i: 1 + (i.flags & 1),
    **{
        name: 0
        for name in (
            "POP_TOP STORE_ATTR STORE_SUBSCR STORE_SLICE STORE_GLOBAL STORE_DEREF STORE_FAST DELETE_ATTR DELETE_SUBSCR "
            "DELETE_GLOBAL POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE RAISE_VARARGS "
            "JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP"
        ).split()
    },
    "IMPORT_FROM": 2,
    "MATCH_SEQUENCE": 2,
    "MATCH_MAPPING": 2,
    "MATCH_KEYS": 3,
}


def finish_break(vm: Tracer, code: CodeType, compile_graph: CompileGraph, reason: Break) -> Captured:
    """Replacement code of a frame that was traced up to a break, which runs there and continues in a new function."""
    w = _Split(vm, code)
    w.check()
    replacement = w.write(compile_graph)
    breaks, sizes = [(reason.what, reason.loc)], vm.sizes.describe()
    return Captured(vm.graph, w.rb.reads, vm.guards.set, replacement, breaks, reason.hint, sizes)

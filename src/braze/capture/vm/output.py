"""The result of a capture: the finished graph, the guards, and replacement code for a frame that returned or broke."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, TracebackType
from typing import Any

from braze.capture.bytecode import VERSION, Label
from braze.capture.emit import INPUTS, Emitter
from braze.capture.guards import GuardSet
from braze.capture.source import Source
from braze.events import SizeNote
from braze.ir import Graph, Loc, TensorType
from braze.ir.decisions import settle

from .decode import Op
from .frame import Frame
from .instr_control import PreviousException
from .rebuild import OUTPUTS, Rebuilder
from .resume import (
    EXCEPTION_ENTRY,
    NULL_ENTRY,
    VALUE_ENTRY,
    closure_names,
    continuation,
    in_loop,
    live_names,
    stack_effect,
    unique_slot_names,
)
from .signals import Break, unsupported
from .tracer import Tracer
from .values.base import NULL, Const, Value
from .values.functions import CellValue, make_function

CompileGraph = Callable[[Graph, Sequence[TensorType], Sequence[Any]], Callable[..., Any]]


@dataclass
class Captured:
    """One compiled version of a frame.

    ``code`` replaces the frame's code while ``guards`` hold; it takes the values at ``sources`` as one more argument
    (``emit.INPUTS``), of which the first ``len(graph.inputs)`` are the graph's inputs. ``breaks`` are the reasons and
    places of graph breaks (at most one a frame).
    """

    graph: Graph
    sources: list[Source]
    guards: GuardSet
    code: CodeType
    breaks: list[tuple[str, Loc | None]] = field(default_factory=list)
    hint: str = ""  # what would avoid the break
    sizes: list[SizeNote] = field(default_factory=list)


@dataclass
class Skip:
    """The frame is left to Python. ``always``: whoever compiles the code, and however it is called; ``once``: this
    call only."""

    reason: str
    loc: Loc | None = None
    always: bool = False
    once: bool = False
    hint: str = ""


class _Writer:
    """Writes replacement code after a trace."""

    def __init__(self, vm: Tracer, code: CodeType) -> None:
        self.vm, self.code = vm, code
        self.e = Emitter.replacing(code, prologue=False)
        self.e.code.cellvars = []
        if code.co_freevars:
            self.e.emit("COPY_FREE_VARS", len(code.co_freevars))
        self.e.emit("RESUME", 0)
        self.rb = Rebuilder(vm, self.e)

    def begin(self, roots: list[Value], compile_graph: CompileGraph) -> None:
        """Emit what comes before the frame's own state: the graph's call, new objects, effects, modes."""
        vm, e, rb = self.vm, self.e, self.rb
        written = vm.effects.all()
        contents = [p for v in written for p in v.parts(vm)]
        rb.collect([*roots, *contents])
        vm.graph.outputs = tuple(rb.outputs)
        for v in vm.inputs:
            assert v.source is not None
            rb.read(v.source)
        if vm.graph.calls:
            self.call_graph(compile_graph)
        for w in [*roots, *contents, *(w for w in written if w.source is not None)]:
            rb.materialise(w)
        for w in written:
            w.replay(rb)
        for function, args in vm.mode_calls:
            e.callee_const(function)
            for a in args:
                e.load_const(a)
            e.call(len(args))
            e.pop()

    def call_graph(self, compile_graph: CompileGraph) -> None:
        """Emit the call of the compiled graph."""
        vm, e, rb = self.vm, self.e, self.rb
        settle(vm.graph, vm.sizes)
        vm.graph.decide = vm.sizes
        types = [n.val for n in vm.graph.inputs]
        compiled = compile_graph(vm.graph, types, [v.raw for v in vm.inputs])
        e.callee_const(compiled)
        e.load_inputs()
        self._cut = len(e.code.items)  # where the inputs are taken out of all reads, if there are more
        e.call_ex()
        if rb.outputs:
            e.store(OUTPUTS)
        else:
            e.pop()

    def finish(self) -> CodeType:
        """The code object, and the guards of what was taken for granted about sizes. Cuts the inputs out of the reads
        where the code reads more than the inputs."""
        self.vm.sizes.closed = True
        for guard in self.vm.sizes.guards():
            self.vm.guards.set.add(guard)
        n = len(self.vm.inputs)
        if hasattr(self, "_cut") and len(self.rb.reads) > n:
            side = Emitter.replacing(self.code, prologue=False)
            side.code.items = []
            side.load_const(slice(0, n))
            side.binary_subscr()
            self.e.code.items[self._cut : self._cut] = side.code.items
        return self.e.assemble()

    def drop_temporaries(self) -> None:
        """Delete what the rest of the frame does not need from the frame that waits for it."""
        e = self.e
        for name in [*self.rb.temporaries(), *([OUTPUTS] if OUTPUTS in e.code.varnames else []), INPUTS]:
            e.delete(name)


def finish_return(vm: Tracer, code: CodeType, value: Value, compile_graph: CompileGraph) -> Captured:
    """Replacement code of a frame that was traced to its return."""
    w = _Writer(vm, code)
    w.begin([value], compile_graph)
    w.rb.push(value)
    w.e.return_value()
    code = w.finish()
    return Captured(vm.graph, w.rb.reads, vm.guards.set, code, sizes=vm.sizes.describe())


# ---- breaks

_CANNOT_BREAK = frozenset(
    "LOAD_FAST LOAD_FAST_CHECK LOAD_DEREF LOAD_CLOSURE DELETE_FAST DELETE_DEREF LOAD_FAST_AND_CLEAR YIELD_VALUE SEND "
    "GET_AWAITABLE GET_AITER GET_ANEXT BEFORE_ASYNC_WITH END_ASYNC_FOR RETURN_GENERATOR LOAD_CLASSDEREF "
    "CHECK_EXC_MATCH LOAD_GLOBAL".split()
)


class _BreakWriter(_Writer):
    def __init__(self, vm: Tracer, code: CodeType, frame: Frame) -> None:
        super().__init__(vm, code)
        self.frame = frame
        self.op: Op = frame.code.ops[frame.pc]
        self.names = unique_slot_names(code)
        self.cells = closure_names(code)
        self.temps = 0

    def check(self) -> None:
        """Raise where a frame cannot be split here."""
        if self.op.name in _CANNOT_BREAK:
            unsupported(f"a break at {self.op.name}")
        if self.code.co_flags & 0x20:
            unsupported("a break inside a generator")

    def write(self, compile_graph: CompileGraph) -> CodeType:
        f = self.frame
        index = f.pc
        targets = [index + 1]
        if isinstance(self.op.instr.arg, Label):
            targets.append(self._jump_target())
        handler = f.code.handlers[index]
        if handler is not None:
            targets.append(handler[0])
        no_next = self.op.name in ("RAISE_VARARGS", "RERAISE")
        live: dict[int, list[str]] = {}
        for t in targets:
            wanted = live_names(self.code, t) if not (no_next and t == index + 1) else set()
            live[t] = [n for n in self.names if n in wanted and n not in self.cells and self._slot(n) is not None]
        cells = [self._cell(n) for n in self.cells]
        roots = [v.current if isinstance(v, PreviousException) else v for v in f.stack if v is not NULL]
        roots += [v for n in dict.fromkeys(n for t in targets for n in live[t]) if (v := self._slot(n)) is not None]
        roots += cells
        self.begin(roots, compile_graph)
        taken = Label("taken")
        kept, results = self._operands()
        self._handle_exceptions()
        for v in f.stack[kept:]:
            self.rb.push(_NO_EXCEPTION if isinstance(v, PreviousException) else v)
        start, end = self.e.label(), Label("end")
        if handler is not None:
            self.e.emit("NOP")  # 3.13 looks up an error of an inlined call one code unit before the call
        self._execute(taken)
        self.e.label(end)
        stack = self._entries(kept)
        if not no_next:
            after = [*stack, *self._store(results)]
            if self.op.name == "WITH_EXCEPT_START":
                after = [*f.stack, after[-1]]
            self._continue(index + 1, after, live[index + 1], cells)
        if isinstance(self.op.instr.arg, Label):
            self._jumped(taken, live[targets[1]], cells)
        if handler is not None:
            self._caught(start, end, handler, live[handler[0]], cells)
        return self.finish()

    # -- the pieces ----
    def _slot(self, name: str) -> Value | None:
        v = self.frame.slots[self.names.index(name)]
        return None if v is NULL else v

    def _cell(self, name: str) -> CellValue:
        v = self._slot(name)
        if v is None:
            return CellValue()
        if not isinstance(v, CellValue):
            unsupported("a break inside a comprehension over captured variables")
        return v

    def _entries(self, n: int) -> list[Value | str]:
        """The first n entries of the frame's stack, as :meth:`_continue` takes them."""
        return list(self.frame.stack[:n])

    def _handled(self) -> list[Value]:
        """The exceptions whose except or finally blocks the break is in, outermost first."""
        if self.op.name == "RERAISE":
            return []  # leaves them; which are still handled does not matter to it
        return [v.current for v in self.frame.stack if isinstance(v, PreviousException)]

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
            return 0, [v is NULL for v in stack[: len(stack) + stack_effect(op.instr, False)]]
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
        e.position = op.instr.pos
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

    def _jumped(self, taken: Label, live: list[str], cells: list[CellValue]) -> None:
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
        self._continue(self._jump_target(), entries, live, cells)

    def _caught(
        self, start: Label, end: Label, handler: tuple[int, int, bool], live: list[str], cells: list[CellValue]
    ) -> None:
        """The continuation at the exception handler that covers the instruction."""
        target, depth, lasti = handler
        e = self.e
        caught = e.label(Label("caught"))
        e.region(start, end, caught, 2 * len(self._handled()))
        entries = self._entries(depth)
        error = self._store([False])
        # an offset, for tracebacks alone; the real one would be of other code
        self._continue(target, [*entries, *([Const(0)] if lasti else []), *error], live, cells)

    def _continue(self, index: int, entries: list[Value | str], live: list[str], cells: list[CellValue]) -> None:
        """Return what the continuation at ``index`` gives. ``entries``: its stack, of values and of locals' names."""
        e, rb = self.e, self.rb
        self._leave_exceptions()
        kinds = [_kind(v) for v in entries]
        code = continuation(self.code, index, kinds, live)
        if cells:
            fixed = [rb.constant(code), rb.constant(self.vm.scope), Const(code.co_qualname)]
            rb.call(make_function, [*fixed, rb.vm.new_tuple([]), rb.vm.new_tuple(list(cells))])
            e.callee_from_top()
        else:
            e.callee_const(FunctionType(code, self.vm.scope))
        names = [v for v in entries if isinstance(v, str)]
        for v in entries:
            if isinstance(v, str):
                e.load(v)
            elif isinstance(v, PreviousException):
                rb.push(v.current)
            elif v is not NULL:
                rb.push(v)
        for n in live:
            value = self._slot(n)
            assert value is not None
            rb.push(value)
        for n in names:
            e.delete(n)
        self.drop_temporaries()
        e.call(len(kinds) - kinds.count(NULL_ENTRY) + len(live))
        e.return_value()


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


def finish_break(
    vm: Tracer, code: CodeType, frame: Frame, compile_graph: CompileGraph, reason: Break
) -> Captured | Skip:
    """Replacement code of a frame that was traced up to a break, which runs there and continues in a new function."""
    if in_loop(code, frame.pc):
        return Skip(f"a graph break inside a loop: {reason.what}", reason.loc, hint=reason.hint)
    w = _BreakWriter(vm, code, frame)
    w.check()
    replacement = w.write(compile_graph)
    breaks, sizes = [(reason.what, reason.loc)], vm.sizes.describe()
    return Captured(vm.graph, w.rb.reads, vm.guards.set, replacement, breaks, reason.hint, sizes)

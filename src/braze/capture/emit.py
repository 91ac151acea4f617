"""Writing bytecode: one method an action, the differences between CPython 3.11, 3.12 and 3.13 hidden.

Replacement code (``Emitter.replacing(code)``) runs in the frame of the original: it has the same argument slots, all
positional, the same free variables, and one more argument, :data:`INPUTS`: the tuple of values that the guard program
read for this call (``program.compile_guards(guards, reads)``), so that it need not walk to every parameter again.

    e = Emitter.replacing(code)              # def f(x, w): return torch.softmax(torch.relu(x @ w), -1).sum()
    e.callee_const(compiled)
    e.load_inputs()                          # (x, w)
    e.call_ex()                              # compiled(*inputs)
    e.unpack(1); e.return_value()
    new_code = e.assemble()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

from . import source as src
from .assemble import assemble
from .bytecode import NO_POSITION, VERSION, Bytecode, Instr, Label, Position, Region
from .source import Source, argument_count

INPUTS = "<inputs>"
_DROP_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200  # *args, **kwargs, generators and coroutines
_COMPARE = {"<": 0, "<=": 1, "==": 2, "!=": 3, ">": 4, ">=": 5}
_COMPARE_BITS = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}  # 3.13: which outcomes are true
_BINARY = {  # Include/opcode.h: NB_*
    **{op: i for i, op in enumerate("+ & // << @ * % | ** >> - / ^".split())},
    **{op: 13 + i for i, op in enumerate("+= &= //= <<= @= *= %= |= **= >>= -= /= ^=".split())},
}  # fmt: skip


class Emitter:
    """Appends instructions to ``self.code``. ``position`` is given to each instruction until it is changed."""

    def __init__(self, code: Bytecode | None = None) -> None:
        self.code = code or Bytecode()
        self.position: Position = NO_POSITION

    @staticmethod
    def replacing(code: CodeType, prologue: bool = True) -> Emitter:
        """An emitter of replacement code for ``code``, after its prologue (cells made, free variables copied)."""
        n = argument_count(code)
        names = list(code.co_varnames)
        b = Bytecode(
            name=code.co_name,
            qualname=code.co_qualname,
            filename=code.co_filename,
            firstlineno=code.co_firstlineno,
            flags=code.co_flags & ~_DROP_FLAGS,
            argcount=n + 1,
            varnames=[*names[:n], INPUTS, *names[n:]],
            cellvars=list(code.co_cellvars),
            freevars=list(code.co_freevars),
            consts=[None],
        )
        e = Emitter(b)
        e.line(code.co_firstlineno)
        if prologue:
            e.prologue()
        return e

    def assemble(self) -> CodeType:
        return assemble(self.code)

    # ---- instructions and places

    def emit(self, op: str, arg: Any = None, flags: int = 0) -> None:
        """Append one instruction by its canonical name (see ``bytecode``)."""
        self.code.items.append(Instr(op, arg, flags, self.position))

    def line(self, line: int | None) -> None:
        """The line of the instructions that follow."""
        self.position = (line, line, None, None) if line is not None else NO_POSITION

    def label(self, label: Label | None = None) -> Label:
        """Place a label here."""
        label = label or Label()
        self.code.items.append(label)
        return label

    def region(self, start: Label, end: Label, handler: Label, depth: int, lasti: bool = False) -> None:
        """Exceptions in [start, end) go to handler with ``depth`` stack entries left. Inner regions are added later."""
        self.code.regions.append(Region(start, end, handler, depth, lasti))

    def prologue(self) -> None:
        if self.code.freevars:
            self.emit("COPY_FREE_VARS", len(self.code.freevars))
        for name in self.code.cellvars:
            self.emit("MAKE_CELL", name)
        self.emit("RESUME", 0)

    # ---- values

    def load_const(self, value: Any) -> None:
        """Push any object, held by the code."""
        self.emit("LOAD_CONST", value)

    def declare(self, name: str) -> str:
        """Make sure that there is a local variable of this name."""
        if name not in self.code.varnames and name not in self.code.cellvars and name not in self.code.freevars:
            self.code.varnames.append(name)
        return name

    def is_cell(self, name: str) -> bool:
        return name in self.code.cellvars or name in self.code.freevars

    def load(self, name: str) -> None:
        """Push a variable, local or cell."""
        self.emit("LOAD_DEREF" if self.is_cell(name) else _LOAD_LOCAL, self.declare(name))

    def store(self, name: str) -> None:
        """Pop into a variable, local or cell."""
        self.emit("STORE_DEREF" if self.is_cell(name) else "STORE_FAST", self.declare(name))

    def delete(self, name: str) -> None:
        self.emit("DELETE_DEREF" if self.is_cell(name) else "DELETE_FAST", name)

    def load_closure(self, name: str) -> None:
        """Push the cell of a cell or free variable."""
        self.emit("LOAD_CLOSURE", name)

    def load_global(self, name: str) -> None:
        """Push a global or builtin of the frame."""
        self.emit("LOAD_GLOBAL", name)

    def store_global(self, name: str) -> None:
        self.emit("STORE_GLOBAL", name)

    def load_inputs(self) -> None:
        """Push the tuple of values that the guard program read."""
        self.emit("LOAD_FAST", INPUTS)

    def load_input(self, index: int) -> None:
        """Push the index-th value that the guard program read."""
        self.load_inputs()
        self.load_const(index)
        self.binary_subscr()

    def load_attr(self, name: str) -> None:
        self.emit("LOAD_ATTR", name)

    def store_attr(self, name: str) -> None:
        """value, object -> (nothing)."""
        self.emit("STORE_ATTR", name)

    def delete_attr(self, name: str) -> None:
        self.emit("DELETE_ATTR", name)

    def binary_subscr(self) -> None:
        """container, key -> container[key]."""
        self.emit("BINARY_SUBSCR")

    def store_subscr(self) -> None:
        """value, container, key -> (nothing)."""
        self.emit("STORE_SUBSCR")

    def delete_subscr(self) -> None:
        self.emit("DELETE_SUBSCR")

    def binary(self, op: str) -> None:
        """a, b -> a op b; op is an operator as Python writes it, or an in-place one such as ``+=``."""
        self.emit("BINARY_OP", _BINARY[op])

    def compare(self, op: str) -> None:
        """a, b -> a op b."""
        n = _COMPARE[op]
        if VERSION >= (3, 13):
            n = n << 5 | _COMPARE_BITS[op]
        elif VERSION >= (3, 12):
            n = n << 4 | _COMPARE_BITS[op]
        self.emit("COMPARE_OP", n)

    def is_op(self, invert: bool = False) -> None:
        self.emit("IS_OP", int(invert))

    def build(self, what: str, n: int) -> None:
        """Pop n entries (2n for a map) and push a TUPLE, LIST, SET, MAP, STRING or SLICE."""
        self.emit(f"BUILD_{what.upper()}", n)

    def unpack(self, n: int) -> None:
        """A sequence of n values -> the values, the first on top."""
        self.emit("UNPACK_SEQUENCE", n)

    # ---- stack

    def pop(self, n: int = 1) -> None:
        for _ in range(n):
            self.emit("POP_TOP")

    def copy(self, i: int = 1) -> None:
        """Push the i-th entry from the top (1: the top)."""
        self.emit("COPY", i)

    def swap(self, i: int = 2) -> None:
        """Exchange the top with the i-th entry from the top."""
        if i > 1:
            self.emit("SWAP", i)

    # ---- calls

    def callee(self, push: Callable[[], None]) -> None:
        """Push what ``push`` pushes, in the form that ``call`` and ``call_ex`` expect below the arguments."""
        if VERSION < (3, 13):
            self.emit("PUSH_NULL")
        push()
        if VERSION >= (3, 13):
            self.emit("PUSH_NULL")

    def callee_const(self, function: Any) -> None:
        self.callee(lambda: self.load_const(function))

    def callee_from_top(self) -> None:
        """Bring the callable on top of the stack into the form that ``call`` expects."""
        self.emit("PUSH_NULL")
        if VERSION < (3, 13):
            self.swap(2)

    def load_method(self, name: str) -> None:
        """object -> the method, in the form that ``call`` expects below the arguments."""
        if VERSION >= (3, 12):
            self.emit("LOAD_ATTR", name, 1)
        else:
            self.emit("LOAD_METHOD", name)

    def call(self, n: int, keywords: Sequence[str] = ()) -> None:
        """Call with n arguments, of which the last ``len(keywords)`` are named."""
        if VERSION >= (3, 13):
            if keywords:
                self.load_const(tuple(keywords))
            self.emit("CALL_KW" if keywords else "CALL", n)
            return
        if keywords:
            self.emit("KW_NAMES", tuple(keywords))
        if VERSION < (3, 12):
            self.emit("PRECALL", n)
        self.emit("CALL", n)

    def call_ex(self, kwargs: bool = False) -> None:
        """callee, tuple (, dict) -> callee(*tuple, **dict)."""
        self.emit("CALL_FUNCTION_EX", int(kwargs))

    def call_const(self, function: Any, *push: Callable[[], None]) -> None:
        """Push function(a, b, ...), each argument pushed by a callable."""
        self.callee_const(function)
        for p in push:
            p()
        self.call(len(push))

    def make_function(
        self, code: CodeType, closure: Iterable[str] = (), defaults: bool = False, kwdefaults: bool = False
    ) -> None:
        """(defaults tuple) (kwdefaults dict) -> a function of ``code`` over the cells of the named variables."""
        cells = list(closure)
        if cells:
            for name in cells:
                self.load_closure(name)
            self.build("tuple", len(cells))
        if VERSION >= (3, 13):
            self.load_const(code)
            self.emit("MAKE_FUNCTION")
            for present, flag in ((cells, 8), (kwdefaults, 2), (defaults, 1)):
                if present:
                    self.emit("SET_FUNCTION_ATTRIBUTE", flag)
            return
        self.load_const(code)
        self.emit("MAKE_FUNCTION", bool(cells) * 8 | kwdefaults * 2 | defaults)

    # ---- control

    def return_value(self) -> None:
        self.emit("RETURN_VALUE")

    def jump(self, label: Label) -> None:
        self.emit("JUMP", label)

    def pop_jump_if(self, truth: bool, label: Label) -> None:
        """Pop; jump if its truth is as given."""
        if VERSION >= (3, 13):
            self.emit("TO_BOOL")
        self.emit(f"POP_JUMP_IF_{'TRUE' if truth else 'FALSE'}", label)

    def pop_jump_if_none(self, label: Label, invert: bool = False) -> None:
        self.emit(f"POP_JUMP_IF_{'NOT_' if invert else ''}NONE", label)

    def raise_(self, n: int = 1) -> None:
        """Raise the exception on top (n = 1), or the one below it from the top (n = 2)."""
        self.emit("RAISE_VARARGS", n)

    # ---- sources

    def load_source(self, source: Source) -> None:
        """Push the value at ``source``. ValueError for the frame's function object, which bytecode cannot reach."""
        emit = _ROOTS.get(type(source))
        if emit is not None:
            emit(self, source)
            return
        assert source.base is not None
        step = _STEPS.get(type(source))
        if step is not None:
            self.load_source(source.base)
            step(self, source)
        elif isinstance(source, src.CellContentsSource) and isinstance(source.base, src.ClosureSource):
            self.emit("LOAD_DEREF", source.base.variable)
        else:
            self.callee_const(source.step)
            self.load_source(source.base)
            self.call(1)


_LOAD_LOCAL = "LOAD_FAST_CHECK" if VERSION >= (3, 12) else "LOAD_FAST"


def _load_local(e: Emitter, s: src.LocalSource) -> None:
    e.emit("LOAD_DEREF" if s.local in e.code.cellvars else "LOAD_FAST", s.local)


def _load_function(e: Emitter, s: src.FunctionSource) -> None:
    raise ValueError(f"bytecode cannot load the function object of its own frame ({s.name()})")


def _load_global(e: Emitter, s: src.GlobalSource) -> None:
    if s.scope is None:
        e.load_global(s.key)
    else:
        e.load_const(s.scope)
        _subscript(e, s)


def _load_globals(e: Emitter, s: src.GlobalsSource) -> None:
    if s.scope is None:
        e.call_const(globals)
    else:
        e.load_const(s.scope)


def _load_module(e: Emitter, s: src.ModuleSource) -> None:
    e.load_const(sys.modules)
    _subscript(e, s)


def _subscript(e: Emitter, s: Source) -> None:
    e.load_const(s.key)
    e.binary_subscr()


def _instance_attr(e: Emitter, s: Source) -> None:
    e.load_attr("__dict__")
    _subscript(e, s)


def _member(e: Emitter, s: Source) -> None:
    table, name = s.key
    e.load_attr("__dict__")
    for key in (table, name):
        e.load_const(key)
        e.binary_subscr()


def _tensor_int(e: Emitter, s: Source) -> None:
    what, dim = s.key
    e.load_method(what)
    if what == "storage_offset":
        e.call(0)
    else:
        e.load_const(dim)
        e.call(1)


_ROOTS: dict[type[Source], Callable[[Emitter, Any], None]] = {
    src.LocalSource: _load_local,
    src.FunctionSource: _load_function,
    src.ClosureSource: lambda e, s: e.load_closure(s.variable),
    src.GlobalSource: _load_global,
    src.GlobalsSource: _load_globals,
    src.BuiltinSource: lambda e, s: e.load_global(s.key),
    src.ModuleSource: _load_module,
    src.ConstSource: lambda e, s: e.load_const(s.key),
}
_STEPS: dict[type[Source], Callable[[Emitter, Any], None]] = {
    src.AttrSource: lambda e, s: e.load_attr(s.key),
    src.InstanceAttrSource: _instance_attr,
    src.MemberSource: _member,
    src.ItemSource: _subscript,
    src.TensorIntSource: _tensor_int,
}

"""Programs and kernels as runnable Python: for people, golden tests and bisection.

>>> print(kernel_text(softmax))
@kernel
def softmax(h, out):  # h: f32[64, 256], out: f32[64, 256]
    for i0 in loop(64):
        for i1 in fold(256):
            v0 = h[i0, i1]
            v1 = reduce_max(v0)
        for i1 in fold(256):
            v2 = v0 - v1
            v3 = prims.exp(v2)
            ...

A reduction prints inside the loop that feeds it and its result is read after that loop.  A point-level value of an
earlier loop that a later loop reads is kept or recomputed: the generator's choice.  ``printed`` is what the text
imports; ``load_text(program)`` runs it.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable
from typing import Any

import torch

from braze.ir import Expr, Symbol, symbols, to_str
from braze.ir.printer import Names
from braze.runtime.spelling import spell

from .ir import (
    Buffer,
    Compute,
    Const,
    Extern,
    Index,
    Instr,
    Kernel,
    Load,
    Program,
    Reduce,
    Store,
    Strided,
    Value,
    operands,
)

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
_OWN = ("convert", "bitcast", "philox", "check_index")  # computations that are no primitives
_RUNTIME = ("loop", "fold", "kernel", "typed", "bitcast", "philox", "check_index", "reused", "spelled")
_HEAD = "import torch\n\nfrom braze import prims"


class _Scope:
    """Unique Python names by object."""

    def __init__(self, taken: set[str]) -> None:
        self.names: dict[Any, str] = {}
        self.taken = taken

    def fresh(self, base: str) -> str:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in base) or "v"
        base = f"v{base}" if base[0].isdigit() or keyword.iskeyword(base) else base
        name, n = base, 1
        while name in self.taken:
            name, n = f"{base}_{n}", n + 1
        self.taken.add(name)
        return name

    def __getitem__(self, x: Any) -> str:
        if x not in self.names:
            self.names[x] = self.fresh(x.name)
        return self.names[x]


def _literal(value: Any, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        value = float(value)
        return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"
    return repr(bool(value) if dtype == torch.bool else int(value))


class _Printer:
    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.point = point_level(kernel)
        self.scope = _Scope({"prims", "torch", *_RUNTIME, *(f"reduce_{i.kind}" for i in _reductions(kernel))})
        self.values: dict[Any, str] = {}
        for s in sorted(size_symbols(kernel), key=lambda s: s.name):
            _ = self.scope[s]
        for a in (*kernel.x, *kernel.r):
            _ = self.scope[a.index]
        self.count = 0

    def value(self, v: Value) -> str:
        """An operand of which only the value counts: constants get their dtype."""
        return f"typed({self.values[v]}, {v.dtype})" if isinstance(v, Const) else self.values[v]

    def index(self, e: Any, indirect: dict[Symbol, str] | None = None) -> str:
        def atom(a: Any) -> str:
            if isinstance(a, Symbol):
                return (indirect or {}).get(a) or self.scope[a]
            x, y = (to_str(e, atom) for e in a.args)
            if a.op in ("min", "max"):
                return f"prims.{a.op}imum({x}, {y})"
            x, y = (f"({t})" if " " in t or "*" in t else t for t in (x, y))
            return f"({x} {'//' if a.op == 'floordiv' else '%'} {y})"

        return to_str(e, atom)

    def place(self, i: Load | Store) -> str:
        spelled = {s: self.value(v) for s, v in i.indirect}
        text = self.scope[i.buffer]
        if isinstance(i, Store):
            text += {"set": "", "atomic_add": ".accumulate", "sum": ".sum"}[i.mode]
        if i.mask is not None:
            other = f", {_literal(i.other, i.dtype)}" if isinstance(i, Load) else ""
            text += f".where({self.value(i.mask)}{other})"
        return f"{text}[{', '.join(self.index(e, spelled) for e in i.index) or '()'}]"

    def expr(self, i: Instr) -> str:
        if isinstance(i, Load):
            return self.place(i)
        if isinstance(i, Index):
            plain = i.dtype == torch.int64 and symbols(i.expr) & {a.index for a in self.kernel.x + self.kernel.r}
            return self.index(i.expr) if plain else f"typed({self.index(i.expr)}, {i.dtype})"
        if isinstance(i, Reduce):
            return f"reduce_{i.kind}({self.value(i.value)})"
        assert isinstance(i, Compute)
        return self.compute(i)

    def compute(self, i: Compute) -> str:
        if i.fn in ("convert", "bitcast"):
            return f"{'typed' if i.fn == 'convert' else 'bitcast'}({self.value(i.args[0])}, {i.dtype})"
        typed = {a.dtype for a in i.args if not isinstance(a, Const)}
        bare = i.fn not in _OWN
        args = [self.values[a] if bare and a.dtype in typed else self.value(a) for a in i.args]
        kind = i.args[0].dtype if i.args else None
        if i.fn in _INFIX and len(args) == 2 and kind != torch.bool and (i.fn != "div" or i.dtype.is_floating_point):
            return f"{args[0]} {_INFIX[i.fn]} {args[1]}"
        args += [f"{k}={self.index(v) if isinstance(v, Expr) else v}" for k, v in i.attrs]
        return f"{'prims.' if bare else ''}{i.fn}({', '.join(args)})"

    def line(self, i: Instr) -> str | None:
        if isinstance(i, Store):
            value = _literal(i.value.value, i.value.dtype) if isinstance(i.value, Const) else self.value(i.value)
            return f"{self.place(i)} = {value}"
        if isinstance(i, Const):
            self.values[i] = _literal(i.value, i.dtype)
            return None
        text = self.expr(i)
        self.values[i] = f"v{self.count}"
        self.count += 1
        return f"{self.values[i]} = {text}"

    def text(self) -> str:
        k = self.kernel
        buffers = list(dict.fromkeys(i.buffer for i in k.body if isinstance(i, (Load, Store))))
        note = ", ".join(f"{self.scope[b]}: {b.type}" for b in buffers)
        params = [self.scope[b] for b in buffers] + [self.scope[s] for s in kernel_sizes(k)]
        self.scope.taken |= {f"v{n}" for n in range(len(k.body))}
        lines = ["@kernel", f"def {self.name}({', '.join(params)}):  # {note}"]
        pad = "    "
        for a in k.x:
            lines.append(f"{pad}for {self.scope[a.index]} in loop({self.index(a.size)}):")
            pad += "    "
        deep = False
        reduced: set[Value] = set()
        for i in k.body:
            inside = i in self.point or isinstance(i, Reduce)
            body = self.line(i)
            if body is None:
                continue
            if inside and (not deep or any(v in reduced for v in operands(i))):
                inner = pad
                for a in k.r:
                    lines.append(f"{inner}for {self.scope[a.index]} in fold({self.index(a.size)}):")
                    inner += "    "
                deep, reduced = True, set()
            elif not inside:
                deep = False
            if isinstance(i, Reduce):
                reduced.add(i)
            lines.append(pad + "    " * (len(k.r) if inside else 0) + body)
        return "\n".join(lines)


def _reductions(kernel: Kernel) -> list[Reduce]:
    return [i for i in kernel.body if isinstance(i, Reduce)]


def size_symbols(kernel: Kernel) -> set[Symbol]:
    """The symbolic sizes that a kernel mentions."""
    own = {a.index for a in kernel.x + kernel.r}
    used = symbols(*(a.size for a in kernel.x + kernel.r))
    for i in kernel.body:
        if isinstance(i, (Load, Store)):
            used |= symbols(*i.index) - {s for s, _ in i.indirect}
        elif isinstance(i, Index):
            used |= symbols(i.expr)
        elif isinstance(i, Compute):
            used |= symbols(*(v for _, v in i.attrs if isinstance(v, (int, Expr))))
    return used - own


def kernel_sizes(kernel: Kernel) -> list[Symbol]:
    """The same, in the order in which the printed kernel takes them."""
    return sorted(size_symbols(kernel), key=lambda s: s.name)


def point_level(kernel: Kernel) -> set[Any]:
    """The instructions that depend on an r axis (not through a ``Reduce``)."""
    r = {a.index for a in kernel.r}
    out: set[Any] = set()
    for i in kernel.body:
        if isinstance(i, Reduce):
            continue
        if any(v in out for v in operands(i)):
            out.add(i)
        elif isinstance(i, (Load, Store)) and r & symbols(*i.index):
            out.add(i)
        elif isinstance(i, Index) and r & symbols(i.expr):
            out.add(i)
    return out


def kernel_text(kernel: Kernel, name: str = "") -> str:
    """One kernel as text."""
    return _Printer(kernel, name or kernel.name).text()


class _ProgramPrinter:
    """The host side: memory, kernel calls, vendor calls."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.scope = _Scope({"prims", "torch", "_c", program.name, *_RUNTIME})
        self.spelling = Names()
        self.kernels: list[str] = []
        self.reductions: set[str] = set()
        self.lines: list[str] = []
        self.ready: set[Buffer] = set(program.constants)

    def value(self, x: Any) -> str:
        if isinstance(x, Strided):
            name, t = self.scope[x.buffer], x.buffer.type
            if x.is_whole:
                return name
            shift = x.offset - t.offset
            offset = f"{name}.storage_offset()" + (f" + {self.value(shift)}" if shift != 0 else "")
            return f"{name}.as_strided({self.value(x.sizes)}, {self.value(x.strides)}, {offset})"
        if isinstance(x, list):
            return f"[{', '.join(map(self.value, x))}]"
        if type(x) is tuple:
            return f"({', '.join(map(self.value, x))}{',' if len(x) == 1 else ''})"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{k!r}: {self.value(v)}" for k, v in x.items()) + "}"
        return self.spelling.value(x)

    def allocate(self, b: Buffer) -> None:
        self.ready.add(b)
        t, name, old = b.type, self.scope[b], self.program.reuse.get(b)
        shape = f"{self.value(t.sizes)}, {self.value(t.strides)}"
        if old is not None:
            self.lines.append(f"{name} = reused({self.scope[old]}, {shape}, {t.dtype})")
        else:
            device = "" if t.device.type == "cpu" else f", device={self.value(t.device)}"
            self.lines.append(f"{name} = torch.empty_strided({shape}, dtype={t.dtype}{device})")

    def kernel(self, k: Kernel) -> None:
        name = self.scope.fresh(k.name)
        self.kernels.append(kernel_text(k, name))
        self.reductions |= {f"reduce_{i.kind}" for i in _reductions(k)}
        for b in k.writes:
            if b not in self.ready:
                self.allocate(b)
        buffers = dict.fromkeys(i.buffer for i in k.body if isinstance(i, (Load, Store)))
        args = [self.scope[b] for b in buffers] + [s.name for s in kernel_sizes(k)]
        self.lines.append(f"{name}({', '.join(args)})")

    def extern(self, step: Extern) -> None:
        args = [self.value(a) for a in step.args] + [f"{k}={self.value(v)}" for k, v in step.kwargs.items()]
        outs = ", ".join("_" if b is None else self.scope[b] for b in step.outputs)
        several = len(step.outputs) > 1 or gives_several(step.target)
        outs += "," if several and len(step.outputs) == 1 else ""
        self.ready |= {b for b in step.outputs if b is not None}
        call = f"{self.spelling.target(step.target)}({', '.join(args)})"
        self.lines.append(f"{outs} = {call}" if any(step.outputs) else call)

    def constants(self) -> list[str]:
        rows = [(self.scope[b], spell(t), t) for b, t in self.program.constants.items()]
        return [f"{name} = {text or self.spelling.slot(t)}" for name, text, t in rows]

    def text(self) -> str:
        program = self.program
        sizes = [i for i in program.inputs if isinstance(i, Symbol)]
        inside = [s for i in program.inputs if isinstance(i, Expr) for s in symbols(i)]
        self.scope.taken |= {s.name for s in (*sizes, *inside)}
        constants = self.constants()
        params = []
        for slot in program.inputs:
            if isinstance(slot, Buffer):
                self.ready.add(slot)
            named = isinstance(slot, (Buffer, Symbol))
            params.append(slot.name if isinstance(slot, Symbol) else self.scope[slot] if named else self.size(slot))
        for step in program.steps:
            (self.kernel if isinstance(step, Kernel) else self.extern)(step)  # type: ignore[arg-type]
        self.lines.append(f"return {self.value(program.outputs)}")
        used = [n for n in (*_RUNTIME, *sorted(self.reductions)) if self.uses(n, constants)]
        head = _HEAD + (f"\nfrom braze.inductor.loops.printed import {', '.join(used)}" if used else "")
        if self.spelling.table:
            head += f"\n# _c: {len(self.spelling.table)} objects without a spelling"
        host = "\n    ".join([f"def {program.name}({', '.join(params)}):", *self.lines])
        return "\n\n".join([head, *(["\n".join(constants)] if constants else []), *self.kernels, host])

    def size(self, slot: Any) -> str:
        """An input that is a size: an expression of one symbol is what the symbol is read from."""
        found = symbols(slot) if isinstance(slot, Expr) else set()
        return next(iter(found)).name if len(found) == 1 and str(slot) in {s.name for s in found} else "_"

    def uses(self, name: str, constants: list[str]) -> bool:
        call = "@kernel" if name == "kernel" else f"{name}("
        return any(call in part for part in (*self.kernels, *self.lines, *constants))


def gives_several(target: Any) -> bool:
    """Whether an operator returns a tuple or list of tensors."""
    schema = getattr(target, "_schema", None)
    returns = [str(r.type) for r in schema.returns] if schema is not None else []
    return len(returns) > 1 or any("[]" in t or "List" in t for t in returns)


def to_text(program: Program) -> str:
    """The kernels, then the calls in order: a module that defines ``<program.name>(*inputs) -> outputs``. Objects
    without a spelling print as ``_c[i]``."""
    return _ProgramPrinter(program).text()


def load_text(program: Program) -> Callable[..., Any]:
    """The printed text, run: a function of the program's inputs."""
    printer = _ProgramPrinter(program)
    names: dict[str, Any] = {"_c": printer.spelling.table}
    exec(compile(printer.text(), f"<braze loops {program.name}>", "exec"), names)  # noqa: S102
    made: Callable[..., Any] = names[program.name]
    return made

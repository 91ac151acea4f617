"""Programs and kernels as Python-like text, for people and golden tests.

>>> print(kernel_text(softmax))
def softmax(h, out):  # h: f32[64, 256], out: f32[64, 256]
    for i0 in range(64):
        for i1 in range(256):
            v0 = h[i0, i1]
            v1 = reduce_max(v0)
        for i1 in range(256):
            v2 = exp(v0 - v1)
            ...

A reduction prints inside the loop that feeds it and its result is read after that loop.  A point-level value of an
earlier loop that a later loop reads is kept or recomputed: the generator's choice.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.ir import SHORT, symbols, to_str

from .ir import (
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


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[Any, str] = {}
        self.point = point_level(kernel)

    def value(self, v: Value) -> str:
        return self.names[v]

    def place(self, i: Load | Store) -> str:
        spelled = {s: self.names[v] for s, v in i.indirect}

        def atom(a: Any) -> str:
            if a in spelled:
                return spelled[a]
            if hasattr(a, "args"):
                x, y = (to_str(e, atom) for e in a.args)
                x, y = (f"({t})" if " " in t or "*" in t else t for t in (x, y))
                infix = {"floordiv": "//", "mod": "%"}.get(a.op)
                return f"({x} {infix} {y})" if infix else f"{a.op}({x}, {y})"
            return str(a.key)

        return f"{i.buffer.name}[{', '.join(to_str(e, atom) for e in i.index)}]"

    def expr(self, i: Instr) -> str:
        if isinstance(i, Load):
            text = self.place(i)
            return text if i.mask is None else f"{text} if {self.value(i.mask)} else {i.other!r}"
        if isinstance(i, Index):
            return str(i.expr)
        if isinstance(i, Reduce):
            return f"reduce_{i.kind}({self.value(i.value)})"
        assert isinstance(i, Compute)
        args = [self.value(a) for a in i.args]
        if i.fn in _INFIX and len(args) == 2:
            return f"{args[0]} {_INFIX[i.fn]} {args[1]}"
        if i.fn == "convert":
            return f"{SHORT.get(i.dtype, i.dtype)}({args[0]})"
        return f"{i.fn}({', '.join(args + [f'{k}={v}' for k, v in i.attrs])})"

    def line(self, i: Instr) -> str | None:
        if isinstance(i, Store):
            op = "+=" if i.mode == "atomic_add" else "="
            when = f"if {self.value(i.mask)}: " if i.mask is not None else ""
            return f"{when}{self.place(i)} {op} {self.value(i.value)}"
        if isinstance(i, Const):
            self.names[i] = repr(i.value) if i.dtype != torch.float32 or i.value == i.value else "nan"
            return None
        name = f"v{sum(n.startswith('v') for n in self.names.values())}"
        text = self.expr(i)
        self.names[i] = name
        return f"{name} = {text}"

    def text(self) -> str:
        k = self.kernel
        buffers = list(dict.fromkeys(i.buffer for i in k.body if isinstance(i, (Load, Store))))
        note = ", ".join(f"{b.name}: {b.type}" for b in buffers)
        lines = [f"def {k.name}({', '.join(b.name for b in buffers)}):  # {note}"]
        pad = "    "
        for a in k.x:
            lines.append(f"{pad}for {a.index.name} in range({a.size}):")
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
                    lines.append(f"{inner}for {a.index.name} in range({a.size}):")
                    inner += "    "
                deep, reduced = True, set()
            elif not inside:
                deep = False
            if isinstance(i, Reduce):
                reduced.add(i)
            lines.append(pad + "    " * (len(k.r) if inside else 0) + body)
        return "\n".join(lines)


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


def kernel_text(kernel: Kernel) -> str:
    """One kernel as text."""
    return _Printer(kernel).text()


def _strided(x: Any) -> str:
    if isinstance(x, Strided):
        if x.is_whole:
            return x.buffer.name
        return f"{x.buffer.name}.as_strided({_tuple(x.sizes)}, {_tuple(x.strides)}, {x.offset})"
    if isinstance(x, (list, tuple)):
        inner = ", ".join(map(_strided, x))
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' if len(x) == 1 else ''})"
    return str(x)


def _tuple(xs: Any) -> str:
    return "(" + ", ".join(map(str, xs)) + ("," if len(xs) == 1 else "") + ")"


def _extern_text(step: Extern) -> str:
    args = [_strided(a) for a in step.args] + [f"{k}={_strided(v)}" for k, v in step.kwargs.items()]
    outs = ", ".join("_" if b is None else b.name for b in step.outputs)
    name = getattr(step.target, "qualified_name", None) or str(step.target)
    return f"{outs} = {name}({', '.join(args)})"


def to_text(program: Program) -> str:
    """The kernels, then the calls in order."""
    parts: list[str] = []
    lines = [f"def {program.name}({', '.join(str(getattr(i, 'name', i)) for i in program.inputs)}):"]
    for step in program.steps:
        if isinstance(step, Kernel):
            parts.append(kernel_text(step))
            for b in step.writes:
                if b in program.reuse:
                    lines.append(f"    {b.name} = reuse({program.reuse[b].name})")
            names = dict.fromkeys(i.buffer.name for i in step.body if isinstance(i, (Load, Store)))
            lines.append(f"    {step.name}({', '.join(names)})")
        else:
            lines.append("    " + _extern_text(step))
    lines.append(f"    return {_strided(program.outputs)}")
    return "\n\n".join([*parts, "\n".join(lines)])

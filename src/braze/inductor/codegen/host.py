"""The host program: readable Python that runs a program's steps, ``def call(args) -> outputs``.

``emit_host(program)`` gives the function's text; names that it uses apart from those of ``braze.runtime.host``
(kernels, vendor calls, constants) come from ``namespace(program, kernels)``.  Memory is freed by ``del`` after the
last use; a buffer whose plan lets it take over another's memory is that tensor under a new name when their layouts
agree.  Everything runs below autograd: no vendor call records a graph.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from braze.inductor.loops import Buffer, Extern, Kernel, Program, Step, Strided, canonical
from braze.ir import Expr, IntLike, Symbol, leaves, product, row_major, symbols, to_str
from braze.runtime.cuda_group import TritonGroup
from braze.runtime.host import NAMES

from .externs import binding_of
from .llvm_depthwise import Depthwise, depthwise_gradient
from .llvm_group import group_arguments, group_key
from .stages import Stage, touched
from .triton_group import emit_groups

RESERVED = frozenset(("args", "torch", "call", "given", *NAMES))


class HostWriter:
    """Writes one program's host function and collects the objects that it names."""

    def __init__(self, program: Program, order: Callable[[Kernel], tuple[list[Buffer], list[str]]]) -> None:
        self.program, self.order = program, order
        self.names: dict[Any, str] = {}
        self.taken: set[str] = set(RESERVED)
        self.objects: dict[str, Any] = {}
        self.kernels: dict[str, str] = {}  # canonical key -> name
        self.groups: dict[str, TritonGroup] = {}  # the launches of groups, by the key in ``kernels``
        self.lines: list[str] = []
        self.calls: dict[int, int] = {}  # line of the text (from 1) -> the step that it runs
        self.fixed: set[Buffer] = set()  # tensors that the program does not own: inputs and constants
        self.fresh: set[Buffer] = set()  # allocated here: storage offset 0

    # -- names

    def unique(self, base: str) -> str:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in base) or "v"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = "v" + base
        name, n = base, 1
        while name in self.taken:
            name, n = f"{base}_{n}", n + 1
        self.taken.add(name)
        return name

    def name(self, b: Buffer) -> str:
        if b not in self.names:
            self.names[b] = self.unique(b.name)
        return self.names[b]

    def object(self, value: Any, base: str) -> str:
        """The name under which the function sees an object that has no spelling."""
        for name, known in self.objects.items():
            if known is value:
                return name
        name = self.unique(base)
        self.objects[name] = value
        return name

    # -- expressions

    def value(self, x: Any) -> str:
        if isinstance(x, Strided):
            return self.view(x)
        if isinstance(x, tuple):
            inner = ", ".join(map(self.value, x))
            if type(x) is not tuple:
                maker = self.object(type(x), type(x).__name__)
                return f"{maker}({inner})" if hasattr(x, "_fields") else f"{maker}(({inner},))"
            return f"({inner}{',' if len(x) == 1 else ''})"
        if isinstance(x, list):
            return f"[{', '.join(map(self.value, x))}]"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{k!r}: {self.value(v)}" for k, v in x.items()) + "}"
        if isinstance(x, Expr):
            return to_str(x)
        if isinstance(x, Symbol):
            return x.name
        if isinstance(x, float) and type(x) is float and (x != x or abs(x) == float("inf")):
            return f"float('{x}')"
        if (
            x is None
            or type(x) in (int, float, bool, str, bytes, complex)
            or isinstance(x, (torch.dtype, torch.layout))
        ):
            return repr(x)
        if isinstance(x, torch.memory_format):
            return str(x)
        if isinstance(x, torch.device):
            return self.device(x)
        return self.object(x, "const")

    def device(self, x: torch.device) -> str:
        """A device's name in the function: making one takes as long as a quarter of an allocation."""
        known = next((name for name, o in self.objects.items() if isinstance(o, torch.device) and o == x), None)
        return known or self.object(x, str(x))

    def sizes(self, values: tuple[IntLike, ...]) -> str:
        return self.value(tuple(values))

    def view(self, s: Strided) -> str:
        name, t = self.name(s.buffer), s.buffer.type
        if s.is_whole:
            return name
        if len(s.sizes) == 2 and s.offset == t.offset and s.sizes == t.sizes[::-1] and s.strides == t.strides[::-1]:
            return f"{name}.t()"
        if (
            s.offset == t.offset
            and s.sizes
            and all(isinstance(n, int) and n > 0 for n in (*s.sizes, *t.sizes))
            and row_major(s.sizes, s.strides)
            and t.is_contiguous
            and product(s.sizes) == t.numel
        ):
            return f"{name}.view({', '.join(map(self.value, s.sizes))})"
        offset = self.value(s.offset - t.offset)
        if s.buffer not in self.fresh:
            offset = f"{name}.storage_offset()" + ("" if offset == "0" else f" + {offset}")
        return f"as_strided({name}, {self.sizes(s.sizes)}, {self.sizes(s.strides)}, {offset})"

    # -- statements

    def emit(self, text: str) -> None:
        self.lines.append("    " * 2 + text)

    def write(self, stages: Sequence[Stage] = ()) -> str:
        """The function's text. With ``stages`` it is a generator: after each stage's step it yields a list of that
        stage's outputs, to which it keeps no reference; everything that is not an output stays with it."""
        program, ends = self.program, dict(stages)
        head = [f"def call(args):  # {program.name}"]
        params: list[str] = []
        for slot in program.inputs:
            if isinstance(slot, Buffer):
                self.fixed.add(slot)
                params.append(self.name(slot))
            elif isinstance(slot, Symbol):
                self.taken.add(slot.name)
                params.append(slot.name)
            else:
                params.append(self.unique("scalar"))
        if params:
            head.append(f"    {', '.join(params)}{',' if len(params) == 1 else ''} = args")
            head.append("    args.clear()  # the caller's list: saved tensors are freed after their last use")
        for b, t in program.constants.items():
            self.fixed.add(b)
            self.names[b] = self.object(t, b.name)
        head.append("    with below_autograd():")
        last = last_uses(program)
        groups = dict(program.groups)
        n = 0
        while n < len(program.steps):
            step, end = program.steps[n], groups.get(n, n + 1)
            if end > n + 1 and isinstance(step, Kernel) and step.device.type == "cuda":
                run = adjacent(program, n)
                end = run[-1][1]
                line = self._groups([program.steps[first:last_one] for first, last_one in run])
            elif end > n + 1:
                line = self._group(program.steps[n:end])
            else:
                line = self._kernel(step) if isinstance(step, Kernel) else self._extern(step)
            self.calls[len(head) + line] = n
            dead = [self.name(b) for k in range(n, end) for b in last.get(k, ()) if b in self.names]
            if dead:
                self.emit(f"del {', '.join(dict.fromkeys(dead))}")
            ready = [k for k in range(n, end) if k in ends]
            for k in ready:
                self._hand_over(ends[k], end == len(program.steps) and k == ready[-1])
            n = end
        if not stages:
            self.emit(f"return {self.value(program.outputs)}")
        return "\n".join(head + self.lines) + "\n"

    def _hand_over(self, outputs: Sequence[int], end: bool) -> None:
        chosen = [self.program.outputs[k] for k in outputs]
        self.emit(f"given = {self.value(chosen)}")
        names = dict.fromkeys(
            self.name(s.buffer) for s in chosen if isinstance(s, Strided) and s.buffer not in self.program.constants
        )
        if names:
            self.emit(f"del {', '.join(names)}")
        self.lines.append("    yield given")
        if not end:
            self.lines.append("    with below_autograd():")

    def _allocate(self, b: Buffer) -> None:
        t = b.type
        name = self.name(b)
        old = self.program.reuse.get(b)
        if old is None or old in self.fresh:  # an input that is overwritten lies anywhere in its storage
            self.fresh.add(b)
        if old is not None:
            u = old.type
            if (u.sizes, u.strides, u.dtype) == (t.sizes, t.strides, t.dtype):
                self.emit(f"{name} = {self.name(old)}")
            else:
                self.emit(
                    f"{name} = reused({self.name(old)}, {self.sizes(t.sizes)}, {self.sizes(t.strides)}, {t.dtype})"
                )
            return
        device = "" if t.device.type == "cpu" else f", device={self.value(t.device)}"
        self.emit(f"{name} = empty_strided({self.sizes(t.sizes)}, {self.sizes(t.strides)}, dtype={t.dtype}{device})")

    def _kernel(self, k: Kernel) -> int:
        """Call a kernel; the number of the call's line, from 1."""
        key = canonical(k).key
        name = self.kernels.get(key) or self.kernels.setdefault(key, self.unique(k.name))
        self._make_room(k)
        buffers, ints = self.order(k)
        note = ", ".join(dict.fromkeys(op for op, _ in k.origin))
        self.emit(f"{name}({', '.join([*(self.name(b) for b in buffers), *ints])})" + (f"  # {note}" if note else ""))
        return len(self.lines)

    def _make_room(self, k: Kernel) -> None:
        for b in k.writes:
            if b not in self.fixed and b not in self.fresh and b not in self.names:
                self._allocate(b)

    def _group(self, steps: Sequence[Step]) -> int:
        """Call one kernel for all of these; the number of the call's line, from 1."""
        kernels = [k for k in steps if isinstance(k, Kernel)]
        key = group_key(kernels)
        name = self.kernels.get(key) or self.kernels.setdefault(key, self.unique(f"{kernels[0].name}_x{len(kernels)}"))
        for k in kernels:
            self._make_room(k)
        buffers, points = group_arguments(kernels)
        note = ", ".join(dict.fromkeys(op for op, _ in kernels[0].origin))
        self.emit(f"{name}({', '.join([*map(self.name, buffers), *map(str, points)])})  # {note}")
        return len(self.lines)

    def _groups(self, groups: Sequence[Sequence[Step]]) -> int:
        """Call a card's kernels for adjacent groups; the number of the call's line, from 1."""
        kernels = [[k for k in steps if isinstance(k, Kernel)] for steps in groups]
        new = {b for members in kernels for k in members for b in k.writes} & self.program.reuse.keys()
        made = emit_groups(kernels, {b: old for b in new if (old := self.program.reuse[b]) in self.fixed})
        first = kernels[0][0]
        name = self.kernels.get(made.key) or self.kernels.setdefault(made.key, self.unique(f"{first.name}_and_like"))
        for k in (k for members in kernels for k in members):
            self._make_room(k)
        self.groups[made.key] = made.code
        note = ", ".join(dict.fromkeys(op for members in kernels for op, _ in members[0].origin))
        count = f"{len(kernels)} launches for {sum(map(len, kernels))} kernels"
        self.emit(f"{name}({', '.join(map(self.name, made.buffers))})  # {count}: {note}")
        return len(self.lines)

    def _depthwise(self, e: Extern, d: Depthwise) -> int:
        """A weight gradient by its own kernel; what else the call gives by the vendor's."""
        *args, mask = e.args
        rest = (e.outputs[0], None, e.outputs[2])
        if any(rest):
            self._vendor(Extern(e.target, (*args, [mask[0], False, mask[2]]), e.kwargs, rest, e.origin))
        out = e.outputs[1]
        assert out is not None
        self._allocate(out)
        key, source = d.source()
        name = self.kernels.get(key) or self.kernels.setdefault(key, self.unique(source.name))
        self.emit(f"{name}({', '.join([self.view(d.g), self.view(d.x), self.name(out), *map(str, d.sizes)])})")
        return len(self.lines)

    def _extern(self, e: Extern) -> int:
        d = depthwise_gradient(e)
        return self._vendor(e) if d is None else self._depthwise(e, d)

    def _vendor(self, e: Extern) -> int:
        target, spelling, trusted = binding_of(e)
        if spelling is None:
            spelling = self.object(target, getattr(e.target, "__name__", "extern").replace(".", "_"))
        args = [self.value(a) for a in e.args] + [f"{k}={self.value(v)}" for k, v in e.kwargs.items()]
        call = f"{spelling}({', '.join(args)})"
        where = next((str(loc) for _, loc in e.origin if loc is not None), "")
        note = f"  # {where}" if where else ""
        outs = [self.name(b) if b is not None else "_" for b in e.outputs]
        single = len(outs) == 1 and not _returns_several(e.target)
        if not any(e.outputs):
            self.emit(call + note)
        else:
            self.emit(f"{outs[0] if single else ', '.join(outs) + (',' if len(outs) == 1 else '')} = {call}{note}")
        line = len(self.lines)
        for b in e.outputs:
            if b is not None and not trusted:
                self.emit(f"if {self.name(b)}.stride() != {self.sizes(b.type.strides)}:")
                self.emit(f"    {self.name(b)} = restrided({self.name(b)}, {self.sizes(b.type.strides)})")
        return line


def adjacent(program: Program, first: int) -> list[tuple[int, int]]:
    """The groups on one device from step ``first`` on that follow each other."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted(program.groups):
        step = program.steps[begin]
        if begin == (out[-1][1] if out else first) and step.device == program.steps[first].device:  # type: ignore[union-attr]
            out.append((begin, end))
    return out


def last_uses(program: Program) -> dict[int, list[Buffer]]:
    """step -> the buffers to forget after it."""
    last: dict[Buffer, int] = {}
    for n, step in enumerate(program.steps):
        for b in touched(step):
            if b not in last and b in program.reuse:
                last[program.reuse[b]] = n  # its memory is taken over here
            last[b] = n
    keep = {s.buffer for s in leaves(program.outputs) if isinstance(s, Strided)}
    out: dict[int, list[Buffer]] = {}
    for b, n in last.items():
        if b not in keep and b not in program.constants:
            out.setdefault(n, []).append(b)
    return out


def _returns_several(target: Any) -> bool:
    if getattr(target, "several", False):
        return True
    schema = getattr(target, "_schema", None)
    returns = [str(r.type) for r in schema.returns] if schema is not None else []
    return len(returns) > 1 or any("[]" in t or "List" in t for t in returns)


def size_names(program: Program) -> set[str]:
    """Names of the symbolic sizes that a program's inputs give."""
    return {s.name for slot in program.inputs if isinstance(slot, (Symbol, Expr)) for s in _symbols(slot)}


def _symbols(slot: Any) -> set[Symbol]:
    return {slot} if isinstance(slot, Symbol) else symbols(slot)


def scope(writer: HostWriter, functions: Mapping[str, Any]) -> dict[str, Any]:
    """The global names of the emitted function: kernels by canonical key, vendor calls, constants."""
    from braze.runtime import host

    names: dict[str, Any] = {"torch": torch, **host.NAMES, **writer.objects}
    for key, name in writer.kernels.items():
        names[name] = functions[key]
    return names

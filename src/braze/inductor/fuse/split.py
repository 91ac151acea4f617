"""Split a reduction with too few rows for the machine: partial results of chunks of the row, then their fold.

Before: ``out[] = sum over r < 1000000 of f(x[r])``.  After: ``part[c] = sum over r < 62500 of f(x[62500*c + r])`` for
c < 16, then ``out[] = sum over c < 16 of part[c]``.  What follows the reductions at row level moves to the second
kernel.  A chunk count that does not divide the axis masks the last chunk.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from braze.inductor.loops import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Instr,
    Kernel,
    Load,
    Reduce,
    Store,
    Value,
    operands,
    point_level,
)
from braze.inductor.loops.ref import remap
from braze.ir import Expr, IntLike, Symbol, coefficient, substitute, symbol, symbol_of, tensor_type

from .passes import in_passes
from .traits import DeviceTraits

FOLDS = {"sum", "prod", "max", "min", "any", "all"}


def identity(kind: str, dtype: torch.dtype) -> Any:
    """The value that a fold ignores."""
    if kind in ("sum", "prod", "any", "all"):
        value: Any = {"sum": 0, "prod": 1, "any": False, "all": True}[kind]
        return float(value) if dtype.is_floating_point else value
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if kind == "max" else info.max


def split_reduction(kernel: Kernel, rows: int, column: bool, traits: DeviceTraits, name: str) -> list[Kernel]:
    """Two kernels for one, or the kernel itself where its reductions depend on each other or feed points."""
    late = _after_reduction(kernel)
    point = point_level(kernel)
    for i in kernel.body:
        if isinstance(i, Reduce) and (i.kind not in FOLDS or i.value in late):
            return [kernel]
        if i in late and i in point:
            return [kernel]
    units = max(rows // traits.line_elems, 1) if column else max(rows, 1)
    axis, chunks = _choose(kernel, max(2 * traits.parallel_rows // units, 2), traits.min_chunk)
    if axis is None:
        return [kernel]
    return _Splitter(kernel, axis, chunks, late, name).run()


def _after_reduction(kernel: Kernel) -> set[Any]:
    """The reductions and what depends on them."""
    late: set[Any] = set()
    for i in kernel.body:
        if isinstance(i, Reduce) or any(v in late for v in operands(i)):
            late.add(i)
    return late


def _choose(kernel: Kernel, want: int, min_chunk: int) -> tuple[Axis | None, int]:
    """The r axis to cut, the one that walks memory in the largest steps, and the number of chunks."""
    load = next((i for i in kernel.body if isinstance(i, Load) and not i.indirect and len(i.index) > 0), None)
    sizes = {a: a.size for a in kernel.r if isinstance(a.size, int)}
    if len(sizes) < len(kernel.r):
        return None, 0
    total = math.prod(sizes.values())
    want = min(want, max(total // min_chunk, 1))
    axes = sorted(kernel.r, key=lambda a: -_step(load, a)) if load is not None else list(kernel.r)
    best = max(axes[:2], key=lambda a: min(sizes[a], want))
    if want < 2:
        return None, 0
    n = sizes[best]
    want = min(want, n)
    exact = [k for k in range(want, max(want // 2, 1), -1) if n % k == 0]
    return (best, exact[0]) if exact else (best, want)


def _step(load: Load, a: Axis) -> int:
    out: IntLike = 0
    for e, s in zip(load.index, load.buffer.type.strides):
        c = coefficient(e, a.index)
        out = out + (c if c is not None else 0) * s
    return abs(out) if isinstance(out, int) else 0


class _Splitter:
    def __init__(self, kernel: Kernel, axis: Axis, chunks: int, late: set[Any], name: str) -> None:
        self.kernel, self.axis, self.late, self.name = kernel, axis, late, name
        n = axis.size
        assert isinstance(n, int)
        self.length = -(-n // chunks)
        self.chunks = -(-n // self.length)
        self.c = symbol(f"{axis.index.name}_c", 0, self.chunks - 1)
        self.inner: IntLike = symbol(f"{axis.index.name}_r", 0, self.length - 1) if self.length > 1 else 0
        self.env: dict[Symbol, IntLike] = {axis.index: self.c * self.length + self.inner}
        self.ragged = self.chunks * self.length != n
        self.body: list[Instr] = []
        self.new: dict[Any, Any] = {}
        self.parts: dict[Reduce, Buffer] = {}
        self.rows: tuple[IntLike, ...] = tuple([Expr({(a.index,): 1}) for a in kernel.x])

    def add(self, i: Any) -> Any:
        self.body.append(i)
        return i

    def run(self) -> list[Kernel]:
        k = self.kernel
        c = Axis(_sym(self.c), self.chunks)
        mask = self._mask() if self.ragged else None
        point = point_level(k)
        sizes = tuple([a.size for a in k.x])
        for i in k.body:
            if isinstance(i, Reduce):
                self._partial(i, mask, sizes)
            elif i not in self.late and not (isinstance(i, Store) and i not in point):
                self.new[i] = self.add(self._moved(i, mask if i in point else None))
        inner = [] if isinstance(self.inner, int) else [Axis(_sym(self.inner), self.length)]
        r = tuple([n for a in k.r for n in (inner if a is self.axis else [a])])
        first = Kernel(f"{k.name}_part", (c, *k.x), r, in_passes(self.body, r), k.device, k.origin)
        return [first, self._second(c)]

    def _mask(self) -> Value:
        assert isinstance(self.axis.size, int)
        at = self.add(Index(self.env[self.axis.index]))
        end = self.add(Const(self.axis.size, torch.int64))
        return self.add(Compute("lt", (at, end), torch.bool))  # type: ignore[no-any-return]

    def _both(self, mask: Value | None, own: Value | None) -> Value | None:
        if mask is None or own is None:
            return own if mask is None else mask
        return self.add(Compute("bitwise_and", (mask, own), torch.bool))  # type: ignore[no-any-return]

    def _moved(self, i: Instr, mask: Value | None) -> Instr:
        new = self.new
        if isinstance(i, (Load, Store)):
            bound = tuple([(s, new[v]) for s, v in i.indirect])
            both = self._both(mask, None if i.mask is None else new[i.mask])
            index = remap(i.index, self.env)
            if isinstance(i, Load):
                return Load(i.buffer, index, bound, both, i.other)
            return Store(i.buffer, index, new[i.value], i.mode, bound, both)
        if isinstance(i, Compute):
            return Compute(i.fn, tuple([new[a] for a in i.args]), i.dtype, i.attrs)
        if isinstance(i, Index):
            return Index(substitute(i.expr, self.env), i.dtype)
        return i

    def _partial(self, i: Reduce, mask: Value | None, sizes: tuple[IntLike, ...]) -> None:
        value = self.new[i.value]
        if mask is not None:
            other = self.add(Const(identity(i.kind, i.dtype), i.dtype))
            value = self.add(Compute("where", (mask, value, other), i.dtype))
        if self.length > 1 or len(self.kernel.r) > 1:  # else a chunk is one element
            value = self.add(Reduce(i.kind, value, i.dtype))
        part = Buffer(
            f"{self.name}_part{len(self.parts)}", tensor_type((self.chunks, *sizes), i.dtype, self.kernel.device)
        )
        self.parts[i] = part
        self.add(Store(part, (self.c, *self.rows), value))

    def _second(self, c: Axis) -> Kernel:
        k = self.kernel
        point = point_level(k)
        body: list[Instr] = []
        for i in k.body:
            if i in point:
                continue
            if isinstance(i, Reduce):
                load = Load(self.parts[i], (self.c, *self.rows))
                body += [load, made := Reduce(i.kind, load, i.dtype)]
                self.new[i] = made
            elif i in self.late:
                made_i = rebound(i, self.new)
                body.append(made_i)
                self.new[i] = made_i
            else:
                body.append(i)
                self.new[i] = i
        return Kernel(k.name, k.x, (c,), in_passes(body, (c,)), k.device, k.origin)


def rebound(i: Instr, new: dict[Any, Any]) -> Instr:
    if isinstance(i, (Load, Store)):
        bound = tuple([(s, new[v]) for s, v in i.indirect])
        mask = None if i.mask is None else new[i.mask]
        if isinstance(i, Load):
            return Load(i.buffer, i.index, bound, mask, i.other)
        return Store(i.buffer, i.index, new[i.value], i.mode, bound, mask)
    assert isinstance(i, Compute)
    return Compute(i.fn, tuple([new[a] for a in i.args]), i.dtype, i.attrs)


def _sym(e: IntLike) -> Symbol:
    s = symbol_of(e)
    assert s is not None
    return s

"""Split a reduction with too few rows for the machine: partial results of chunks of the row, then their fold.

Before: ``out[] = sum over r < 1000000 of f(x[r])``.  After: ``part[c] = sum over r < 62500 of f(x[62500*c + r])`` for
c < 16, then ``out[] = sum over c < 16 of part[c]``.  What follows the reductions at row level moves to the second
kernel.  A chunk count that does not divide the axis masks the last chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

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
from braze.ir import Expr, IntLike, Symbol, bounds, coefficient, substitute, symbol, symbol_of, tensor_type

from .passes import in_passes
from .traits import DeviceTraits

Cut = tuple[Axis, int]  # an axis, and into how many chunks
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
    if not _splits(kernel, late):
        return [kernel]
    units = max(rows // (traits.split_columns or traits.line_elems), 1) if column else max(rows, 1)
    cuts = _choose(kernel, max(2 * traits.parallel_rows // units, 2), traits.min_chunk)
    return _Splitter(kernel, cuts, late, name).run() if cuts else [kernel]


def _splits(kernel: Kernel, late: set[Any]) -> bool:
    """No reduction depends on another, and no point on a reduction."""
    point = point_level(kernel)
    folds = all(i.kind in FOLDS and i.value not in late for i in kernel.body if isinstance(i, Reduce))
    return folds and not any(i in late and i in point for i in kernel.body)


def split_short_axis(kernel: Kernel, traits: DeviceTraits, name: str) -> list[Kernel]:
    """The sum over images and pixels of each channel, where an image has few pixels: reading one channel of an image
    after the other means little from each place.  So the images are added first, in memory order, then the pixels."""
    late = _after_reduction(kernel)
    inner = _short_axes(kernel, traits)
    if not inner or not _splits(kernel, late):
        return [kernel]
    return _Splitter(kernel, inner, late, name, last=True).run()


def _short_axes(kernel: Kernel, traits: DeviceTraits) -> list[Cut]:
    """The innermost r axes that are few elements together: x axes lie between them and the long others."""
    loads = [i for i in kernel.body if isinstance(i, Load) and not i.indirect]
    walk = max(loads, key=lambda i: _share(i, kernel), default=None)
    sizes = {a: a.size for a in kernel.r if isinstance(a.size, int)}
    if walk is None or len(sizes) < len(kernel.r):
        return []
    steps = {a: _step(walk, a) for a in (*kernel.x, *kernel.r)}
    return [
        (a, sizes[a]) for a in short_axes(sizes, {a: steps[a] for a in sizes}, [steps[a] for a in kernel.x], traits)
    ]


A = TypeVar("A")


def short_axes(sizes: Mapping[A, int], steps: Mapping[A, int], rows: Sequence[int], traits: DeviceTraits) -> list[A]:
    """The innermost axes of a reduction over ``sizes``, outermost first, that are few elements together, where axes
    that are kept (with steps ``rows``) lie between them and many others. Steps in elements."""
    inner: list[A] = []
    elements = 1
    for a in sorted(sizes, key=lambda a: steps[a]):
        if steps[a] != elements or elements * sizes[a] > traits.short_axis:
            break
        inner.insert(0, a)
        elements *= sizes[a]
    others = [a for a in sizes if a not in inner]
    if len(sizes) < 2 or not inner or elements < 2 or math.prod(sizes[a] for a in others) < 2 * traits.fold_rows:
        return []
    far = min((steps[a] for a in others), default=0)
    return inner if any(elements <= step < far for step in rows) else []


def _after_reduction(kernel: Kernel) -> set[Any]:
    """The reductions and what depends on them."""
    late: set[Any] = set()
    for i in kernel.body:
        if isinstance(i, Reduce) or any(v in late for v in operands(i)):
            late.add(i)
    return late


def _choose(kernel: Kernel, want: int, min_chunk: int) -> list[Cut]:
    """The r axes to cut, those first that walk memory in the largest steps, and into how many chunks each."""
    sizes = {a: a.size for a in kernel.r if isinstance(a.size, int)}
    if len(sizes) < len(kernel.r):
        return []
    loads = [i for i in kernel.body if isinstance(i, Load) and not i.indirect]
    walk = max(loads, key=lambda i: _share(i, kernel), default=None)
    want = min(want, max(math.prod(sizes.values()) // min_chunk, 1))
    out: list[Cut] = []
    for a in kernel.r if walk is None else sorted(kernel.r, key=lambda a: -_step(walk, a)):
        n, chunks = sizes[a], min(want, sizes[a])
        if chunks > 1:
            exact = next((k for k in range(chunks, max(chunks // 2, 1), -1) if n % k == 0), chunks)
            out.append((a, exact))
            want //= exact
    return out


def _share(load: Load, kernel: Kernel) -> tuple[int, int]:
    """Ranks the accesses: how many r axes walk it, and its size."""
    return sum(_step(load, a) > 0 for a in kernel.r), bounds(load.buffer.type.nbytes)[1]


def _step(load: Load, a: Axis) -> int:
    out: IntLike = 0
    for e, s in zip(load.index, load.buffer.type.strides):
        c = coefficient(e, a.index)
        out = out + (c if c is not None else 0) * s
    return abs(out) if isinstance(out, int) else 0


class _Splitter:
    """``chunk``: the new axes, one a cut; ``inner``: what is left of a cut axis; ``env``: the cut axes over both;
    ``last``: the partial results have the chunks as their last dims."""

    def __init__(self, kernel: Kernel, cuts: list[Cut], late: set[Any], name: str, last: bool = False) -> None:
        self.kernel, self.late, self.name = kernel, late, name
        self.chunk: list[Axis] = []
        self.inner: dict[Axis, list[Axis]] = {}
        self.env: dict[Symbol, IntLike] = {}
        self.ragged: list[Axis] = []
        for axis, chunks in cuts:
            n = axis.size
            assert isinstance(n, int)
            length = -(-n // chunks)
            c = _axis(f"{axis.index.name}_c", -(-n // length))
            self.chunk.append(c)
            self.inner[axis] = [_axis(f"{axis.index.name}_r", length)] if length > 1 else []
            at = Expr({(c.index,): 1}) * length
            self.env[axis.index] = at + Expr({(self.inner[axis][0].index,): 1}) if length > 1 else at
            if c.size * length != n:
                self.ragged.append(axis)
        self.body: list[Instr] = []
        self.new: dict[Any, Any] = {}
        self.parts: dict[Reduce, Buffer] = {}
        self.dims = (*kernel.x, *self.chunk) if last else (*self.chunk, *kernel.x)
        self.place: tuple[IntLike, ...] = tuple([Expr({(a.index,): 1}) for a in self.dims])

    def add(self, i: Any) -> Any:
        self.body.append(i)
        return i

    def run(self) -> list[Kernel]:
        k = self.kernel
        mask: Value | None = None
        for axis in self.ragged:
            mask = self._both(mask, self._inside(axis))
        r = tuple([n for a in k.r for n in self.inner.get(a, [a])])
        point = point_level(k)
        for i in k.body:
            if isinstance(i, Reduce):
                self._partial(i, mask, bool(r))
            elif i not in self.late and not (isinstance(i, Store) and i not in point):
                self.new[i] = self.add(self._moved(i, mask if i in point else None))
        first = Kernel(f"{k.name}_part", self.dims, r, in_passes(self.body, r), k.device, k.origin)
        return [first, self._second()]

    def _inside(self, axis: Axis) -> Value:
        assert isinstance(axis.size, int)
        at = self.add(Index(self.env[axis.index]))
        end = self.add(Const(axis.size, torch.int64))
        return self.add(Compute("lt", (at, end), torch.bool))  # type: ignore[no-any-return]

    def _both(self, mask: Value | None, own: Value | None) -> Value | None:
        if mask is None or own is None:
            return own if mask is None else mask
        return self.add(Compute("bitwise_and", (mask, own), torch.bool))  # type: ignore[no-any-return]

    def _moved(self, i: Instr, mask: Value | None) -> Instr:
        made = rebound(i, self.new, self.env)
        if isinstance(made, (Load, Store)):
            return replace(made, mask=self._both(mask, made.mask))
        return made

    def _partial(self, i: Reduce, mask: Value | None, folds: bool) -> None:
        value = self.new[i.value]
        if mask is not None:
            other = self.add(Const(identity(i.kind, i.dtype), i.dtype))
            value = self.add(Compute("where", (mask, value, other), i.dtype))
        if folds:  # else a chunk is one element
            value = self.add(Reduce(i.kind, value, i.dtype))
        sizes = tuple([a.size for a in self.dims])
        part = Buffer(f"{self.name}_part{len(self.parts)}", tensor_type(sizes, i.dtype, self.kernel.device))
        self.parts[i] = part
        self.add(Store(part, self.place, value))

    def _second(self) -> Kernel:
        k = self.kernel
        point = point_level(k)
        body: list[Instr] = []
        for i in k.body:
            if i in point:
                continue
            if isinstance(i, Reduce):
                load = Load(self.parts[i], self.place)
                body += [load, made := Reduce(i.kind, load, i.dtype)]
                self.new[i] = made
            elif i in self.late:
                made_i = rebound(i, self.new)
                body.append(made_i)
                self.new[i] = made_i
            else:
                body.append(i)
                self.new[i] = i
        r = tuple(self.chunk)
        return Kernel(k.name, k.x, r, in_passes(body, r), k.device, k.origin)


def rebound(i: Instr, new: dict[Any, Any], env: Mapping[Symbol, IntLike] | None = None) -> Instr:
    """The instruction over new operands and, with ``env``, other axes."""
    if isinstance(i, (Load, Store)):
        bound = tuple([(s, new[v]) for s, v in i.indirect])
        mask = None if i.mask is None else new[i.mask]
        index = remap(i.index, env) if env else i.index
        if isinstance(i, Load):
            return Load(i.buffer, index, bound, mask, i.other)
        return Store(i.buffer, index, new[i.value], i.mode, bound, mask)
    if isinstance(i, Compute):
        return Compute(i.fn, tuple([new[a] for a in i.args]), i.dtype, i.attrs)
    if isinstance(i, Reduce):
        return Reduce(i.kind, new[i.value], i.dtype)
    if isinstance(i, Index) and env:
        return Index(substitute(i.expr, env), i.dtype)
    return i


def _axis(name: str, size: int) -> Axis:
    s = symbol_of(symbol(name, 0, size - 1))
    assert s is not None
    return Axis(s, size)

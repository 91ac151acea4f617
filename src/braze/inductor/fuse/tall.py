"""Column sums beside a matrix product: partial sums of as many rows as a tile of the product has.

A kernel that walks the product in chunks of rows, stores points and the sum of each column of a chunk (``split``), and
the kernels that fold those partial sums.  With chunks of ``ROWS`` rows each tile makes its own partial sums.

Before: ``part[c, n] = sum over r < 512 of f(mm[512*c + r, n]), c < 8; out[n] = sum over c < 8 of part[c, n]``.
After: ``part[c, n] = sum over r < 128 of f(mm[128*c + r, n]), c < 32; out[n] = sum over c < 32 of part[c, n]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from braze.inductor.loops import Axis, Buffer, Compute, Index, Kernel, Load, Reduce, Store, operands
from braze.inductor.loops.ref import axis_of
from braze.ir import Expr, IntLike, Symbol, contiguous_strides, symbol_of, symbols

from .joining import Steps
from .split import rebound
from .traits import Reason

ROWS = (128, 64)  # of a tile; the first that divides the product's rows

REDUCES = Reason("the kernel that reads the product reduces, so it needs whole rows")


@dataclass(frozen=True, eq=False)
class Rechunked:
    """``kernel`` with chunks of a tile's rows, and (before, after) of the kernels that fold its partial sums."""

    kernel: Kernel
    folds: tuple[tuple[Kernel, Kernel], ...]


def rechunked(kernel: Kernel, out: Buffer, steps: Steps) -> Rechunked | Reason:
    """The kernel with other chunks; a Reason where its sums are not partial sums of the product's columns."""
    if len(kernel.r) != 1 or out.type.rank != 2:
        return REDUCES
    (inner,) = kernel.r
    loads = [i for i in kernel.body if isinstance(i, Load) and i.buffer is out]
    chunk = next((a for a in kernel.x if a.index in symbols(loads[0].index[0])), None)
    rows, size = out.type.sizes[0], inner.size
    if chunk is None or not isinstance(rows, int) or not isinstance(size, int):
        return REDUCES
    tall = next((n for n in ROWS if rows % n == 0 and rows > n), 0)
    if not tall or loads[0].index[0] != _sym(chunk) * size + _sym(inner) or chunk.size != rows // size:
        return REDUCES
    stores = _partial_stores(kernel, chunk, inner)
    if stores is None:
        return REDUCES
    made = {s.buffer: _resized(s.buffer, rows // tall) for s in stores}
    folds = [_fold(f, made, chunk.size) for b in made for f in steps.readers(b)]
    readers = list(dict.fromkeys(f for b in made for f in steps.readers(b)))
    if any(f is None for f in folds) or any(b in steps.handed for b in made):
        return REDUCES
    pairs = tuple((f, g) for f in readers if isinstance(f, Kernel) and (g := _fold(f, made, chunk.size)) is not None)
    return Rechunked(_cut(kernel, chunk, inner, tall, made), pairs)


def _sym(a: Axis) -> Expr:
    return Expr({(a.index,): 1})


def _partial_stores(kernel: Kernel, chunk: Axis, inner: Axis) -> list[Store] | None:
    """The stores of sums, each at (chunk, column); None where something else is done with a sum."""
    out = []
    sums = {i for i in kernel.body if isinstance(i, Reduce)}
    if any(i.kind != "sum" or not i.dtype.is_floating_point or i.dtype.itemsize != 4 for i in sums):
        return None
    for i in kernel.body:
        used = [v for v in operands(i) if v in sums]
        if not used:
            continue
        if not isinstance(i, Store) or i.mask is not None or i.indirect or len(i.index) != 2 or i.mode != "set":
            return None
        column = symbols(i.index[1])
        if symbol_of(i.index[0]) is not chunk.index or {chunk.index, inner.index} & column:
            return None
        if not i.buffer.type.is_contiguous:
            return None
        out.append(i)
    return out or None


def _resized(b: Buffer, chunks: int) -> Buffer:
    sizes = (chunks, *b.type.sizes[1:])
    return Buffer(b.name, b.type.with_(sizes=sizes, strides=contiguous_strides(sizes)))


def _fold(step: Any, made: dict[Buffer, Buffer], chunks: IntLike) -> Kernel | None:
    """The kernel that folds partial sums, over the new ones; None where it does anything else with them."""
    if not isinstance(step, Kernel) or len(step.r) != 1 or step.r[0].size != chunks:
        return None
    (r,) = step.r
    count = next(iter(made.values())).type.sizes[0]
    new = symbol_of(axis_of(0, count, "c"))
    if new is None:
        return None
    env: dict[Symbol, IntLike] = {r.index: _sym(Axis(new, count))}
    for i in step.body:
        partial = isinstance(i, Load) and i.buffer in made
        places = i.index if isinstance(i, (Load, Store)) else (i.expr,) if isinstance(i, Index) else ()
        if partial and (symbol_of(places[0]) is not r.index or r.index in symbols(*places[1:])):
            return None
        if not partial and r.index in symbols(*places):
            return None
        if isinstance(i, Reduce) and not (i.kind == "sum" and _of_partials(i, made)):
            return None
    return replace(step, r=(Axis(new, count),), body=_rewritten(step.body, env, made))


def _of_partials(i: Reduce, made: dict[Buffer, Buffer]) -> bool:
    """Whether a sum adds partial sums, not something that is the same in every chunk."""
    v = i.value
    while isinstance(v, Compute) and v.fn == "convert":
        (v,) = v.args
    return isinstance(v, Load) and v.buffer in made


def _cut(kernel: Kernel, chunk: Axis, inner: Axis, tall: int, made: dict[Buffer, Buffer]) -> Kernel:
    """The kernel over (chunks of ``tall`` rows, rows) instead of its own chunks."""
    assert isinstance(chunk.size, int) and isinstance(inner.size, int)
    count = chunk.size * inner.size // tall
    c, r = (symbol_of(axis_of(0, n, p)) for n, p in ((count, "c"), (tall, "h")))
    assert c is not None and r is not None
    at, within = _sym(Axis(c, count)), _sym(Axis(r, tall))
    row = at * tall + within
    env: dict[Symbol, IntLike] = {chunk.index: row // inner.size, inner.index: row % inner.size}
    if inner.size % tall == 0:
        per = inner.size // tall
        env = {chunk.index: at // per, inner.index: at % per * tall + within}
    body = _rewritten(kernel.body, env, made, at)
    x = tuple([Axis(c, count) if a is chunk else a for a in kernel.x])
    return replace(kernel, x=x, r=(Axis(r, tall),), body=body)


def _rewritten(body: list[Any], env: dict[Symbol, IntLike], made: dict[Buffer, Buffer], at: IntLike = 0) -> list[Any]:
    """A body under a substitution, with other buffers; what is stored to those lies at row ``at``."""
    new: dict[Any, Any] = {}
    out = []
    for i in body:
        got = rebound(i, new, env)
        if isinstance(got, (Load, Store)) and got.buffer in made:
            index = (at, *got.index[1:]) if isinstance(got, Store) else got.index
            got = replace(got, buffer=made[got.buffer], index=index)
        new[i] = got
        out.append(got)
    return out

"""Padding, triangles, diagonals and the derivatives of views: placing a tensor inside a larger one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.errors import Unsupported
from braze.fake.layout import overlaps
from braze.ir import IntLike, Node, known_eq, known_le

from ..builder import Builder, rounded
from ..prim import PRIMS
from ..registry import decomposes, register
from .shape import slice_bounds, wrap_index


def pad(b: Builder, x: Node, dim: int, low: IntLike, high: IntLike, value: Any = 0) -> Node:
    """low elements before and high after, in one dim."""
    if known_eq(low, 0) and known_eq(high, 0):
        return x
    r = range(x.val.rank)
    lows, highs = (tuple(n if d == dim else 0 for d in r) for n in (low, high))
    return b.call(PRIMS["pad"], x, lows, highs, rounded(value, x.val.dtype))


@decomposes("constant_pad_nd")
def constant_pad_nd(b: Builder, self: Node, pad: Sequence[IntLike], value: Any = 0) -> Node:
    rank = self.val.rank
    low: list[IntLike] = [0] * rank
    high: list[IntLike] = [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    x = self
    for d in range(rank):  # negative padding cuts
        cut = [(-p if known_le(p, -1) else 0) for p in (low[d], high[d])]
        x = b.slice(x, d, cut[0], x.val.sizes[d] - cut[1])
        low[d], high[d] = low[d] + cut[0], high[d] + cut[1]
    if all(known_eq(p, 0) for p in low + high):
        return x
    return b.call(PRIMS["pad"], x, tuple(low), tuple(high), rounded(value, x.val.dtype))


# -- triangles and diagonals -----------------------------------------------------------------------------------------


def _triangle(b: Builder, x: Node, diagonal: int, upper: bool) -> Node:
    rows, cols = b.iota_along(x.val, x.val.rank - 2), b.iota_along(x.val, x.val.rank - 1)
    gap = b.sub(cols, rows)
    keep = b.ge(gap, diagonal) if upper else b.le(gap, diagonal)
    return b.where(keep, x, False if x.val.dtype == b.truth(x).val.dtype else 0)


@decomposes("tril")
def tril(b: Builder, self: Node, diagonal: int = 0) -> Node:
    return _triangle(b, self, diagonal, False)


@decomposes("triu")
def triu(b: Builder, self: Node, diagonal: int = 0) -> Node:
    return _triangle(b, self, diagonal, True)


def on_diagonal(b: Builder, x: Node, n: IntLike, m: IntLike, offset: int) -> Node:
    """x (…, length) on a diagonal of zeros (…, n, m): spread by m + 1, padded, folded."""
    *lead, length = x.val.sizes
    k = len(lead)
    start = offset if offset >= 0 else -offset * m
    if known_eq(length, 0):
        return b.full((*lead, n, m), 0, x.val.dtype, x.val.device)
    spread = spread_out(b, x, k, m + 1)
    used = (length - 1) * (m + 1) + 1
    return b.reshape(pad(b, spread, k, start, n * m - start - used), (*lead, n, m))


def spread_out(b: Builder, x: Node, dim: int, step: IntLike) -> Node:
    """step - 1 zeros between neighbours along dim: size (n - 1) * step + 1."""
    if known_eq(step, 1):
        return x
    n = x.val.sizes[dim]
    wide = pad(b, b.unsqueeze(x, dim + 1), dim + 1, 0, step - 1)
    flat = b.reshape(wide, (*x.val.sizes[:dim], n * step, *x.val.sizes[dim + 1 :]))
    return b.slice(flat, dim, 0, (n - 1) * step + 1)


def _back(rank: int, dim1: int, dim2: int) -> tuple[int, ...]:
    """The permutation that puts the last two dims at dim1 and dim2."""
    order = list(range(rank - 2))
    for d, source in sorted(((dim1, rank - 2), (dim2, rank - 1))):
        order.insert(d, source)
    return tuple(order)


@decomposes("diag_embed")
def diag_embed(b: Builder, self: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    rank = self.val.rank + 1
    n = self.val.sizes[-1] + abs(offset)
    return b.permute(on_diagonal(b, self, n, n, offset), _back(rank, dim1 % rank, dim2 % rank))


@decomposes("diagonal_backward")
def diagonal_backward(
    b: Builder, grad_output: Node, input_sizes: Sequence[IntLike], offset: int, dim1: int, dim2: int
) -> Node:
    rank = len(input_sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    out = on_diagonal(b, grad_output, input_sizes[dim1], input_sizes[dim2], offset)
    return b.permute(out, _back(rank, dim1, dim2))


@decomposes("diagonal_scatter")
def diagonal_scatter(b: Builder, self: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if overlaps(b.out.sizes, b.out.strides):
        return _in_shared_memory(b, self)
    rank = self.val.rank
    dim1, dim2 = dim1 % rank, dim2 % rank
    back = _back(rank, dim1, dim2)
    n, m = self.val.sizes[dim1], self.val.sizes[dim2]
    new = b.permute(on_diagonal(b, b.convert(src, self.val.dtype), n, m, offset), back)
    gap = b.sub(b.iota_along(self.val, dim2), b.iota_along(self.val, dim1))
    return b.where(b.eq(gap, offset), new, self)


def _in_shared_memory(b: Builder, x: Node) -> Any:
    """A part put into a tensor whose elements share memory: ATen writes into a copy where they share it too."""
    if x.val.strides != b.out.strides:
        raise Unsupported("a part put into windows that overlap, of a computed tensor", hint="clone() the windows")
    return NotImplemented


# -- a part put back into the whole ----------------------------------------------------------------------------------


def _placed(b: Builder, x: Node, dim: int, n: IntLike, lo: IntLike, step: IntLike) -> Node:
    """x at lo, lo + step, … of zeros of size n."""
    wide = spread_out(b, x, dim, step)
    return pad(b, wide, dim, lo, n - lo - wide.val.sizes[dim])


@decomposes("slice_backward")
def slice_backward(
    b: Builder, grad_output: Node, input_sizes: Sequence[IntLike], dim: int, start: IntLike, end: IntLike, step: IntLike
) -> Node:
    dim %= len(input_sizes)
    n = input_sizes[dim]
    if known_eq(grad_output.val.sizes[dim], 0):
        return b.full_like(b.out, 0)
    lo, _ = slice_bounds(start, end, n)
    return _placed(b, grad_output, dim, n, lo, step)


@decomposes("select_backward")
def select_backward(b: Builder, grad_output: Node, input_sizes: Sequence[IntLike], dim: int, index: IntLike) -> Node:
    dim %= len(input_sizes)
    n = input_sizes[dim]
    i = wrap_index(index, n)
    return pad(b, b.unsqueeze(grad_output, dim), dim, i, n - i - 1)


@decomposes("slice_scatter")
def slice_scatter(
    b: Builder, self: Node, src: Node, dim: int = 0, start: Any = None, end: Any = None, step: IntLike = 1
) -> Any:
    if overlaps(b.out.sizes, b.out.strides):
        return _in_shared_memory(b, self)
    dim %= self.val.rank
    n = self.val.sizes[dim]
    lo, hi = slice_bounds(start, end, n)
    sizes = (*self.val.sizes[:dim], (hi - lo + step - 1) // step, *self.val.sizes[dim + 1 :])
    new = b.expand(b.convert(src, self.val.dtype), sizes)
    if known_eq(new.val.sizes[dim], 0):
        return self
    if known_eq(lo, 0) and known_eq(hi, n) and known_eq(step, 1):
        return new
    at = b.iota_along(self.val, dim)
    inside = b.bitwise_and(b.ge(at, lo), b.lt(at, hi))
    if not known_eq(step, 1):
        inside = b.bitwise_and(inside, b.eq(b.remainder(b.sub(at, lo), step), 0))
    return b.where(inside, _placed(b, new, dim, n, lo, step), self)


@decomposes("select_scatter")
def select_scatter(b: Builder, self: Node, src: Node, dim: int, index: IntLike) -> Any:
    if overlaps(b.out.sizes, b.out.strides):
        return _in_shared_memory(b, self)
    dim %= self.val.rank
    i = wrap_index(index, self.val.sizes[dim])
    return b.where(b.eq(b.iota_along(self.val, dim), i), b.unsqueeze(b.convert(src, self.val.dtype), dim), self)


# -- padding by reflection and replication -----------------------------------------------------------------------------


def _edge_pad(reflect: bool) -> Any:
    def row(b: Builder, self: Node, padding: Sequence[IntLike]) -> Node:
        x, rank = self, self.val.rank
        for i in range(len(padding) // 2):
            dim = rank - 1 - i
            n, low, high = x.val.sizes[dim], padding[2 * i], padding[2 * i + 1]
            if isinstance(low, int) and isinstance(high, int) and low >= 0 and high >= 0:
                x = _with_edges(b, x, dim, low, high, reflect)
                continue
            at = b.iota(n + low + high, x.val.device, start=-low)
            if reflect:  # … 2 1 | 0 1 2 … n-1 | n-2 n-3 …
                at = b.sub(n - 1, b.abs(b.sub(n - 1, b.abs(at))))
            else:
                at = b.minimum(b.maximum(at, 0), n - 1)
            x = b.call(PRIMS["take"], x, dim, at)
        return x

    return row


def _with_edges(b: Builder, x: Node, dim: int, low: int, high: int, reflect: bool) -> Node:
    """Pieces before and after x: reversed (without the edge element), or the edge element repeated."""
    n = x.val.sizes[dim]

    def edge(start: IntLike, count: int) -> Node:
        if reflect:
            return b.call(PRIMS["flip"], b.slice(x, dim, start, start + count), (dim,))
        sizes = x.val.sizes
        return b.expand(b.slice(x, dim, start, start + 1), sizes[:dim] + (count,) + sizes[dim + 1 :])

    parts = [edge(1 if reflect else 0, low)] if low else []
    parts.append(x)
    if high:
        parts.append(edge(n - 1 - high if reflect else n - 1, high))
    return b.call(PRIMS["cat"], tuple(parts), dim) if len(parts) > 1 else x


register("reflection_pad1d reflection_pad2d reflection_pad3d", _edge_pad(True))
register("replication_pad1d replication_pad2d replication_pad3d", _edge_pad(False))

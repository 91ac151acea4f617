"""Views, copies, concatenation and splitting. Views hold for every dtype; what may need a kernel does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from braze.errors import Unsupported
from braze.fake.questions import ask
from braze.ir import Expr, IntLike, Node, TensorType, contiguous_strides, known_eq, known_le, product

from ..builder import Builder, same_sizes
from ..elementwise import ANY, dense_strides, like
from ..prim import PRIMS
from ..registry import register

_aten = torch.ops.aten
moves = partial(register, any_dtype=True)


def view(names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a view row for the overloads and for their ``_copy`` forms ("select.int", "select_copy.int")."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names.split():
            base, dot, overload = name.partition(".")
            moves(f"{name} {base}_copy{dot}{overload}", fn)
        return fn

    return add


# -- sizes alone -----------------------------------------------------------------------------------------------------


def reshape_to_result(b: Builder, self: Node, *args: Any, **kwargs: Any) -> Node:
    """Any view that keeps the row-major order: the result's sizes say all."""
    return b.reshape(self, b.out.sizes)


for _names in (
    "view _unsafe_view _reshape_alias reshape flatten.using_ints unflatten.int unsqueeze squeeze squeeze.dim"
    " squeeze.dims view_as reshape_as ravel"
).split():
    view(_names)(reshape_to_result)


@view("expand broadcast_to expand_as")
def expand(b: Builder, self: Node, size: Any = None, implicit: bool = False, other: Any = None) -> Node:
    return b.expand(self, b.out.sizes)


@view("permute")
def permute(b: Builder, self: Node, dims: Sequence[int]) -> Node:
    return b.permute(self, dims)


@view("t numpy_T mT")
def transpose_last(b: Builder, self: Node) -> Node:
    return b.permute(self, tuple(reversed(range(self.val.rank)))) if self.val.rank < 3 else swap(b, self, -2, -1)


@view("transpose.int swapaxes swapdims")
def swap(b: Builder, self: Node, dim0: int, dim1: int) -> Node:
    dims = list(range(self.val.rank))
    if dims:
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return b.permute(self, dims)


@view("movedim.int moveaxis.int")
def movedim(b: Builder, self: Node, source: int, destination: int) -> Node:
    dims = list(range(self.val.rank))
    dims.insert(destination % len(dims), dims.pop(source % len(dims)))
    return b.permute(self, dims)


@view("detach alias lift_fresh positive")
def identity(b: Builder, self: Node) -> Node:
    return self


moves("lift resolve_conj resolve_neg", identity)


# -- parts -----------------------------------------------------------------------------------------------------------


def wrap_index(i: IntLike, n: IntLike) -> IntLike:
    """A Python index as a non-negative one. Unsupported when its sign is not known."""
    return i + n if ask("<", i, 0, f"the sign of the symbolic index {i} is not known") else i


def slice_bounds(start: Any, end: Any, n: IntLike) -> tuple[IntLike, IntLike]:
    """Python slice bounds in [0, n], with start <= end."""

    def place(v: Any) -> IntLike:
        if isinstance(v, int) and v >= 1 << 62:
            return n
        v = wrap_index(v, n)
        if ask("<", v, 0):
            return 0
        return v if ask("<=", v, n) else n

    lo = 0 if start is None else place(start)
    hi = n if end is None else place(end)
    return lo, hi if ask("<=", lo, hi) else lo


@view("slice.Tensor")
def slice_tensor(b: Builder, self: Node, dim: int = 0, start: Any = None, end: Any = None, step: IntLike = 1) -> Node:
    dim %= self.val.rank
    lo, hi = slice_bounds(start, end, self.val.sizes[dim])
    return b.slice(self, dim, lo, hi, step)


@view("narrow")
def narrow(b: Builder, self: Node, dim: int, start: IntLike, length: IntLike) -> Node:
    dim %= self.val.rank
    lo = wrap_index(start, self.val.sizes[dim])
    return b.slice(self, dim, lo, lo + length)


@view("select.int")
def select(b: Builder, self: Node, dim: int, index: IntLike) -> Node:
    dim %= self.val.rank
    i = wrap_index(index, self.val.sizes[dim])
    return b.reshape(b.slice(self, dim, i, i + 1), b.out.sizes)


def _cut(b: Builder, x: Node, dim: int, lengths: Sequence[IntLike]) -> tuple[Node, ...]:
    out, at = [], 0
    for n in lengths:
        out.append(b.slice(x, dim, at, at + n))
        at = at + n  # type: ignore[assignment]
    return tuple(out)


@view("split.Tensor split_with_sizes split.sizes chunk unsafe_chunk")
def split(b: Builder, self: Node, *args: Any, dim: int = 0, **kwargs: Any) -> tuple[Node, ...]:
    dim = (args[1] if len(args) > 1 else dim) % self.val.rank
    return _cut(b, self, dim, [t.sizes[dim] for t in b.out])


moves("unsafe_split.Tensor unsafe_split_with_sizes", split)


@view("unbind.int")
def unbind(b: Builder, self: Node, dim: int = 0) -> tuple[Node, ...]:
    dim %= self.val.rank
    return tuple(b.reshape(b.slice(self, dim, i, i + 1), t.sizes) for i, t in enumerate(b.out))


@view("diagonal")
def diagonal(b: Builder, self: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    r = self.val.rank
    dim1, dim2 = dim1 % r, dim2 % r
    rest = [d for d in range(r) if d not in (dim1, dim2)]
    x = b.permute(self, (*rest, dim1, dim2))
    lead, (n, m) = x.val.sizes[:-2], x.val.sizes[-2:]
    length = b.out.sizes[-1]
    if known_eq(length, 0):
        return b.reshape(b.slice(b.slice(x, r - 1, 0, 0), r - 2, 0, 1 if known_le(1, n) else 0), b.out.sizes)
    flat = b.reshape(x, (*lead, n * m))
    start = offset if offset >= 0 else -offset * m
    return b.slice(flat, len(lead), start, start + (length - 1) * (m + 1) + 1, m + 1)


@view("unfold")
def unfold(b: Builder, self: Node, dimension: int, size: int, step: int) -> Node:
    if not self.val.rank:
        return b.reshape(self, b.out.sizes)
    sizes = self.val.sizes
    dim = dimension % len(sizes)
    strides = [product(sizes[d + 1 :]) for d in range(len(sizes))]
    new = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim])
    return b.call(PRIMS["as_strided"], self, b.out.sizes, new, 0)


def _within(t: TensorType, size: Any, stride: Any, offset: IntLike) -> bool:
    """Whether the elements that as_strided shows are among those of the dense tensor ``t``."""
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    empty = any(known_eq(n, 0) for n in size)
    return empty or known_le(t.offset, offset) and known_le(last + 1, t.offset + product(t.sizes))


@view("as_strided")
def as_strided(b: Builder, self: Node, size: Any, stride: Any, storage_offset: Any = None) -> Node:
    """Only of a tensor that shows all its storage: then the storage is the elements in stride order."""
    t: TensorType = self.val
    offset = t.offset if storage_offset is None else storage_offset
    flat = _in_storage_order(b, self)
    if flat is None:
        raise Unsupported(f"as_strided of {t}, which does not show all of its storage")
    if not _within(t, size, stride, offset):
        raise Unsupported(f"as_strided of {t} to memory outside of it")
    if dense_strides(tuple(size), tuple(stride)) == tuple(stride) and same_sizes(size, t.sizes) and offset == t.offset:
        if all(known_eq(n, 1) or known_eq(s, r) for n, s, r in zip(size, stride, t.strides)):
            return self
    return b.call(PRIMS["as_strided"], flat, tuple(size), tuple(stride), offset - t.offset)


def _in_storage_order(b: Builder, x: Node) -> Node | None:
    """x permuted so that its row-major order is its storage order, or None."""
    t: TensorType = x.val
    if t.is_contiguous:
        return x
    if dense_strides(t.sizes, t.strides) is None:
        return None
    dims = sorted(range(t.rank), key=lambda d: (-int(t.strides[d]), d))  # type: ignore[arg-type]
    return b.permute(x, dims)


# -- copies ----------------------------------------------------------------------------------------------------------


def _relaid(b: Builder, x: Node) -> Any:
    """A copy: x itself where the layout stays (outputs never alias by it), else a ``clone`` in the promised one."""
    if x.val.strides == b.out.strides:
        return x
    return b.clone(x, b.out) if x.val.dtype in ANY else NotImplemented


def clone(b: Builder, self: Node, memory_format: Any = None) -> Any:
    return _relaid(b, self)


moves("clone contiguous", clone)


def to_copy(
    b: Builder,
    self: Node,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    want: TensorType = b.out
    if self.val.device != want.device or pin_memory:
        return NotImplemented
    if self.val.dtype == want.dtype:
        return _relaid(b, self)
    if self.val.dtype not in ANY or want.dtype not in ANY:
        return NotImplemented
    return b.convert(self, want.dtype)


moves("_to_copy to.dtype to.device", to_copy)


def copy(b: Builder, self: Node, src: Node, non_blocking: bool = False) -> Any:
    """The value of ``self.copy_(src)``."""
    if src.val.dtype != self.val.dtype and not {src.val.dtype, self.val.dtype} <= ANY:
        return NotImplemented
    if src.val.device != self.val.device:
        src = b.to_device(src, self.val.device)
    return b.expand(b.convert(src, self.val.dtype), self.val.sizes)


register("copy", copy)


def view_dtype(b: Builder, self: Node, dtype: torch.dtype) -> Any:
    if self.val.dtype == dtype:
        return self
    if self.val.dtype.itemsize != dtype.itemsize or not {self.val.dtype, dtype} <= ANY:
        return NotImplemented
    return b.bitcast(self, dtype)


moves("view.dtype view_copy.dtype", view_dtype)


# -- complex views: ATen shows the same memory, a primitive graph copies -----------------------------------------------


def _copied(op: Any) -> Callable[..., Node]:
    """An opaque call that copies where ATen gives a view; its result is contiguous."""
    return lambda b, self: b.graph.call(op, (self,), val=b.out.with_(strides=contiguous_strides(b.out.sizes), offset=0))


moves("view_as_real", _copied(_aten.view_as_real_copy.default))


def view_as_complex(b: Builder, self: Node) -> Node:
    t: TensorType = self.val
    aligned = not isinstance(t.offset, Expr) and t.offset % 2 == 0
    if not (t.is_contiguous and aligned):  # as the ATen graph may have it, or the kernel that makes it
        self = b.clone(self, TensorType(t.sizes, contiguous_strides(t.sizes), t.dtype, t.device))
    return _copied(_aten.view_as_complex_copy.default)(b, self)


moves("view_as_complex", view_as_complex)


def conj(b: Builder, self: Node) -> Node:
    return b.graph.call(_aten._conj_physical.default, (self,), val=like((self.val,)))


def neg_view(b: Builder, self: Node) -> Node:
    return b.graph.call(_aten.neg.default, (self,), val=like((self.val,)))


moves("_conj conj", conj)
moves("_neg_view", neg_view)


# -- joining ---------------------------------------------------------------------------------------------------------


def cat(b: Builder, tensors: Sequence[Node], dim: int = 0) -> Any:
    parts = [t for t in tensors if not (t.val.rank == 1 and t.val.sizes[0] == 0 and b.out.rank != 1)]
    if not parts:
        return b.reshape(tensors[0], b.out.sizes)
    dim %= b.out.rank
    parts = [t for t in parts if t.val.sizes[dim] != 0] or parts[:1]
    if any(t.val.dtype != b.out.dtype for t in parts) and not all(t.val.dtype in ANY for t in parts):
        return NotImplemented
    parts = [b.convert(t, b.out.dtype) for t in parts]
    return parts[0] if len(parts) == 1 else b.call(PRIMS["cat"], tuple(parts), dim)


register("cat", cat)


def stack(b: Builder, tensors: Sequence[Node], dim: int = 0) -> Any:
    return cat(b, [b.unsqueeze(t, dim) for t in tensors], dim % b.out.rank)


register("stack _stack", stack)


def repeat(b: Builder, self: Node, repeats: Sequence[IntLike]) -> Node:
    """(1, a, 1, b) expanded to (r0, a, r1, b), then merged."""
    lead = len(repeats) - self.val.rank
    sizes = (1,) * lead + self.val.sizes
    split_up, wide = [], []
    for n, r in zip(sizes, repeats):
        split_up += [1, n]
        wide += [r, n]
    return b.reshape(b.expand(b.reshape(self, split_up), wide), b.out.sizes)


register("repeat", repeat)


def flip(b: Builder, self: Node, dims: Sequence[int]) -> Node:
    r = self.val.rank
    dims = tuple(sorted(d % r for d in dims)) if r else ()
    dims = tuple(d for d in dims if self.val.sizes[d] != 1)
    return b.call(PRIMS["flip"], self, dims) if dims else self


register("flip", flip)


def roll(b: Builder, self: Node, shifts: Any, dims: Any = ()) -> Node:
    shifts = shifts if isinstance(shifts, (list, tuple)) else (shifts,)
    dims = dims if isinstance(dims, (list, tuple)) else (dims,)
    if not dims:
        flat = b.reshape(self, (self.val.numel,))
        return b.reshape(_roll_one(b, flat, 0, shifts[0]), self.val.sizes)
    for shift, dim in zip(shifts, dims):
        self = _roll_one(b, self, dim % self.val.rank, shift) if self.val.rank else self
    return self


def _roll_one(b: Builder, x: Node, dim: int, shift: IntLike) -> Node:
    n = x.val.sizes[dim]
    if known_eq(n, 0):
        return x
    at = (n - shift) % n
    if known_eq(at, 0):
        return x
    return b.call(PRIMS["cat"], (b.slice(x, dim, at, n), b.slice(x, dim, 0, at)), dim)


register("roll", roll)


def rot90(b: Builder, self: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    p, q = dims
    k %= 4
    if k == 1:
        return swap(b, flip(b, self, (q,)), p, q)
    if k == 2:
        return flip(b, self, (p, q))
    return flip(b, swap(b, self, p, q), (q,)) if k == 3 else self


register("rot90", rot90)


def pixel_shuffle(b: Builder, self: Node, upscale_factor: int) -> Node:
    r = upscale_factor
    *lead, c, h, w = self.val.sizes
    n = len(lead)
    x = b.reshape(self, (*lead, c // (r * r), r, r, h, w))
    return b.reshape(b.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2)), b.out.sizes)


def pixel_unshuffle(b: Builder, self: Node, downscale_factor: int) -> Node:
    r = downscale_factor
    *lead, c, h, w = self.val.sizes
    n = len(lead)
    x = b.reshape(self, (*lead, c, h // r, r, w // r, r))
    return b.reshape(b.permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3)), b.out.sizes)


def channel_shuffle(b: Builder, self: Node, groups: int) -> Node:
    n, c, *rest = self.val.sizes
    x = b.reshape(self, (n, groups, c // groups, *rest))
    return b.reshape(swap(b, x, 1, 2), b.out.sizes)


register("pixel_shuffle", pixel_shuffle)
register("pixel_unshuffle", pixel_unshuffle)
register("channel_shuffle native_channel_shuffle", channel_shuffle)

"""Views: same storage, new sizes, strides and offset. ``*_copy`` variants are contiguous copies of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import Unsupported
from ...ir import IntLike, TensorType, known_eq, known_le, product
from ..layout import contiguous, view_strides
from ..promote import to_complex, to_real
from ..questions import ask, number, positive
from ..registry import rule
from ..result import dim_of, dims_of, fresh, view_of


@rule("alias detach lift_fresh lift detach_")
def alias(x: TensorType) -> TensorType:
    return view_of(x, x.sizes, x.strides, x.offset)


def infer_sizes(shape: Sequence[IntLike], numel: IntLike) -> tuple[IntLike, ...]:
    """``shape`` with its -1 replaced. RuntimeError, as in eager, when the elements do not fit."""
    shape = [positive(n, "the sign of a size is not known") for n in shape]
    holes = [i for i, n in enumerate(shape) if isinstance(n, int) and n == -1]
    if not holes:
        want = product(shape)
        if not ask("==", want, numel):
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
        return tuple(shape)
    known = product([n for i, n in enumerate(shape) if i != holes[0]])
    if len(holes) > 1 or known == 0 or not ask("==", numel % known, 0):
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return tuple(numel // known if i == holes[0] else n for i, n in enumerate(shape))


@rule("view.default")
def view(x: TensorType, shape: Sequence[IntLike]) -> TensorType:
    sizes = infer_sizes(shape, x.numel)
    strides = view_strides(x.sizes, x.strides, sizes)
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return view_of(x, sizes, strides, x.offset)


@rule("_unsafe_view")
def unsafe_view(x: TensorType, shape: Sequence[IntLike]) -> TensorType:
    return view(x, shape)


@rule("_reshape_alias")
def reshape_alias(x: TensorType, sizes: Sequence[IntLike], strides: Sequence[IntLike]) -> TensorType:
    return view_of(x, sizes, strides, x.offset)


@rule("reshape")
def reshape(x: TensorType, shape: Sequence[IntLike]) -> TensorType:
    sizes = infer_sizes(shape, x.numel)
    strides = view_strides(x.sizes, x.strides, sizes)
    return fresh(x, sizes) if strides is None else view_of(x, sizes, strides, x.offset)


@rule("view.dtype")
def view_dtype(x: TensorType, dtype: torch.dtype) -> TensorType:
    a, b = x.dtype.itemsize, dtype.itemsize
    if a == b:
        return TensorType(x.sizes, x.strides, dtype, x.device, x.offset)
    if a > b:
        k = a // b
        sizes, strides = (*x.sizes[:-1], x.sizes[-1] * k), (*(s * k for s in x.strides[:-1]), 1)
        return TensorType(sizes, strides, dtype, x.device, x.offset * k)
    k = b // a
    if not known_eq(x.sizes[-1] % k, 0) or not all(known_eq(s % k, 0) for s in (*x.strides[:-1], x.offset)):
        raise RuntimeError(f"self.size(-1) must be divisible by {k} to view {x.dtype} as {dtype}")
    sizes, strides = (*x.sizes[:-1], x.sizes[-1] // k), (*(s // k for s in x.strides[:-1]), 1)
    return TensorType(sizes, strides, dtype, x.device, x.offset // k)


@rule("view_as_real _view_as_real_physical")
def view_as_real(x: TensorType) -> TensorType:
    strides = (*(s * 2 for s in x.strides), 1)
    return TensorType((*x.sizes, 2), strides, to_real(x.dtype), x.device, x.offset * 2)


@rule("view_as_complex")
def view_as_complex(x: TensorType) -> TensorType:
    strides = tuple(s // 2 for s in x.strides[:-1])
    return TensorType(x.sizes[:-1], strides, to_complex(x.dtype), x.device, x.offset // 2)


@rule("resize_")
def resize(x: TensorType, sizes: Sequence[IntLike], *, memory_format: Any = None) -> TensorType:
    """A tensor that keeps its memory has to have enough of it, and no gaps."""
    if tuple(sizes) == x.sizes:
        return x
    if memory_format not in (None, torch.contiguous_format):
        raise Unsupported(f"resize_ to {memory_format}", hint="make a new tensor instead")
    old, new = product(x.sizes), product(sizes)
    if known_eq(old, 0) or x.is_contiguous and known_le(new, old):
        return TensorType(tuple(sizes), contiguous(tuple(sizes)), x.dtype, x.device, offset=x.offset)
    raise Unsupported(f"resize_ of {x} to {list(sizes)}", hint="make a new tensor instead")


@rule("resize_as_")
def resize_as(x: TensorType, template: TensorType, *, memory_format: Any = None) -> TensorType:
    return resize(x, template.sizes)


@rule("t t_")
def t(x: TensorType) -> TensorType:
    return view_of(x, x.sizes[::-1], x.strides[::-1], x.offset)


@rule("transpose.int transpose_ swapaxes_ swapdims_ swapaxes swapdims")
def transpose(x: TensorType, a: int, b: int) -> TensorType:
    sizes, strides = list(x.sizes), list(x.strides)
    a, b = dim_of(a, x.rank), dim_of(b, x.rank)
    if sizes:
        sizes[a], sizes[b], strides[a], strides[b] = sizes[b], sizes[a], strides[b], strides[a]
    return view_of(x, sizes, strides, x.offset)


@rule("permute")
def permute(x: TensorType, dims: Sequence[int]) -> TensorType:
    order = [dim_of(d, x.rank) for d in dims]
    if sorted(order) != list(range(x.rank)):
        raise RuntimeError(f"permute(dims): {list(dims)} is not a permutation of {x.rank} dims")
    return view_of(x, [x.sizes[d] for d in order], [x.strides[d] for d in order], x.offset)


@rule("expand")
def expand(x: TensorType, shape: Sequence[IntLike], *, implicit: bool = False) -> TensorType:
    sizes, strides = [positive(n, "the sign of a size is not known") for n in shape], [0] * len(shape)
    pad = len(sizes) - x.rank
    if pad < 0:
        raise RuntimeError(f"the number of sizes provided ({len(sizes)}) must be greater or equal to {x.rank}")
    out: list[IntLike] = list(strides)
    for i in range(len(sizes) - 1, -1, -1):
        old: IntLike = x.sizes[i - pad] if i >= pad else 1
        if x.rank:
            out[i] = x.strides[i - pad] if i >= pad else (sizes[i + 1] * out[i + 1] if i + 1 < len(sizes) else 1)
        if isinstance(sizes[i], int) and sizes[i] == -1:
            if i < pad:
                raise RuntimeError("The expanded size of the tensor (-1) isn't allowed in a leading dimension")
            sizes[i] = old
        elif not known_eq(sizes[i], old):
            if not known_eq(old, 1):
                if ask("==", sizes[i], old):
                    continue
                raise RuntimeError(
                    f"The expanded size of the tensor ({sizes[i]}) must match the existing size ({old}) at "
                    f"non-singleton dimension {i}.  Target sizes: {list(shape)}.  Tensor sizes: {list(x.sizes)}"
                )
            out[i] = 0
    return view_of(x, sizes, out, x.offset)


@rule("slice.Tensor")
def slice_(x: TensorType, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> TensorType:
    d = dim_of(dim, x.rank)
    first, last = slice_bounds(x.sizes[d], start, end)
    sizes, strides = list(x.sizes), list(x.strides)
    sizes[d] = (last - first + step - 1) // step
    strides[d] = strides[d] * step
    return view_of(x, sizes, strides, x.offset + first * x.strides[d])


def slice_bounds(n: IntLike, start: Any, end: Any) -> tuple[IntLike, IntLike]:
    """Start and end of a slice of a dim of size n, clamped as Python and ATen do; end >= start."""

    def place(v: Any) -> IntLike:
        if isinstance(v, int) and isinstance(n, int):
            return max(0, min(v + n if v < 0 else v, n))
        if isinstance(v, int) and v >= 1 << 62:
            return n
        if ask("<", v, 0):
            v = v + n
            if ask("<", v, 0):
                return 0
        return v if ask("<=", v, n) else n

    first = place(0 if start is None else start)
    last = place(n if end is None else end)
    return first, last if ask("<=", first, last) else first


@rule("select.int")
def select(x: TensorType, dim: int, index: IntLike) -> TensorType:
    if x.rank == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = dim_of(dim, x.rank)
    n = x.sizes[d]
    at = index + n if ask("<", index, 0) else index
    if ask("<", at, 0) or ask("<=", n, at):
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.sizes)} at dimension {d}")
    sizes, strides = x.sizes[:d] + x.sizes[d + 1 :], x.strides[:d] + x.strides[d + 1 :]
    return view_of(x, sizes, strides, x.offset + at * x.strides[d])


@rule("unsqueeze unsqueeze_")
def unsqueeze(x: TensorType, dim: int) -> TensorType:
    d = dim_of(dim, x.rank + 1)
    step = x.sizes[d] * x.strides[d] if d < x.rank else 1
    sizes, strides = (*x.sizes[:d], 1, *x.sizes[d:]), (*x.strides[:d], step, *x.strides[d:])
    return view_of(x, sizes, strides, x.offset)


@rule("squeeze.default squeeze.dim squeeze.dims")
def squeeze(x: TensorType, dim: Any = None) -> TensorType:
    dims = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {dim_of(d, x.rank) for d in dims}
    keep = [d for d in range(x.rank) if not (d in gone and known_eq(x.sizes[d], 1))]
    return view_of(x, [x.sizes[d] for d in keep], [x.strides[d] for d in keep], x.offset)


def _pieces(x: TensorType, lengths: Sequence[IntLike], dim: int) -> list[TensorType]:
    out = []
    at: IntLike = 0
    for n in lengths:
        sizes = (*x.sizes[:dim], n, *x.sizes[dim + 1 :])
        out.append(view_of(x, sizes, x.strides, x.offset + at * x.strides[dim]))
        at = at + n
    return out


@rule("split.Tensor unsafe_split.Tensor")
def split(x: TensorType, length: IntLike, dim: int = 0) -> list[TensorType]:
    d = dim_of(dim, x.rank)
    n = x.sizes[d]
    length = positive(length, "the sign of a length is not known")
    what = f"the number of pieces of split({length}) of size {n} is not static"
    count = number((n + length - 1) // length, what) if not known_eq(length, 0) else 1
    count = max(count, 1)
    return _pieces(x, [length] * (count - 1) + [n - length * (count - 1)], d)


@rule("split_with_sizes unsafe_split_with_sizes")
def split_with_sizes(x: TensorType, lengths: Sequence[IntLike], dim: int = 0) -> list[TensorType]:
    d = dim_of(dim, x.rank)
    total: IntLike = sum(lengths)
    if not ask("==", total, x.sizes[d]):
        raise RuntimeError(f"split_with_sizes expects split_sizes to sum exactly to {x.sizes[d]}, got {list(lengths)}")
    return _pieces(x, lengths, d)


@rule("chunk unsafe_chunk")
def chunk(x: TensorType, chunks: int, dim: int = 0) -> list[TensorType]:
    n = x.sizes[dim_of(dim, x.rank)]
    return split(x, (n + chunks - 1) // chunks, dim)


@rule("unbind.int")
def unbind(x: TensorType, dim: int = 0) -> list[TensorType]:
    n = number(x.sizes[dim_of(dim, x.rank)], "unbind of a dim of symbolic size")
    return [select(x, dim, i) for i in range(n)]


@rule("diagonal")
def diagonal(x: TensorType, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorType:
    a, b = dim_of(dim1, x.rank), dim_of(dim2, x.rank)
    rows, cols = x.sizes[a], x.sizes[b]
    left, right = (rows, cols - offset) if offset >= 0 else (rows + offset, cols)
    n = left if ask("<=", left, right) else right
    n = 0 if ask("<", n, 0) else n
    shift = offset * x.strides[b] if offset >= 0 else -offset * x.strides[a]
    keep = [d for d in range(x.rank) if d not in (a, b)]
    sizes, strides = [x.sizes[d] for d in keep], [x.strides[d] for d in keep]
    at = x.offset if known_eq(n, 0) else x.offset + shift
    return view_of(x, [*sizes, n], [*strides, x.strides[a] + x.strides[b]], at)


@rule("as_strided as_strided_")
def as_strided(
    x: TensorType, sizes: Sequence[IntLike], strides: Sequence[IntLike], offset: IntLike | None = None
) -> TensorType:
    return view_of(x, sizes, strides, x.offset if offset is None else offset)


@rule("unfold")
def unfold(x: TensorType, dim: int, size: int, step: int) -> TensorType:
    if x.rank == 0:
        return view_of(x, (size,), (1,), x.offset)
    d = dim_of(dim, x.rank)
    n = (x.sizes[d] - size) // step + 1
    sizes, strides = (*x.sizes[:d], n, *x.sizes[d + 1 :], size), list(x.strides)
    strides[d] = strides[d] * step
    return view_of(x, sizes, (*strides, x.strides[d]), x.offset)


@rule("movedim")
def movedim(x: TensorType, source: Any, target: Any) -> TensorType:
    src, dst = dims_of(source, x.rank), dims_of(target, x.rank)
    rest = iter(d for d in range(x.rank) if d not in src)
    order = [src[dst.index(i)] if i in dst else next(rest) for i in range(x.rank)]
    return permute(x, order)


def _copied(f: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        out = f(*args, **kwargs)
        if isinstance(out, list):
            return [fresh(t) for t in out]
        return TensorType(out.sizes, contiguous(out.sizes), out.dtype, out.device)

    return run


COPIES = {
    "view_copy": reshape,
    "t_copy": t,
    "transpose_copy": transpose,
    "permute_copy": permute,
    "expand_copy": expand,
    "slice_copy": slice_,
    "select_copy": select,
    "unsqueeze_copy": unsqueeze,
    "squeeze_copy": squeeze,
    "split_copy": split,
    "split_with_sizes_copy": split_with_sizes,
    "unbind_copy": unbind,
    "diagonal_copy": diagonal,
    "as_strided_copy": as_strided,
    "unfold_copy": unfold,
    "alias_copy": alias,
    "detach_copy": alias,
    "view_as_real_copy": view_as_real,
    "view_as_complex_copy": view_as_complex,
}
for _name, _f in COPIES.items():
    rule(_name)(_copied(_f))

"""Indexing, gathering, scattering, joining and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...ir import IntLike, TensorType, known_eq
from ..layout import broadcast, channels_last, contiguous, iterate, suggests_channels_last
from ..promote import result_type
from ..questions import agree, fits
from ..registry import DataDependent, rule
from ..result import copy_of, dim_of, fresh, view_of
from .pointwise import device_of
from .view import unsqueeze, view


@rule("embedding")
def embedding(w: TensorType, index: TensorType, *rest: Any) -> TensorType:
    if w.rank != 2:
        raise RuntimeError("'weight' must be 2-D")
    return fresh(w, (*index.sizes, *w.sizes[1:]))


@rule("embedding_dense_backward")
def embedding_backward(g: TensorType, index: TensorType, rows: IntLike, padding: Any, scale: bool) -> TensorType:
    return fresh(g, (rows, g.sizes[-1]))


@rule("index.Tensor _unsafe_index.Tensor")
def index(x: TensorType, indices: Sequence[TensorType | None]) -> TensorType:
    """Advanced indexing. DataDependent for boolean masks."""
    if len(indices) > x.rank:
        raise IndexError(f"too many indices for tensor of dimension {x.rank} (got {len(indices)})")
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    for _, i in given:
        if i.dtype in (torch.bool, torch.uint8):
            raise DataDependent("indexing with a boolean mask", hint="use torch.where or masked_fill")
    shape = broadcast(tuple(i.sizes for _, i in given))
    picked = {d for d, _ in given}
    dims = list(range(x.rank))
    first = given[0][0]
    if [d for d, _ in given] != list(range(first, first + len(given))):
        dims = [d for d in dims if d in picked] + [d for d in dims if d not in picked]
        first = 0
    before, after = dims[:first], dims[first + len(given) :]
    sizes = (*(x.sizes[d] for d in before), *shape, *(x.sizes[d] for d in after))
    strides = (*(x.strides[d] for d in before), *([0] * len(shape)), *(x.strides[d] for d in after))
    operands = [(sizes, strides)]
    for _, i in given:
        own = iterate((i.sizes, i.strides))[1] if i.sizes != shape else i.strides
        pad: tuple[IntLike, ...] = (1,) * len(before)
        tail: tuple[IntLike, ...] = (1,) * len(after)
        operands.append(((*pad, *i.sizes, *tail), (*(0 for _ in pad), *own, *(0 for _ in tail))))
    return TensorType(*iterate(*operands), x.dtype, x.device)


@rule("index_put _unsafe_index_put _index_put_impl")
def index_put(x: TensorType, indices: Sequence[TensorType | None], values: TensorType, *rest: Any, **kw: Any) -> Any:
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        sizes = index(x, indices).sizes
        if broadcast((values.sizes, sizes)) != sizes:
            raise RuntimeError(f"shape mismatch: value tensor of shape {list(values.sizes)} cannot be broadcast")
    return copy_of(x)


@rule("gather")
def gather(x: TensorType, dim: int, i: TensorType, *, sparse_grad: bool = False) -> TensorType:
    _within(i, x, dim_of(dim, x.rank))
    return fresh(x, i.sizes)


def _within(i: TensorType, x: TensorType, but: int) -> None:
    """An index must not be larger than what it indexes, apart from one dim."""
    if i.rank == x.rank and not any(known_eq(n, 0) for n in i.sizes):
        for d, (a, b) in enumerate(zip(i.sizes, x.sizes)):
            if d != but:
                fits(a, b, f"Expected index {i} to be no larger than {x} apart from dimension {but}")


@rule("scatter scatter_add scatter_reduce")
def scatter(x: TensorType, dim: int, i: TensorType, source: Any = None, *rest: Any, **kw: Any) -> TensorType:
    _within(i, x, dim_of(dim, x.rank))
    source = kw.get("src", source)
    if isinstance(source, TensorType):
        _within(i, source, -1)
    return fresh(x)


@rule("index_add index_copy index_reduce")
def index_add(x: TensorType, dim: int, i: TensorType, source: TensorType, *rest: Any, **kw: Any) -> TensorType:
    d = dim_of(dim, x.rank)
    if x.rank and source.rank == x.rank:
        message = f"index {i} and source {source} do not fit self {x}"
        agree(source.sizes[d], i.sizes[0] if i.rank else 1, message)
        for e in range(x.rank):
            if e != d:
                agree(source.sizes[e], x.sizes[e], message)
    return fresh(x)


@rule("index_fill put")
def index_fill(x: TensorType, *rest: Any, **kw: Any) -> TensorType:
    return copy_of(x)


@rule("masked_scatter")
def masked_scatter(x: TensorType, mask: TensorType, source: TensorType) -> TensorType:
    return fresh(x, broadcast((x.sizes, mask.sizes)))


@rule("index_select")
def index_select(x: TensorType, dim: int, i: TensorType) -> TensorType:
    d = dim_of(dim, x.rank)
    return fresh(x, (*x.sizes[:d], i.sizes[0] if i.sizes else 1, *x.sizes[d + 1 :]) if x.rank else ())


@rule("take")
def take(x: TensorType, i: TensorType) -> TensorType:
    return fresh(x, i.sizes)


@rule("sort.default sort.values")
def sort(x: TensorType, dim: int = -1, descending: bool = False) -> Any:
    return copy_of(x), copy_of(x, None, torch.int64)


@rule("sort.stable sort.values_stable")
def sort_stable(x: TensorType, *, stable: Any, dim: int = -1, descending: bool = False) -> Any:
    return sort(x, dim, descending)


@rule("argsort.stable")
def argsort(x: TensorType, *, stable: bool, dim: int = -1, descending: bool = False) -> TensorType:
    return copy_of(x, None, torch.int64)


@rule("searchsorted.Tensor")
def searchsorted(edges: TensorType, x: TensorType, *, out_int32: bool = False, **kw: Any) -> TensorType:
    return fresh(x, None, torch.int32 if out_int32 else torch.int64)


@rule("searchsorted.Scalar")
def searchsorted_number(edges: TensorType, x: Any, *, out_int32: bool = False, **kw: Any) -> TensorType:
    return fresh(edges, (), torch.int32 if out_int32 else torch.int64)


@rule("bucketize.Scalar")
def bucketize_number(x: Any, edges: TensorType, *, out_int32: bool = False, **kw: Any) -> TensorType:
    return fresh(edges, (), torch.int32 if out_int32 else torch.int64)


@rule("isin.Tensor_Tensor isin.Tensor_Scalar")
def isin(x: TensorType, test: Any, **kw: Any) -> TensorType:
    return fresh(x, None, torch.bool)


@rule("isin.Scalar_Tensor")
def isin_number(x: Any, test: TensorType, **kw: Any) -> TensorType:
    return fresh(test, (), torch.bool)


@rule("nonzero_static")
def nonzero_static(x: TensorType, *, size: IntLike, fill_value: int = -1) -> TensorType:
    return fresh(x, (size, x.rank), torch.int64)


@rule("nonzero masked_select unique_dim unique_consecutive unique_dim_consecutive _unique _unique2 bincount")
def unknown_size(*args: Any, **kw: Any) -> TensorType:
    raise DataDependent("the size of the result depends on the values of a tensor")


@rule("_local_scalar_dense item equal is_nonzero allclose")
def unknown_value(*args: Any, **kw: Any) -> TensorType:
    raise DataDependent("a Python value is read from a tensor", hint="keep it a tensor, or move the read out")


@rule("repeat_interleave.Tensor")
def repeat_interleave(repeats: TensorType, *, output_size: IntLike | None = None) -> TensorType:
    if output_size is None:
        raise DataDependent("the size of repeat_interleave depends on the values of a tensor", hint="pass output_size")
    return fresh(repeats, (output_size,), torch.int64)


@rule("masked_scatter_backward")
def masked_scatter_backward(g: TensorType, mask: TensorType, sizes: Sequence[IntLike]) -> TensorType:
    return fresh(g, sizes)


@rule("narrow_copy")
def narrow_copy(x: TensorType, dim: int, start: IntLike, length: IntLike) -> TensorType:
    d = dim_of(dim, x.rank)
    return fresh(x, (*x.sizes[:d], length, *x.sizes[d + 1 :]))


@rule("_unsafe_masked_index_put_accumulate")
def masked_index_put(x: TensorType, *rest: Any) -> TensorType:
    return copy_of(x)


@rule("bucketize.Tensor")
def bucketize(x: TensorType, edges: TensorType, *, out_int32: bool = False, **kw: Any) -> TensorType:
    return fresh(x, None, torch.int32 if out_int32 else torch.int64)


@rule("cat concat")
def cat(xs: Sequence[TensorType], dim: int = 0) -> TensorType:
    kept = [x for x in xs if not (x.rank == 1 and known_eq(x.sizes[0], 0))] or list(xs[:1])
    d = dim_of(dim, kept[0].rank)
    total: IntLike = 0
    for x in kept:
        total = total + x.sizes[d]
    first = kept[0].sizes
    for x in kept[1:]:
        message = f"Sizes of tensors must match except in dimension {d}: {x.sizes} and {first}"
        if x.rank != len(first):
            raise RuntimeError(message)
        for i, (a, b) in enumerate(zip(x.sizes, first)):
            if i != d:
                agree(a, b, message)
    sizes = (*first[:d], total, *first[d + 1 :])
    last = len(sizes) in (4, 5) and all(suggests_channels_last(x.sizes, x.strides) for x in xs)
    strides = channels_last(sizes) if last else contiguous(sizes)
    return TensorType(sizes, strides, result_type(tuple(xs)), device_of(list(xs)))


@rule("stack")
def stack(xs: Sequence[TensorType], dim: int = 0) -> TensorType:
    d = dim_of(dim, xs[0].rank + 1)
    for x in xs[1:]:
        message = f"stack expects each tensor to be equal size, but got {x} and {xs[0]}"
        if x.rank != xs[0].rank:
            raise RuntimeError(message)
        for a, b in zip(x.sizes, xs[0].sizes):
            agree(a, b, message)
    if d == xs[0].rank:
        return cat([unsqueeze(x, d) for x in xs], d)
    joined = cat(xs, d)
    return view(joined, (*joined.sizes[:d], len(xs), *xs[0].sizes[d:]))


@rule("constant_pad_nd")
def pad(x: TensorType, pads: Sequence[IntLike], value: Any = 0) -> TensorType:
    sizes = list(x.sizes)
    shrinks = all(isinstance(p, int) and p <= 0 for p in pads)
    for k in range(len(pads) // 2):
        sizes[-1 - k] = sizes[-1 - k] + pads[2 * k] + pads[2 * k + 1]
    if shrinks:
        return copy_of(TensorType(tuple(sizes), x.strides, x.dtype, x.device))
    return TensorType(
        tuple(sizes),
        channels_last(tuple(sizes)) if suggests_channels_last(x.sizes, x.strides) else contiguous(tuple(sizes)),
        x.dtype,
        x.device,
    )


@rule("slice_backward")
def slice_backward(g: TensorType, sizes: Sequence[IntLike], *rest: Any) -> TensorType:
    return fresh(g, sizes)


@rule("select_backward diagonal_backward unfold_backward")
def select_backward(g: TensorType, sizes: Sequence[IntLike], *rest: Any) -> TensorType:
    return fresh(g, sizes)


@rule("slice_scatter select_scatter diagonal_scatter as_strided_scatter")
def slice_scatter(x: TensorType, source: TensorType, *rest: Any, **kw: Any) -> TensorType:
    if any(known_eq(s, 0) and not known_eq(n, 1) for n, s in zip(x.sizes, x.strides)):
        return copy_of(x)
    return view_of(x, x.sizes, x.strides, x.offset)  # a copy with gaps and all


@rule("_unsafe_masked_index")
def masked_index(x: TensorType, mask: TensorType, indices: Any, fill: Any) -> TensorType:
    return index(x, indices)

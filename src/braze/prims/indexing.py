"""Padding, concatenation, gathers and scatters.

An index is an int64 or int32 tensor; a negative one counts from the end and one out of range is an error (generated
code traps).  Scatters give a new tensor; where several writes of a plain scatter hit one element, any of them may win;
``scatter_add`` and an accumulating ``index_put`` add them all, in any order, in x's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir import IntLike, TensorType, contiguous_strides

from .elementwise import dense_strides
from .prim import Prim


def _fresh(sizes: Sequence[IntLike], x: TensorType) -> TensorType:
    return TensorType(tuple(sizes), contiguous_strides(sizes), x.dtype, x.device)


def _same(x: TensorType) -> TensorType:
    return TensorType(x.sizes, dense_strides(x.sizes, x.strides) or contiguous_strides(x.sizes), x.dtype, x.device)


def _pad(x: TensorType, low: Sequence[IntLike], high: Sequence[IntLike], value: Any) -> TensorType:
    return _fresh([n + a + b for n, a, b in zip(x.sizes, low, high)], x)


def _pad_reference(x: torch.Tensor, low: Sequence[int], high: Sequence[int], value: Any) -> torch.Tensor:
    flat = [p for a, b in reversed(list(zip(low, high))) for p in (a, b)]
    return torch.nn.functional.pad(x, flat, value=value) if flat else x.clone()


def _cat(xs: Sequence[TensorType], dim: int) -> TensorType:
    sizes = list(xs[0].sizes)
    for x in xs[1:]:
        assert x.dtype == xs[0].dtype and x.rank == xs[0].rank, f"prims.cat of {xs[0]} and {x}"
        sizes[dim] = sizes[dim] + x.sizes[dim]
    return _fresh(sizes, xs[0])


def _take(x: TensorType, dim: int, index: TensorType) -> TensorType:
    return _fresh(x.sizes[:dim] + index.sizes + x.sizes[dim + 1 :], x)


def _take_reference(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x[(slice(None),) * dim + (index.long(),)]


def _gather(x: TensorType, dim: int, index: TensorType) -> TensorType:
    assert x.rank == index.rank, f"prims.gather of {x} by {index}"
    return _fresh(index.sizes, x)


def _wrap(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    index = index.long()
    return torch.where(index < 0, index + x.shape[dim], index)


def _gather_reference(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, dim, _wrap(x, dim, index))


def _indexed(x: TensorType, indices: Sequence[TensorType | None]) -> tuple[IntLike, ...]:
    used = [d for d, i in enumerate(indices) if i is not None]
    assert used and used == list(range(used[0], used[-1] + 1)), "prims.index: indexed dims must be adjacent"
    first = indices[used[0]]
    assert first is not None
    for d in used:
        i = indices[d]
        assert i is not None and i.sizes == first.sizes, "prims.index: all index tensors have one shape"
    return x.sizes[: used[0]] + first.sizes + x.sizes[used[-1] + 1 :]


def _index(x: TensorType, indices: Sequence[TensorType | None]) -> TensorType:
    return _fresh(_indexed(x, indices), x)


def _subscript(indices: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i.long() for i in indices)


def _index_put(
    x: TensorType, indices: Sequence[TensorType | None], values: TensorType, accumulate: bool = False
) -> TensorType:
    want = _indexed(x, indices)
    assert values.sizes == want and values.dtype == x.dtype, f"prims.index_put of {values} into {x}, want {want}"
    return _same(x)


def _index_put_reference(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    where = [None if i is None else i.long() for i in indices]
    out: torch.Tensor = torch.ops.aten.index_put(x, where, values, accumulate)
    return out


def _scatter(x: TensorType, dim: int, index: TensorType, src: TensorType) -> TensorType:
    assert index.sizes == src.sizes and src.dtype == x.dtype and x.rank == index.rank, "prims.scatter operands"
    return _same(x)


pad = Prim("pad", "indexing", _pad, _pad_reference, "low[d] elements ``value`` before and high[d] after, each >= 0")
cat = Prim("cat", "indexing", _cat, lambda xs, dim: torch.cat(list(xs), dim), "concatenation of one dtype along dim")
take = Prim("take", "indexing", _take, _take_reference, "dim replaced by the index tensor's dims: x[:, …, index, …]")
gather = Prim("gather", "indexing", _gather, _gather_reference, "out[i, j, …] = x[i, …, index[i, j, …] at dim, …]")
index = Prim(
    "index",
    "indexing",
    _index,
    lambda x, indices: x[_subscript(indices)],
    "x[i0, i1, …]; None is a whole dim; the indexed dims are adjacent and give way to the indices' one shape",
)
index_put = Prim(
    "index_put", "indexing", _index_put, _index_put_reference, "x with x[indices] = values, or += when accumulate"
)
scatter = Prim(
    "scatter",
    "indexing",
    _scatter,
    lambda x, dim, index, src: torch.scatter(x, dim, _wrap(x, dim, index), src),
    "x with x[i, …, index[i, …] at dim, …] = src[i, …]",
)
scatter_add = Prim(
    "scatter_add",
    "indexing",
    _scatter,
    lambda x, dim, index, src: torch.scatter_add(x, dim, _wrap(x, dim, index), src),
    "x with x[i, …, index[i, …] at dim, …] += src[i, …]",
)

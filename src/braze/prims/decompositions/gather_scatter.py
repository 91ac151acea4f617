"""Indexing by tensors: gathers, embeddings, scatters and ``index_put``.

An accumulating scatter into 16-bit floats adds up in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.fake.layout import broadcast
from braze.ir import Node, known_eq, known_le

from ..builder import Builder, is_tensor
from ..prim import PRIMS
from ..registry import decomposes

_TAKE, _GATHER, _INDEX, _PUT = (PRIMS[n] for n in ("take", "gather", "index", "index_put"))
_INT = (torch.int64, torch.int32)


def as_index(b: Builder, index: Node) -> Node:
    """The index as int64 (int32 stays)."""
    return index if index.val.dtype in _INT else b.convert(index, torch.int64)


@decomposes("embedding")
def embedding(
    b: Builder,
    weight: Node,
    indices: Node,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:
    return b.call(_TAKE, weight, 0, as_index(b, indices))


@decomposes("embedding_dense_backward")
def embedding_dense_backward(
    b: Builder, grad_output: Node, indices: Node, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    if scale_grad_by_freq:
        return NotImplemented
    g = b.compute(grad_output)
    index = as_index(b, indices)
    if padding_idx >= 0:
        valid = b.reshape(b.ne(index, padding_idx), index.val.sizes + (1,))
        g = b.where(valid, g, 0.0)
    zeros = b.full(b.out.sizes, 0.0, g.val.dtype, g.val.device)
    return b.call(_PUT, zeros, (index,), g, True)


@decomposes("index_select")
def index_select(b: Builder, self: Node, dim: int, index: Node) -> Node:
    flat = b.reshape(index, (index.val.numel,))
    if not self.val.rank:
        return b.reshape(b.call(_TAKE, b.reshape(self, (1,)), 0, as_index(b, flat)), b.out.sizes)
    return b.call(_TAKE, self, dim % self.val.rank, as_index(b, flat))


@decomposes("take")
def take(b: Builder, self: Node, index: Node) -> Node:
    return b.call(_TAKE, b.reshape(self, (self.val.numel,)), 0, as_index(b, index))


def _at_least_1d(b: Builder, *tensors: Node) -> list[Node]:
    return [t if t.val.rank else b.reshape(t, (1,)) for t in tensors]


@decomposes("gather")
def gather(b: Builder, self: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if index.val.rank == 1 and not self.val.rank or any(known_eq(n, 0) for n in index.val.sizes):
        return b.full_like(b.out, 0) if any(known_eq(n, 0) for n in index.val.sizes) else NotImplemented
    x, i = _at_least_1d(b, self, index)
    return b.reshape(b.call(_GATHER, x, dim % x.val.rank, as_index(b, i)), b.out.sizes)


# -- scatter ---------------------------------------------------------------------------------------------------------


def _source(b: Builder, src: Any, index: Node, x: Node) -> Any:
    """The source cut to the index's sizes, or a number everywhere."""
    if not isinstance(src, Node):
        return b.full(index.val.sizes, src, x.val.dtype, x.val.device)
    for d, n in enumerate(index.val.sizes):
        src = b.slice(src, d, 0, n)
    return b.convert(src, x.val.dtype)


def _scatter(b: Builder, name: str, self: Node, dim: int, index: Node, src: Any) -> Any:
    if any(known_eq(n, 0) for n in index.val.sizes):
        return self
    if is_tensor(src):
        (src,) = _at_least_1d(b, src)
    x, i = _at_least_1d(b, self, index)
    if name == "scatter_add":
        x = b.compute(x)
    out = b.call(PRIMS[name], x, dim % x.val.rank, as_index(b, i), _source(b, src, i, x))
    return b.reshape(out, self.val.sizes)


@decomposes("scatter.src")
def scatter_src(b: Builder, self: Node, dim: int, index: Node, src: Node) -> Any:
    return _scatter(b, "scatter", self, dim, index, src)


@decomposes("scatter.value")
def scatter_value(b: Builder, self: Node, dim: int, index: Node, value: Any) -> Any:
    return _scatter(b, "scatter", self, dim, index, value)


@decomposes("scatter_add")
def scatter_add(b: Builder, self: Node, dim: int, index: Node, src: Node) -> Any:
    if self.val.dtype == torch.bool:
        return NotImplemented
    return _scatter(b, "scatter_add", self, dim, index, src)


# -- index -----------------------------------------------------------------------------------------------------------


class _Plan:
    """Index tensors of one shape on adjacent dims: x permuted where ATen would move the indexed dims to the front."""

    def __init__(self, b: Builder, x: Node, indices: Sequence[Any]) -> None:
        used = [d for d, i in enumerate(indices) if i is not None]
        shapes = [indices[d] for d in used]
        tensors = _broadcast(b, [as_index(b, i) for i in shapes])
        self.order: tuple[int, ...] | None = None
        if used != list(range(used[0], used[-1] + 1)):
            rest = [d for d in range(x.val.rank) if d not in used]
            self.order = (*used, *rest)
            used = list(range(len(used)))
        self.indices = (None,) * used[0] + tuple(tensors)

    def arranged(self, b: Builder, x: Node) -> Node:
        return x if self.order is None else b.permute(x, self.order)

    def restored(self, b: Builder, x: Node) -> Node:
        if self.order is None:
            return x
        back = sorted(range(len(self.order)), key=lambda d: self.order[d])  # type: ignore[index]
        return b.permute(x, back)


def _broadcast(b: Builder, tensors: list[Node]) -> list[Node]:
    sizes = broadcast(tuple(t.val.sizes for t in tensors))
    kind = tensors[0].val.dtype if len({t.val.dtype for t in tensors}) == 1 else torch.int64
    return [b.expand(b.convert(t, kind), sizes) for t in tensors]


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(i is not None and i.val.dtype in (torch.bool, torch.uint8) for i in indices)


@decomposes("index.Tensor _unsafe_index.Tensor")
def index(b: Builder, self: Node, indices: Sequence[Any]) -> Any:
    if _has_mask(indices) or any(known_eq(n, 0) for n in b.out.sizes):
        return NotImplemented
    if all(i is None for i in indices):
        return self
    plan = _Plan(b, self, indices)
    return b.call(_INDEX, plan.arranged(b, self), plan.indices)


@decomposes("index_put _unsafe_index_put _index_put_impl")
def index_put(
    b: Builder, self: Node, indices: Sequence[Any], values: Node, accumulate: bool = False, unsafe: bool = False
) -> Any:
    if _has_mask(indices):
        return _masked_put(b, self, indices, values, accumulate)
    if any(known_eq(n, 0) for i in indices if i is not None for n in i.val.sizes):
        return self
    if accumulate and self.val.dtype == torch.bool or self.val.dtype.is_complex:
        return NotImplemented
    plan = _Plan(b, self, indices)
    x = plan.arranged(b, b.compute(self) if accumulate else self)
    sizes = _INDEX.shape(x.val, tuple(i if i is None else i.val for i in plan.indices)).sizes
    new = b.expand(b.convert(values, x.val.dtype), sizes)
    return plan.restored(b, b.call(_PUT, x, plan.indices, new, accumulate))


def _masked_put(b: Builder, self: Node, indices: Sequence[Any], values: Node, accumulate: bool) -> Any:
    """x[mask] = number, as a ``where``."""
    (mask,) = [i for i in indices if i is not None] if len(indices) == 1 else (None,)
    if mask is None or mask.val.dtype != torch.bool or not known_eq(values.val.numel, 1) or self.val.dtype.is_complex:
        return NotImplemented
    rank = self.val.rank - mask.val.rank
    wide = b.reshape(mask, mask.val.sizes + (1,) * rank)
    value = b.convert(b.reshape(values, ()), self.val.dtype)
    return b.where(wide, b.add(self, value) if accumulate else value, self)


def _along(dim: int, index: Node) -> tuple[Any, ...]:
    return (None,) * dim + (index,)


@decomposes("index_add")
def index_add(b: Builder, self: Node, dim: int, index: Node, source: Node, *, alpha: Any = 1) -> Any:
    if self.val.dtype == torch.bool:
        return NotImplemented
    x, i, s = _at_least_1d(b, b.compute(self), as_index(b, index), b.compute(b.convert(source, self.val.dtype)))
    if alpha != 1:
        s = b.mul(s, alpha)
    return b.reshape(b.call(_PUT, x, _along(dim % x.val.rank, i), s, True), self.val.sizes)


@decomposes("index_copy")
def index_copy(b: Builder, self: Node, dim: int, index: Node, source: Node) -> Any:
    x, i, s = _at_least_1d(b, self, as_index(b, index), source)
    return b.reshape(b.call(_PUT, x, _along(dim % x.val.rank, i), s, False), self.val.sizes)


@decomposes("index_fill.int_Scalar index_fill.int_Tensor")
def index_fill(b: Builder, self: Node, dim: int, index: Node, value: Any) -> Any:
    x, i = _at_least_1d(b, self, as_index(b, index))
    dim %= x.val.rank
    sizes = (*x.val.sizes[:dim], i.val.sizes[0], *x.val.sizes[dim + 1 :])
    if is_tensor(value):
        new = b.expand(b.convert(value, x.val.dtype), sizes)
    else:
        new = b.full(sizes, value, x.val.dtype, x.val.device)
    return b.reshape(b.call(_PUT, x, _along(dim, i), new, False), self.val.sizes)


@decomposes("_unsafe_masked_index")
def unsafe_masked_index(b: Builder, self: Node, mask: Node, indices: Sequence[Any], fill: Any) -> Any:
    if any(known_eq(n, 0) for n in self.val.sizes):
        return NotImplemented
    return b.where(mask, index(b, self, _clamped(b, self, indices)), fill)


@decomposes("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put(b: Builder, self: Node, mask: Node, indices: Sequence[Any], values: Node) -> Any:
    if any(known_eq(n, 0) for n in self.val.sizes):
        return NotImplemented
    return index_put(b, self, _clamped(b, self, indices), b.where(mask, values, 0), True)


def _clamped(b: Builder, x: Node, indices: Sequence[Any]) -> list[Any]:
    return [
        None if i is None else b.minimum(b.maximum(i, -n if known_le(0, n) else 0), n - 1)
        for i, n in zip(indices, x.val.sizes)
    ]

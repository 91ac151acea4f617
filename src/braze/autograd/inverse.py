"""Writing to a view, as a new value of what it is a view of: one row a view operator.

``y = x[1]; y.add_(1)`` gives x the value ``select_scatter(x, add(y, 1), 0, 1)``.  A row takes (recorder, the parent's
present node, the view, the view's new node) and gives the parent's new node.  Views without a row are written by
``strided_scatter`` into the root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..ir import Node, product
from ..prims.strided import strided_scatter
from .layout import reshape

if TYPE_CHECKING:
    from .record import Recorder, Value

aten = torch.ops.aten
Row = Callable[["Recorder", Node, "Value", Node, tuple[Any, ...], dict[str, Any]], Node]


def scatter(rec: Recorder, value: Value, node: Node) -> Node:
    """The new node of ``value.parent`` when the view ``value`` becomes ``node``."""
    assert value.parent is not None and value.step is not None
    step = value.step
    parent = rec.read(value.parent)
    row = ROWS.get(step.op)  # type: ignore[call-overload]
    if row is None:
        return _strided(rec, parent, value, node)
    out: Node = row(rec, parent, value, node, step.args, dict(step.kwargs))
    return out


def _strided(rec: Recorder, parent: Node, value: Value, node: Node) -> Node:
    """A write into the parent, whose memory the view's strides and offset describe."""
    assert value.parent is not None and value.step is not None
    mine, theirs = value.type, value.parent.type
    if mine.dtype != theirs.dtype:
        raise Unsupported(f"an in-place write through {value.step.op}")
    if parent.val.strides != theirs.strides:
        raise Unsupported(f"an in-place write through {value.step.op} into a tensor of another layout")
    view = (list(theirs.strides), list(mine.sizes), list(mine.strides), mine.offset - theirs.offset)
    return rec.call(strided_scatter, parent, node, *view)


def _reshaped(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    return reshape(rec, node, parent.val.sizes)


def _expanded(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    if product(parent.val.sizes) != product(node.val.sizes):
        raise Unsupported("an in-place write to a tensor whose elements share memory (an expanded one)")
    return reshape(rec, node, parent.val.sizes)


def _transposed(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    return rec.call(aten.transpose.int, node, *args)


def _t(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    return rec.call(aten.t.default, node)


def _permuted(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    dims = [d % len(args[0]) for d in args[0]]
    return rec.call(aten.permute.default, node, [dims.index(i) for i in range(len(dims))])


def _scattered(op: OpOverload) -> Row:
    def row(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
        return rec.call(op, parent, node, *args, **kwargs)

    return row


def _of_split(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    assert value.step is not None and value.step.index is not None
    sizes, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    i = value.step.index
    start = sum(sizes[:i]) if isinstance(sizes, (list, tuple)) else sizes * i
    return rec.call(aten.slice_scatter.default, parent, node, dim, start, start + node.val.sizes[dim])


def _of_unbind(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    assert value.step is not None
    dim = args[0] if args else kwargs.get("dim", 0)
    return rec.call(aten.select_scatter.default, parent, node, dim, value.step.index)


def _as_dtype(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    if node.val.dtype.itemsize != parent.val.dtype.itemsize and not node.val.is_contiguous:
        node = rec.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return rec.call(aten.view.dtype, node, parent.val.dtype)


def _as_pairs(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
    packed = rec.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return rec.call(aten.view_as_complex.default, packed)


def _unary(op: OpOverload) -> Row:
    def row(rec: Recorder, parent: Node, value: Value, node: Node, args: Any, kwargs: Any) -> Node:
        return rec.call(op, node)

    return row


ROWS: dict[OpOverload, Row] = {
    aten.view.default: _reshaped,
    aten._reshape_alias.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.expand.default: _expanded,
    aten.transpose.int: _transposed,
    aten.t.default: _t,
    aten.permute.default: _permuted,
    aten.slice.Tensor: _scattered(aten.slice_scatter.default),
    aten.select.int: _scattered(aten.select_scatter.default),
    aten.diagonal.default: _scattered(aten.diagonal_scatter.default),
    aten.split.Tensor: _of_split,
    aten.split_with_sizes.default: _of_split,
    aten.unsafe_split.Tensor: _of_split,
    aten.unsafe_split_with_sizes.default: _of_split,
    aten.unbind.int: _of_unbind,
    aten.view.dtype: _as_dtype,
    aten.view_as_real.default: _as_pairs,
    aten.view_as_complex.default: _unary(aten.view_as_real.default),
    aten._conj.default: _unary(aten.conj_physical.default),
    aten._neg_view.default: _unary(aten.neg.default),
}

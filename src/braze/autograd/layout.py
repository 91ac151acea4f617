"""Bring a value to the dtype, sizes and strides of the tensor that it is stored in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..errors import Unsupported
from ..fake.layout import is_dense, less, view_strides
from ..ir import IntLike, Node, TensorType, contiguous_strides
from ..prims.strided import strided_scatter

if TYPE_CHECKING:
    from .record import Recorder

aten = torch.ops.aten


class Emits(Protocol):
    """What records calls: the tracer, or a pass."""

    def call(self, op: Any, /, *args: Any, **kwargs: Any) -> Node: ...


def same_strides(sizes: Sequence[IntLike], a: Sequence[IntLike], b: Sequence[IntLike]) -> bool:
    """Equal where it matters: dims of size 1 do not count, nor does anything in an empty tensor."""
    return any(n == 0 for n in sizes) or all(n == 1 or x == y for n, x, y in zip(sizes, a, b))


def conform(rec: Recorder, node: Node, want: TensorType, old: Node | None) -> Node:
    """``node`` cast, broadcast and, where ``old`` (the previous contents) is given, laid out as ``want``."""
    have: TensorType = node.val
    if have.dtype != want.dtype or have.device != want.device:
        node = rec.call(aten._to_copy.default, node, dtype=want.dtype, device=want.device)
    if node.val.sizes != want.sizes:
        node = rec.call(aten.expand.default, node, list(want.sizes))
    if old is not None and not same_strides(want.sizes, node.val.strides, want.strides):
        node = relayout(rec, node, want, old)
    return node


def relayout(rec: Emits, node: Node, want: TensorType, old: Node) -> Node:
    """A copy of ``node`` with the strides of ``want``. ``old`` lends its memory's shape where that has gaps."""
    sizes, strides = want.sizes, want.strides
    if same_strides(sizes, strides, contiguous_strides(sizes)):
        return rec.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    if is_dense(sizes, strides):
        order = outermost_first(strides)
        back = [order.index(d) for d in range(len(sizes))]
        turned = rec.call(aten.permute.default, node, order)
        packed = rec.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
        return rec.call(aten.permute.default, packed, back)
    if any(s == 0 and n != 1 for n, s in zip(sizes, strides)):
        raise Unsupported("an in-place write to a tensor whose elements share memory (an expanded one)")
    if not same_strides(sizes, old.val.strides, strides):
        raise Unsupported("a second layout of a tensor with gaps in its memory")
    return rec.call(strided_scatter, old, node, list(strides), list(sizes), list(strides), 0)


def outermost_first(strides: Sequence[IntLike]) -> list[int]:
    """The dims by falling stride. Unsupported where symbolic strides leave the order open."""

    def compare(d: int, e: int) -> int:
        if strides[d] == strides[e]:
            return 0
        return -1 if less(strides[e], strides[d]) else 1

    return sorted(range(len(strides)), key=cmp_to_key(compare))


def reshape(rec: Recorder, node: Node, sizes: Sequence[IntLike]) -> Node:
    """``node`` with other sizes: a view where its strides allow, else a view of a copy."""
    val: TensorType = node.val
    if val.sizes == tuple(sizes):
        return node
    if view_strides(val.sizes, val.strides, tuple(sizes)) is None:
        node = rec.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return rec.call(aten.view.default, node, list(sizes))

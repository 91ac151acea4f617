"""How a saved value is stored: most as they are, some as a smaller copy.

    idx: i64 = max_pool2d_with_indices(x, 3)[1]      ->      forward saves idx.to(i16); backward starts with .to(i64)

An input that is overwritten and a view that would keep a larger base alive are copied; so is what has gaps between its
elements, which code generators may close.
"""

from __future__ import annotations

import operator

import torch

from ..fake.layout import is_dense
from ..ir import Node, TensorType, product
from .choose import Plan
from .unalias import clone_of, saved_copy

aten = torch.ops.aten
# Operators whose result 1 counts positions in the last so many dims of their input.
_POSITIONS = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}


def packed(plan: Plan, node: Node) -> Node | None:
    """The call on ``node`` whose result is stored in its place, or None to store ``node`` itself."""
    if node in plan.primal_index:
        return saved_copy(node)
    if plan.shrinks(node) or gaps(node):
        return clone_of(node)
    dtype = _narrow(node)
    return _cast(node, f"{node.name}_packed", dtype) if dtype is not None else None


def gaps(node: Node) -> bool:
    """Whether a value's layout has gaps, or elements that share memory."""
    return isinstance(node.val, TensorType) and not is_dense(node.val.sizes, node.val.strides)


def unpacked(node: Node, stored: Node) -> Node | None:
    """The backward's call on ``stored`` that gives ``node``'s value again; None when they are the same."""
    if not isinstance(node.val, TensorType) or stored.val.dtype == node.val.dtype:
        return None
    out = _cast(stored, f"{node.name}_unpacked", node.val.dtype)
    return out


def _cast(node: Node, name: str, dtype: torch.dtype) -> Node:
    val: TensorType = node.val
    return Node(name, "call", aten._to_copy.default, (node,), {"dtype": dtype}, val.with_(dtype=dtype), node.loc)


def _narrow(node: Node) -> torch.dtype | None:
    """A smaller integer type that holds all values of a position index."""
    if node.target is not operator.getitem or node.args[1] != 1:
        return None
    dims = _POSITIONS.get(node.args[0].target)
    if dims is None:
        return None
    count = product(node.args[0].args[0].val.sizes[-dims:])
    if not isinstance(count, int) or count > 2**31:
        return None
    return torch.int16 if count <= 2**15 else torch.int32

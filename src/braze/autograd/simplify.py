"""Calls that do nothing go: one row an operator.

    a = view(x, [4, 8]); b = view(a, [32]); c = b.to(f32); return c * 2      ->      return view(x, [32]) * 2

A row takes a call whose operands are simplified and gives the node that it equals, or a shorter call, or None.  Graphs
are functional, so a copy equals its source; where both leave the graph, ``unalias`` copies again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from ..fake.layout import view_strides
from ..ir import Graph, Node, TensorType
from .layout import same_strides
from .rewrite import build, replaced, substituted

aten = torch.ops.aten
Row = Callable[[Node], Node | None]
_EXACT = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
    torch.bool: (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16),
    torch.int32: (torch.int64, torch.float64),
}


def simplify(graph: Graph) -> Graph:
    """The graph without calls that give back their operand."""
    env: dict[Node, Node] = {}
    nodes = []
    for n in graph.nodes:
        new = replaced(n, env) if env and n.op == "call" else n
        row = ROWS.get(new.target) if n.op == "call" else None
        found = row(new) if row is not None else None
        if found is None:
            found = new
        if found is not n:
            env[n] = found
        if found is new or found.op == "call" and found.name == n.name:
            nodes.append(found)
    return build(graph.name, graph.inputs, nodes, substituted(graph.outputs, env))


def _source(node: Node) -> Node:
    out = node.args[0]
    assert isinstance(out, Node)
    return out


def _same_type(node: Node) -> Node | None:
    """The operand, when the result has its dtype, device, sizes and strides."""
    a: TensorType = _source(node).val
    b: TensorType = node.val
    same = a.sizes == b.sizes and a.dtype == b.dtype and a.device == b.device
    return _source(node) if same and same_strides(a.sizes, a.strides, b.strides) else None


def _again(node: Node, target: OpOverload, *args: Any) -> Node:
    """The same value by another call."""
    out = Node(node.name, "call", target, args, {}, node.val, node.loc)
    out.tags = node.tags
    return out


def _view(node: Node) -> Node | None:
    same = _same_type(node)
    if same is not None:
        return same
    inner = _source(node)
    if inner.op == "call" and inner.target in _RESHAPES:
        root = _source(inner)
        t: TensorType = root.val
        if t.sizes == node.val.sizes and same_strides(t.sizes, t.strides, node.val.strides):
            return root
        if view_strides(t.sizes, t.strides, node.val.sizes) is not None:
            return _again(node, aten.view.default, root, list(node.val.sizes))
    if node.target is not aten.view.default:
        return _again(node, aten.view.default, inner, list(node.val.sizes))
    return None


def _to_copy(node: Node) -> Node | None:
    same = _same_type(node)
    if same is not None:
        return same
    inner = _source(node)
    if inner.op != "call" or inner.target is not aten._to_copy.default:
        return None
    root: TensorType = _source(inner).val
    back = root.dtype == node.val.dtype and inner.val.dtype in _EXACT.get(root.dtype, ())
    stays = root.device == node.val.device == inner.val.device
    laid_out = same_strides(root.sizes, root.strides, node.val.strides)
    return _source(inner) if back and stays and laid_out else None


def _undone(node: Node) -> Node | None:
    """A transpose of a transpose."""
    inner = _source(node)
    if inner.op == "call" and inner.target is node.target:
        rank = inner.val.rank
        mine = {d % rank for d in node.args[1:]} if rank else set()
        theirs = {d % rank for d in inner.args[1:]} if rank else set()
        if mine == theirs:
            return _source(inner)
    return None


def _permute(node: Node) -> Node | None:
    same = _same_type(node) if [d % len(node.args[1]) for d in node.args[1]] == list(range(len(node.args[1]))) else None
    if same is not None:
        return same
    inner = _source(node)
    if inner.op == "call" and inner.target is aten.permute.default:
        dims = [inner.args[1][d] for d in node.args[1]]
        if [d % len(dims) for d in dims] == list(range(len(dims))):
            return _source(inner)
        return _again(node, aten.permute.default, _source(inner), dims)
    return None


def _neutral(value: float) -> Row:
    """The operand, where the other one is the number that changes nothing (not even a NaN or the sign of a zero)."""

    def row(node: Node) -> Node | None:
        other = node.args[1] if len(node.args) == 2 and not node.kwargs else None
        return _same_type(node) if type(other) in (int, float) and other == value else None

    return row


def _made(value: float | None) -> Row:
    """What is made like a tensor is made of sizes: the tensor is not read, nor kept for it."""

    def row(node: Node) -> Node | None:
        t: TensorType = node.val
        fill = node.args[-1] if value is None else value
        if not t.is_contiguous or node.kwargs.get("pin_memory") or type(fill) not in (int, float, bool):
            return None
        named = {"dtype": t.dtype, "device": t.device}
        return Node(node.name, "call", aten.full.default, (list(t.sizes), fill), named, node.val, node.loc)

    return row


def _evenly(node: Node) -> Node | None:
    """A gradient divided among equal elements, as ``max`` has it: 0 * inf for none and for infinite ones.
    The engine writes that product for CUDA and for subclasses, which fakes are; on a CPU it fills the elements."""
    mask, share = node.args
    if node.val.device.type != "cpu" or not _matches(mask) or not _is(share, aten.div.Tensor) or share.val.rank:
        return None
    count = share.args[1]
    if not _is(count, aten.sum.default) or count.args[0] is not mask or share.val.dtype != node.val.dtype:
        return None
    return _again(node, aten.where.ScalarOther, mask, share, 0)


def _matches(x: Any) -> bool:
    """``x == y``, or both NaN: the engine's own spelling."""
    if not _is(x, aten.logical_or.default) or not _is(x.args[0], aten.eq.Tensor):
        return False
    both = x.args[1]
    return _is(both, aten.logical_and.default) and all(_is(a, aten.isnan.default) for a in both.args)


def _is(x: Any, target: OpOverload) -> bool:
    return isinstance(x, Node) and x.op == "call" and x.target is target


def _product(node: Node) -> Node | None:
    return _TIMES_ONE(node) or _evenly(node)


_TIMES_ONE = _neutral(1)
_MADE = {
    aten.zeros_like.default: _made(0),
    aten.ones_like.default: _made(1),
    aten.full_like.default: _made(None),
    aten.new_zeros.default: _made(0),
    aten.new_ones.default: _made(1),
    aten.new_full.default: _made(None),
}
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default})
ROWS: dict[OpOverload, Row] = {
    **{op: _view for op in _RESHAPES},
    aten._to_copy.default: _to_copy,
    aten.clone.default: _same_type,
    aten.detach.default: _same_type,
    aten.alias.default: _same_type,
    aten.expand.default: _same_type,
    aten.slice.Tensor: _same_type,
    aten.mul.Tensor: _product,
    **{op: _TIMES_ONE for op in (aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)},
    aten.pow.Tensor_Scalar: _neutral(1),
    aten.t.default: _undone,
    aten.transpose.int: _undone,
    aten.permute.default: _permute,
    **_MADE,
}

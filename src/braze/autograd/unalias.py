"""Tell apart what must not share memory when it leaves a graph.

Inside of a functional graph sharing is harmless: copies vanish and equal values merge.  Outside, a user may overwrite
one output and must not see another, or an input, change.

    a = x + 1; b = a; return a, b      ->      a = x + 1; b = clone(a); return a, b
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..fake import find_rule
from ..fake.layout import is_dense
from ..ir import Graph, Node
from ..prims.prim import Prim
from .layout import same_strides
from .rewrite import build
from .schema import op_info

aten = torch.ops.aten


def storage_root(node: Node) -> Node:
    """The node whose memory this node's value shows, through views."""
    while node.op == "call":
        call = node.args[0] if node.target is operator.getitem else node
        if call.op != "call" or not _is_view(call.target):
            break
        node = call.args[0]
    return node


def _is_view(target: Any) -> bool:
    if isinstance(target, Prim):
        return target.family == "view"
    return isinstance(target, OpOverload) and op_info(target).returns_view


def clone_of(node: Node) -> Node:
    """A call that copies a node's value, with its strides where they have no gaps."""
    rule = find_rule(aten.clone.default)
    assert rule is not None
    val = rule(node.val)
    return Node(f"{node.name}_copy", "call", aten.clone.default, (node,), {}, val, node.loc)


def unalias(graph: Graph, n_results: int, mutated: Sequence[int]) -> Graph:
    """A forward graph whose first ``n_results`` outputs own their memory, each its own; the outputs after them, the new
    values of the inputs ``mutated``, do not lie in inputs that are overwritten too."""
    taken: set[Node] = set()
    outputs = list(graph.outputs)
    overwritten = {graph.inputs[i] for i in mutated}
    copies: list[Node] = []
    for i, out in enumerate(outputs):
        if not isinstance(out, Node):
            continue
        root = storage_root(out)
        if root in overwritten or i < n_results and (root.op != "call" or root in taken):
            outputs[i] = _copy(out, copies, i)
        elif i < n_results:
            taken.add(root)
    if not copies:
        return graph
    return build(graph.name, graph.inputs, graph.nodes + copies, tuple(outputs))


def unalias_gradients(graph: Graph, n_saved: int) -> Graph:
    """A backward graph whose gradients share memory neither with saved tensors nor, unless equal, with each other."""
    owner: dict[Node, Node] = {}
    outputs = list(graph.outputs)
    copies: list[Node] = []
    kept = set(graph.inputs[:n_saved])
    for i, out in enumerate(outputs):
        if not isinstance(out, Node):
            continue
        root = storage_root(out)
        if root in kept or root.op == "const" or owner.setdefault(root, out) is not out:
            outputs[i] = _copy(out, copies, i)
    if not copies:
        return graph
    return build(graph.name, graph.inputs, graph.nodes + copies, tuple(outputs))


def _copy(node: Node, copies: list[Node], index: int) -> Node:
    """A copy of an output: of its value where that keeps the strides, else the same views of a copy of its root."""
    out = clone_of(node)
    root = storage_root(node)
    if not _same_layout(out, node) and is_dense(root.val.sizes, root.val.strides):
        return _views_of(node, clone_of(root), copies, index)
    out.name = f"{node.name}_out{index}"
    copies.append(out)
    return out


def _same_layout(a: Node, b: Node) -> bool:
    return same_strides(a.val.sizes, a.val.strides, b.val.strides)


def _views_of(node: Node, source: Node, copies: list[Node], index: int) -> Node:
    """``node`` with the root of its views replaced by ``source``."""
    chain = []
    while True:
        chain.append(node)
        is_item = node.target is operator.getitem
        if not is_item and storage_root(node) is node.args[0]:
            break
        node = node.args[0]
    source.name = f"{source.name}_out{index}"
    copies.append(source)
    for n in reversed(chain):
        source = Node(f"{n.name}_out{index}", "call", n.target, (source, *n.args[1:]), n.kwargs, n.val, n.loc)
        copies.append(source)
    return source


def saved_copy(node: Node) -> Node:
    """A copy of an input that is overwritten. Unsupported where its layout cannot be kept."""
    if not is_dense(node.val.sizes, node.val.strides):
        raise Unsupported(
            "an input with gaps in its memory is overwritten, and its old value is needed in the backward"
        )
    return clone_of(node)

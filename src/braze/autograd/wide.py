"""Products of 16-bit matrices that leave a graph in float32, on a GPU: written so at once.

    y = mm(a, b); return _to_copy(y, dtype=float32)      ->      return mm.dtype(a, b, float32)

Such are the gradients of weights under autocast.  The library adds up in float32 anyway, so the result is rounded once
less, and neither written nor read in between.  What arithmetic reads stays narrow: there the copy costs nothing.
"""

from __future__ import annotations

import torch

from ..ir import Graph, Node, TensorType, nodes_in
from .layout import same_strides
from .rewrite import build, replaced, substituted

aten = torch.ops.aten


def wide_products(graph: Graph) -> Graph:
    """The graph with those products that nothing else reads."""
    found = [n for n in graph.nodes if n.target is aten.mm.default and _narrow(n.val) and not _empty(n)]
    if not found or torch.version.hip is not None:
        return graph
    users, outputs = graph.users(), set(nodes_in(graph.outputs))
    widened: dict[Node, Node] = {}
    for n in found:
        u = users[n][0] if len(users[n]) == 1 and n not in outputs else None
        if u is not None and u in outputs and not users[u] and _widens(u, n.val):
            widened[u] = n
    gone = set(widened.values())
    env: dict[Node, Node] = {}
    nodes = []
    for n in graph.nodes:
        if n in gone:
            continue
        new = replaced(n, env) if env and n.op == "call" else n
        if n in widened:
            product = replaced(widened[n], env)
            new = Node(n.name, "call", aten.mm.dtype, (*product.args, torch.float32), {}, n.val, n.loc)
            new.tags = n.tags
        if new is not n:
            env[n] = new
        nodes.append(new)
    return build(graph.name, graph.inputs, nodes, substituted(graph.outputs, env))


def _narrow(t: TensorType) -> bool:
    return t.device.type == "cuda" and t.dtype in (torch.float16, torch.bfloat16)


def _empty(n: Node) -> bool:
    return any(size == 0 for a in n.args for size in a.val.sizes)


def _widens(n: Node, narrow: TensorType) -> bool:
    """Whether a call copies a product to float32, and nothing else."""
    wide = n.val
    return (
        n.target is aten._to_copy.default
        and wide.dtype is torch.float32
        and wide.device == narrow.device
        and same_strides(wide.sizes, wide.strides, narrow.strides)
    )

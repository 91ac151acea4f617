"""Convolutions' biases on a GPU, as arithmetic of their own.

    y = convolution(x, w, b, …)                 ->  y = convolution(x, w, None, …) + view(b, [C, 1, 1])
    gx, gw, gb = convolution_backward(g, …)     ->  gx, gw = convolution_backward(g, …);  gb = sum(g, [0, 2, 3])

The vendor's library runs both as kernels of their own, over the whole image.  As arithmetic the addition fuses with
what reads the result, and the sum with what makes the gradient.
"""

from __future__ import annotations

import operator

import torch

from ..ir import Graph, Node, TensorType
from .rewrite import Emitter, build, replaced, substituted

aten = torch.ops.aten


def biases_apart(graph: Graph) -> Graph:
    """The graph with the biases of its convolutions on a GPU taken out of the calls."""
    if not any(_biased(n) for n in graph.nodes):
        return graph
    emit = Emitter(graph)
    nodes = emit.out.nodes
    env: dict[Node, Node] = {}
    sums: dict[Node, Node] = {}  # a backward call -> the gradient that its bias adds up
    for n in graph.nodes:
        new = replaced(n, env) if env and n.op == "call" else n
        if new is not n:
            env[n] = new
        call = new.args[0] if new.target is operator.getitem else None
        start = len(nodes)
        if call in sums and new.args[1] == 2:
            env[n] = emit(aten.sum.dim_IntList, sums[call], [0, *range(2, sums[call].val.rank)])
        elif _biased(new):
            plain = _without(new)
            nodes.append(plain)
            if new.target is aten.convolution.default:
                env[n] = _added(emit, plain, new.args[2])
            else:
                env[n], sums[plain] = plain, new.args[0]
        else:
            nodes.append(new)
            continue
        for added in nodes[start:]:
            added.loc, added.tags = n.loc, n.tags
    return build(graph.name, graph.inputs, nodes, substituted(graph.outputs, env))


def _biased(n: Node) -> bool:
    """Whether the call adds a bias to an image on a GPU, or makes a bias's gradient."""
    if n.op != "call" or n.target not in (aten.convolution.default, aten.convolution_backward.default):
        return False
    x: TensorType = n.args[0].val
    if x.device.type != "cuda" or not x.dtype.is_floating_point or x.rank < 3:
        return False
    if n.target is aten.convolution.default:
        return isinstance(n.args[2], Node) and n.args[2].val.dtype == n.val.dtype
    return bool(n.args[-1][2]) and any(n.args[-1][:2]) and n.val[2].dtype == x.dtype


def _without(n: Node) -> Node:
    args, val = list(n.args), n.val
    if n.target is aten.convolution.default:
        args[2] = None
    else:
        args[-1] = [*args[-1][:2], False]
        val = (*val[:2], None)
    return Node(n.name, n.op, n.target, tuple(args), n.kwargs, val, n.loc)


def _added(emit: Emitter, y: Node, bias: Node) -> Node:
    """The addition has the convolution's strides: both are dense, whatever eager makes of a broadcast."""
    per = emit(aten.view.default, bias, [bias.val.sizes[0]] + [1] * (y.val.rank - 2))
    out = emit(aten.add.Tensor, y, per)
    out.val = y.val
    return out

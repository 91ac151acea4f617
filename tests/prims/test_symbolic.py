"""Decomposition with symbolic sizes: the same graph serves every batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from braze.fake import find_rule
from braze.ir import (
    Expr,
    Graph,
    IntLike,
    Node,
    TensorType,
    evaluate,
    interpret,
    map_leaves,
    symbol,
    tensor_type,
    verify,
)
from braze.prims import decompose

aten = torch.ops.aten
B = symbol("b", 2, 64)


class Writer:
    """Appends ATen calls with the vals of the shape rules."""

    def __init__(self) -> None:
        self.graph = Graph()

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        rule = find_rule(op)
        assert rule is not None, op
        types, named = map_leaves((args, kwargs), lambda x: x.val if isinstance(x, Node) else x)
        return self.graph.call(op, args, kwargs, rule(*types, **named))


def at_size(graph: Graph, b: int) -> Graph:
    """The graph with the symbol replaced."""

    def value(x: Any) -> Any:
        if isinstance(x, Expr):
            return evaluate(x, {"b": b})
        if isinstance(x, TensorType):
            return x.with_(**{k: map_leaves(getattr(x, k), value) for k in ("sizes", "strides", "offset")})
        return env.get(x, x) if isinstance(x, Node) else x

    out, env = Graph(), {}
    for n in graph.nodes:
        if n.op == "input":
            env[n] = out.input(n.name, value(n.val))
        else:
            env[n] = out.call(
                n.target, map_leaves(n.args, value), map_leaves(n.kwargs, value), map_leaves(n.val, value)
            )
    out.outputs = map_leaves(graph.outputs, value)
    return out


def attention(w: Writer, x: Node, n: IntLike) -> Node:
    q = w(aten.permute.default, w(aten.view.default, x, [n, 5, 2, 4]), [0, 2, 1, 3])
    flat = w(aten.view.default, w(aten.clone.default, q, memory_format=torch.contiguous_format), [n * 2, 5, 4])
    scores = w(aten.bmm.default, flat, w(aten.transpose.int, flat, 1, 2))
    return w(aten._softmax.default, w(aten.div.Tensor, scores, 2.0), -1, False)


def losses(w: Writer, x: Node, n: IntLike) -> Node:
    rows = w(aten.view.default, x, [n * 5, 8])
    log = w(aten._log_softmax.default, rows, 1, False)
    return w(aten.mean.default, w(aten.gelu.default, log))


def pieces(w: Writer, x: Node, n: IntLike) -> Node:
    left = w(aten.slice.Tensor, x, 0, 1, 9223372036854775807)
    both = w(aten.cat.default, [w(aten.neg.default, left), x], 0)
    padded = w(aten.constant_pad_nd.default, both, [1, 2], 3.0)
    return w(aten.sum.dim_IntList, w(aten.mul.Tensor, padded, w(aten.select.int, padded, 0, 0)), [0], True)


def norms(w: Writer, x: Node, n: IntLike) -> Node:
    weight = w(aten.full.default, [8], 2.0)
    whole = w(aten.native_layer_norm.default, x, [8], weight, None, 1e-5)
    h = w.graph.getitem(whole, 0)
    mean, rstd = w.graph.getitem(whole, 1), w.graph.getitem(whole, 2)
    back = w(aten.native_layer_norm_backward.default, h, x, [8], mean, rstd, weight, None, [True, True, False])
    return w(aten.add.Tensor, w.graph.getitem(back, 0), w(aten.var.correction, h, [0], correction=1))


def triangle(w: Writer, x: Node, n: IntLike) -> Node:
    first = w(aten.select.int, x, 2, 0)
    return w(aten.tril.default, w(aten.expand.default, w(aten.unsqueeze.default, first, 1), [n, 3, 5]), 1)


CASES: list[Callable[[Writer, Node, IntLike], Node]] = [attention, losses, pieces, norms, triangle]


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_symbolic_batch(case: Callable[[Writer, Node, IntLike], Node]) -> None:
    w = Writer()
    x = w.graph.input("x", tensor_type((B, 5, 8)))
    w.graph.outputs = (case(w, x, B),)
    low = verify(decompose(w.graph))
    for b in (2, 7):
        t = torch.randn(b, 5, 8)
        (want,), (got,) = interpret(at_size(w.graph, b), [t]), interpret(at_size(low, b), [t])
        torch.testing.assert_close(got, want)

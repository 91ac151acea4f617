"""Normalisations split into statistics and arithmetic, so that the backward may do the arithmetic again.

    out, mean, rstd = native_layer_norm(x, [n], w, b, eps)
        ->  _, mean, rstd = native_layer_norm(x, [n], w, b, eps);  out = (x - mean) * rstd * w + b

The statistics are small and saved; ``out`` can be had again from ``x``, which the backward reads anyway.  The call
stays for its statistics; fusion computes both in one pass over ``x``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch._ops import OpOverload

from ..fake import find_rule
from ..ir import Graph, Node, TensorType, map_leaves
from .layout import same_strides
from .rewrite import build, replaced, substituted

aten = torch.ops.aten


class _Emitter:
    """Appends calls to a graph, with names that the rest of the old graph does not use."""

    def __init__(self, graph: Graph) -> None:
        self.out = Graph(graph.name)
        self.out._names = {n.name: 0 for n in graph.nodes}

    def __call__(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        rule = find_rule(op)
        assert rule is not None, op
        types, named = map_leaves((args, kwargs), lambda x: x.val if isinstance(x, Node) else x)
        return self.out.call(op, args, kwargs, rule(*types, **named))


def split_norms(graph: Graph) -> Graph:
    """The graph with the first results of layer, batch and group norms computed from their statistics."""
    if not any(n.op == "call" and n.target in ROWS for n in graph.nodes):
        return graph
    emit = _Emitter(graph)
    env: dict[Node, Node] = {}
    nodes = emit.out.nodes
    for n in graph.nodes:
        new = replaced(n, env) if env and n.op == "call" else n
        if new is not n:
            env[n] = new
        if n.target is operator.getitem and n.args[1] == 0 and n.args[0].target in ROWS:
            start = len(nodes)
            call = new.args[0]
            found = ROWS[call.target](emit, call)
            if found is not None and _equal(found.val, n.val):
                env[n] = found
                for added in nodes[start:]:
                    added.loc = n.loc
                continue
            del nodes[start:]
        nodes.append(new)
    return build(graph.name, graph.inputs, nodes, substituted(graph.outputs, env))


def _equal(a: TensorType, b: TensorType) -> bool:
    return a.sizes == b.sizes and a.dtype == b.dtype and same_strides(a.sizes, a.strides, b.strides)


def _wide(emit: _Emitter, x: Node) -> Node:
    return emit(aten._to_copy.default, x, dtype=torch.float32) if x.val.dtype.itemsize < 4 else x


def _finish(emit: _Emitter, y: Node, weight: Node | None, bias: Node | None, dtype: torch.dtype) -> Node:
    if weight is not None:
        y = emit(aten.mul.Tensor, y, _wide(emit, weight))
    if bias is not None:
        y = emit(aten.add.Tensor, y, _wide(emit, bias))
    return y if y.val.dtype == dtype else emit(aten._to_copy.default, y, dtype=dtype)


def _normalized(emit: _Emitter, x: Node, mean: Node, rstd: Node) -> Node:
    return emit(aten.mul.Tensor, emit(aten.sub.Tensor, _wide(emit, x), mean), rstd)


def _stat(emit: _Emitter, call: Node, index: int) -> Node:
    return emit.out.getitem(call, index)


def _layer_norm(emit: _Emitter, call: Node) -> Node | None:
    x, _, weight, bias, _ = call.args
    y = _normalized(emit, x, _stat(emit, call, 1), _stat(emit, call, 2))
    return _finish(emit, y, weight, bias, x.val.dtype)


def _group_norm(emit: _Emitter, call: Node) -> Node | None:
    x, weight, bias, n, c, hw, groups, _ = call.args
    if not _contiguous(x.val):
        return None
    flat = emit(aten.view.default, x, [n, groups, (c // groups) * hw])
    mean, rstd = (emit(aten.unsqueeze.default, _stat(emit, call, i), 2) for i in (1, 2))
    y = emit(aten.view.default, _normalized(emit, flat, mean, rstd), list(x.val.sizes))
    per = [c] + [1] * (x.val.rank - 2)
    weight, bias = (None if p is None else emit(aten.view.default, p, per) for p in (weight, bias))
    return _finish(emit, y, weight, bias, x.val.dtype)


def _contiguous(t: TensorType) -> bool:
    return t.is_contiguous


def _batch_norm(emit: _Emitter, call: Node) -> Node | None:
    x, weight, bias, mean, var, training, _, eps = call.args
    if training:
        mean, rstd = _stat(emit, call, 1), _stat(emit, call, 2)
    else:
        mean = _wide(emit, mean)
        rstd = emit(aten.rsqrt.default, emit(aten.add.Tensor, _wide(emit, var), eps))
    if weight is not None:
        rstd = emit(aten.mul.Tensor, rstd, _wide(emit, weight))
    per = [x.val.sizes[1]] + [1] * (x.val.rank - 2)
    mean, rstd = (emit(aten.view.default, p, per) for p in (mean, rstd))
    y = _normalized(emit, x, mean, rstd)
    return _finish(emit, y, None, bias if bias is None else emit(aten.view.default, bias, per), x.val.dtype)


ROWS: dict[OpOverload, Callable[[_Emitter, Node], Node | None]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
}

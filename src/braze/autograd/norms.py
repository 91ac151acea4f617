"""Normalisations split into statistics and arithmetic, so that the backward may do the arithmetic again.

    out, mean, rstd = native_layer_norm(x, [n], w, b, eps)
        ->  _, mean, rstd = native_layer_norm(x, [n], w, b, eps);  out = (x - mean) * rstd * w + b

    out = _softmax(x, -1, False)
        ->  e = exp(x - amax(x, [-1], True));  out = e / sum(e, [-1], True)

The statistics are small and saved; ``out`` can be had again from ``x``, which the backward reads anyway.  The call
of a norm stays for its statistics; fusion computes both in one pass over ``x``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch._ops import OpOverload

from ..fake.layout import view_strides
from ..ir import Graph, IntLike, Node, TensorType
from .layout import same_strides
from .rewrite import Emitter, build, replaced, substituted

aten = torch.ops.aten


def split_norms(graph: Graph) -> Graph:
    """The graph with the results of softmaxes, and the first results of layer, batch and group norms, computed from
    their statistics."""
    if not any(n.op == "call" and n.target in ROWS for n in graph.nodes):
        return graph
    emit = Emitter(graph)
    env: dict[Node, Node] = {}
    nodes = emit.out.nodes
    for n in graph.nodes:
        new = replaced(n, env) if env and n.op == "call" else n
        if new is not n:
            env[n] = new
        call = _normalisation(new)
        if call is not None:
            start = len(nodes)
            found = ROWS[call.target](emit, call)
            if found is not None and _equal(found.val, n.val):
                env[n] = found
                for added in nodes[start:]:
                    added.loc = n.loc
                continue
            del nodes[start:]
        nodes.append(new)
    return build(graph.name, graph.inputs, nodes, substituted(graph.outputs, env))


def _normalisation(n: Node) -> Node | None:
    """The call whose normalised result ``n`` is."""
    if n.target is operator.getitem:
        n, first = n.args[0], n.args[1] == 0
        return n if first and n.target in ROWS and isinstance(n.val, tuple) else None
    return n if n.op == "call" and n.target in ROWS and isinstance(n.val, TensorType) else None


def _equal(a: TensorType, b: TensorType) -> bool:
    return a.sizes == b.sizes and a.dtype == b.dtype and same_strides(a.sizes, a.strides, b.strides)


def _wide(emit: Emitter, x: Node) -> Node:
    return emit(aten._to_copy.default, x, dtype=torch.float32) if x.val.dtype.itemsize < 4 else x


def _finish(emit: Emitter, y: Node, weight: Node | None, bias: Node | None, dtype: torch.dtype) -> Node:
    if weight is not None:
        y = emit(aten.mul.Tensor, y, _wide(emit, weight))
    if bias is not None:
        y = emit(aten.add.Tensor, y, _wide(emit, bias))
    return y if y.val.dtype == dtype else emit(aten._to_copy.default, y, dtype=dtype)


def _normalized(emit: Emitter, x: Node, mean: Node, rstd: Node) -> Node:
    return emit(aten.mul.Tensor, emit(aten.sub.Tensor, _wide(emit, x), mean), rstd)


def _stat(emit: Emitter, call: Node, index: int) -> Node:
    return emit.out.getitem(call, index)


def _layer_norm(emit: Emitter, call: Node) -> Node | None:
    x, _, weight, bias, _ = call.args
    y = _normalized(emit, x, _stat(emit, call, 1), _stat(emit, call, 2))
    return _finish(emit, y, weight, bias, x.val.dtype)


def _group_norm(emit: Emitter, call: Node) -> Node | None:
    x, weight, bias, n, c, hw, groups, _ = call.args
    if x.val.is_contiguous:
        parts: list[IntLike] = [(c // groups) * hw]
    else:
        parts = [c // groups, *x.val.sizes[2:]]  # a view of channels_last too
    if view_strides(x.val.sizes, x.val.strides, (n, groups, *parts)) is None:
        return None
    flat = emit(aten.view.default, x, [n, groups, *parts])
    mean, rstd = (emit(aten.view.default, _stat(emit, call, i), [n, groups] + [1] * len(parts)) for i in (1, 2))
    y = emit(aten.view.default, _normalized(emit, flat, mean, rstd), list(x.val.sizes))
    per = [c] + [1] * (x.val.rank - 2)
    weight, bias = (None if p is None else emit(aten.view.default, p, per) for p in (weight, bias))
    return _finish(emit, y, weight, bias, x.val.dtype)


def _rms_norm(emit: Emitter, call: Node) -> Node | None:
    x, _, weight, *_ = call.args
    y = emit(aten.mul.Tensor, _wide(emit, x), _stat(emit, call, 1))
    return _finish(emit, y, weight, None, x.val.dtype)


def _batch_norm(emit: Emitter, call: Node) -> Node | None:
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


def _exp(emit: Emitter, call: Node) -> tuple[Node, Node, Node]:
    """x less its largest, that one's exponential, and its sum; in float32 at least."""
    x, dim = call.args[:2]
    x = _wide(emit, x)
    less = emit(aten.sub.Tensor, x, emit(aten.amax.default, x, [dim], True))
    exp = emit(aten.exp.default, less)
    return less, exp, emit(aten.sum.dim_IntList, exp, [dim], True)


def _softmax(emit: Emitter, call: Node) -> Node | None:
    _, exp, total = _exp(emit, call)
    return _finish(emit, emit(aten.div.Tensor, exp, total), None, None, call.val.dtype)


def _log_softmax(emit: Emitter, call: Node) -> Node | None:
    less, _, total = _exp(emit, call)
    y = emit(aten.sub.Tensor, less, emit(aten.log.default, total))
    return _finish(emit, y, None, None, call.val.dtype)


def _safe_softmax(emit: Emitter, call: Node) -> Node | None:
    """Rows of nothing but -inf give zeros."""
    x, dim, *dtype = call.args
    if dtype or call.kwargs:
        return None
    x = _wide(emit, x)
    top = emit(aten.amax.default, x, [dim], True)
    empty = emit(aten.eq.Scalar, top, float("-inf"))
    exp = emit(aten.exp.default, emit(aten.sub.Tensor, x, emit(aten.masked_fill.Scalar, top, empty, 0.0)))
    total = emit(aten.masked_fill.Scalar, emit(aten.sum.dim_IntList, exp, [dim], True), empty, 1.0)
    return _finish(emit, emit(aten.div.Tensor, exp, total), None, None, call.val.dtype)


ROWS: dict[OpOverload, Callable[[Emitter, Node], Node | None]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._fused_rms_norm.default: _rms_norm,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten._safe_softmax.default: _safe_softmax,
}

"""Scatters: a kernel that fills the result with the operand, then one that stores or adds at indirect places.

Additions into 16-bit floats are made in f32 and rounded once.  The two kernels write one buffer, in order; it may be
read after the last of them.
"""

from __future__ import annotations

import torch

from braze.ir import IntLike, Node, TensorType

from ..build import Body, Lowering, Rule, compute_dtype, fresh_type
from ..ir import Buffer, Store
from ..ref import Ref, whole
from .indexing import checked, subscript


def _start(state: Lowering, node: Node, x: Ref, type: TensorType) -> Buffer:
    """A fresh buffer of the result's layout, filled with ``x`` by a kernel."""
    body = Body(node, x.sizes)
    value = body.load(x)
    name = node.name if type.dtype == node.val.dtype else state.name(node.name)
    return state.kernel(body, body.convert(value, type.dtype), type, name=name).buffer


def _finish(state: Lowering, node: Node, out: Buffer) -> Ref:
    """The result, rounded to the node's dtype where the sum was made in a wider one."""
    if out.type.dtype == node.val.dtype:
        return whole(out)
    body = Body(node, node.val.sizes)
    return state.kernel(body, body.load(whole(out)), node.val)


def _sum_type(node: Node, accumulate: bool) -> TensorType:
    val: TensorType = node.val
    return fresh_type(val.with_(dtype=compute_dtype(val.dtype)) if accumulate else val)


def _index_put(state: Lowering, node: Node) -> Ref:
    x, indices, values = state.ref(node.args[0]), node.args[1], state.ref(node.args[2])
    accumulate = bool(node.args[3]) if len(node.args) > 3 else bool(node.kwargs.get("accumulate", False))
    if accumulate and node.val.dtype == torch.bool:
        raise state.unsupported(node, "an accumulating index_put into bool")
    out = _start(state, node, x, _sum_type(node, accumulate))
    body = Body(node, values.sizes)
    value = body.convert(body.load(values), out.type.dtype)
    place, bindings = subscript(state, body, x.sizes, indices)
    body.instrs.append(Store(out, tuple(place), value, "atomic_add" if accumulate else "set", bindings))
    state.push(body, suffix="_add" if accumulate else "_put")
    return _finish(state, node, out)


def _scatter(state: Lowering, node: Node) -> Ref:
    x, dim, index, src = (state.operand(a) for a in node.args)
    accumulate = node.target.name == "scatter_add"
    if accumulate and node.val.dtype == torch.bool:
        raise state.unsupported(node, "scatter_add into bool")
    out = _start(state, node, x, _sum_type(node, accumulate))
    body = Body(node, src.sizes)
    value = body.convert(body.load(src), out.type.dtype)
    place: list[IntLike] = [0 if n == 1 else e for e, n in zip(body.axes, x.sizes)]
    place[dim], bound = checked(state, body, index, list(body.axes), x.sizes[dim])
    bindings = (bound,) if bound else ()
    body.instrs.append(Store(out, tuple(place), value, "atomic_add" if accumulate else "set", bindings))
    state.push(body, suffix="_add" if accumulate else "_put")
    return _finish(state, node, out)


RULES: dict[str, Rule] = {"index_put": _index_put, "scatter": _scatter, "scatter_add": _scatter}

"""Tensors from nothing: constants, ranges, random numbers.  ``fuse`` always inlines the first two."""

from __future__ import annotations

import torch

from braze.ir import Node

from ..build import Body, Lowering, Rule, compute_dtype, op_name
from ..ir import Extern, Index, Load
from ..ref import Ref, linearize, whole


def _full(state: Lowering, node: Node) -> Ref:
    value = state.operand(node.args[1])
    body = Body(node, node.val.sizes)
    return state.kernel(body, body.scalar(value, compute_dtype(node.val.dtype)), node.val)


def _iota(state: Lowering, node: Node) -> Ref:
    start, step = state.operand(node.args[1]), state.operand(node.args[2])
    body = Body(node, node.val.sizes)
    value = body.add(Index(start + step * body.axes[0]))
    return state.kernel(body, body.convert(value, compute_dtype(node.val.dtype)), node.val)


def _philox_seed(state: Lowering, node: Node) -> Ref:
    out = state.buffer(node.name, node.val)
    state.steps.append(Extern(node.target, tuple(node.args), {}, (out,), ((op_name(node), node.loc),)))
    return whole(out)


def _philox_uniform(state: Lowering, node: Node) -> Ref:
    """The stream number is read from memory, so that draws of different streams are one kernel."""
    seed, stream = state.ref(node.args[0]), state.constant(node.args[1], node.val.device)
    body = Body(node, node.val.sizes)
    key = body.add(Load(seed.buffer, (0,)))
    first = body.add(Load(seed.buffer, (1,)))
    offset = body.compute("add", (first, body.add(Load(stream, (0,)))), torch.int64)
    index = body.add(Index(linearize(body.axes, node.val.sizes)))
    return state.kernel(body, body.compute("philox", (key, offset, index), torch.float32), node.val)


RULES: dict[str, Rule] = {
    "full": _full,
    "iota": _iota,
    "philox_seed": _philox_seed,
    "philox_uniform": _philox_uniform,
}

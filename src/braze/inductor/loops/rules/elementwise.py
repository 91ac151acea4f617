"""Elementwise primitives: load the operands at the output's axes, compute once, store."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir import Node, TensorType

from ..build import NARROW, Body, Lowering, Rule, compute_dtype
from ..ir import Value
from ..ref import Ref


def operands(state: Lowering, body: Body, args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Value, ...]:
    """The operands as values: tensors loaded (16-bit floats as f32), scalars as constants of ``dtype``."""
    out: list[Value] = []
    for a in args:
        x = state.env[a] if isinstance(a, Node) else a
        if isinstance(x, Ref):
            x = state.on_device(x, body.node.val.device)
            out.append(body.wide(body.load(x)))
        else:
            out.append(body.scalar(x, dtype))
    return tuple(out)


def _tensor_dtype(args: tuple[Any, ...]) -> torch.dtype:
    for a in args:
        if isinstance(a, Node) and isinstance(a.val, TensorType):
            return compute_dtype(a.val.dtype)
    raise AssertionError("an elementwise primitive needs a tensor operand")


def elementwise(state: Lowering, node: Node) -> Ref:
    """Any primitive that is a ``Compute`` of its own name: the result has the operands' compute dtype, or bool."""
    val: TensorType = node.val
    body = Body(node, val.sizes)
    values = operands(state, body, node.args, _tensor_dtype(node.args))
    return state.kernel(body, body.compute(node.target.name, values, compute_dtype(val.dtype)), val)


def _where(state: Lowering, node: Node) -> Ref:
    body = Body(node, node.val.sizes)
    cond, *values = operands(state, body, node.args, compute_dtype(node.val.dtype))
    return state.kernel(body, body.compute("where", (cond, *values), compute_dtype(node.val.dtype)), node.val)


def _clone(state: Lowering, node: Node) -> Ref:
    body = Body(node, node.val.sizes)
    return state.kernel(body, body.load(state.on_device(state.ref(node.args[0]), node.val.device)), node.val)


def _convert(state: Lowering, node: Node) -> Ref:
    body = Body(node, node.val.sizes)
    value = body.load(state.on_device(state.ref(node.args[0]), node.val.device))
    dtype = node.val.dtype
    if dtype in NARROW and value.dtype != dtype:
        rounded = body.compute("convert", (body.convert(value, torch.float32),), dtype, round=True)
        return state.kernel(body, rounded, node.val)
    return state.kernel(body, body.convert(value, dtype), node.val)


def _bitcast(state: Lowering, node: Node) -> Ref:
    body = Body(node, node.val.sizes)
    value = body.load(state.ref(node.args[0]))
    return state.kernel(body, body.compute("bitcast", (value,), node.val.dtype), node.val)


RULES: dict[str, Rule] = {"where": _where, "clone": _clone, "convert": _convert, "bitcast": _bitcast}

"""Padding and concatenation (masked loads), gathers (indirect loads) and scans (vendor calls)."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir import IntLike, Node, Symbol, TensorType, contiguous_strides

from ..build import DTYPES, Body, Lowering, Rule, compute_dtype, op_name
from ..ir import Extern, Load, Value
from ..ref import Ref, atom, axes_of, axis_of, remap, whole

MAX_PIECES = 8  # a kernel tests for each piece at every point


def at(ref: Ref, index: list[IntLike]) -> tuple[IntLike, ...]:
    """The buffer index of ``ref[index]``."""
    env = {atom(a): e for a, e in zip(axes_of(ref.sizes), index) if not isinstance(a, int)}
    return remap(ref.index, env)


def _pad(state: Lowering, node: Node) -> Ref:
    x, low, value = state.ref(node.args[0]), node.args[1], state.operand(node.args[3])
    body = Body(node, node.val.sizes)
    masks: list[Value] = []
    index: list[IntLike] = []
    for d, (e, n) in enumerate(zip(body.axes, x.sizes)):
        a = state.operand(low[d])
        masks += body.within(e, a, None if a + n == node.val.sizes[d] else a + n)
        index.append(0 if n == 1 else e - a)
    mask = body.all_of(masks)
    if mask is None:
        return state.kernel(body, body.load(x), node.val)
    other = bool(value) if node.val.dtype == torch.bool else value
    loaded = body.wide(body.add(Load(x.buffer, at(x, index), (), mask, 0)))
    value = body.compute("where", (mask, loaded, body.scalar(other, loaded.dtype)), loaded.dtype)
    return state.kernel(body, value, node.val)


def _cat(state: Lowering, node: Node) -> Ref:
    """One kernel that selects among masked loads. ``fuse`` splits it by piece where the result is stored."""
    pieces, dim = [state.ref(n) for n in node.args[0]], node.args[1]
    if node.val.dtype not in DTYPES or len(pieces) > MAX_PIECES:
        return _vendor_cat(state, node)
    pieces = [p for p in pieces if p.sizes[dim] != 0] or pieces[:1]
    body = Body(node, node.val.sizes)
    if len(pieces) == 1:
        return state.kernel(body, body.load(pieces[0]), node.val)
    low: IntLike = 0
    bounds: list[tuple[IntLike, IntLike]] = []
    for p in pieces:
        bounds.append((low, low + p.sizes[dim]))
        low = low + p.sizes[dim]
    out: Value | None = None
    for k in range(len(pieces) - 1, -1, -1):
        p, (a, b) = pieces[k], bounds[k]
        mask = body.all_of(body.within(body.axes[dim], a, None if k == len(pieces) - 1 else b))
        index: list[IntLike] = list(body.axes)
        index[dim] = 0 if p.sizes[dim] == 1 else index[dim] - a
        value = body.wide(body.add(Load(p.buffer, at(p, index), (), mask, 0)))
        if out is not None:
            below = body.all_of(body.within(body.axes[dim], 0, b))
            assert below is not None
            value = body.compute("where", (below, value, out), value.dtype)
        out = value
    assert out is not None
    return state.kernel(body, out, node.val)


def _vendor_cat(state: Lowering, node: Node) -> Ref:
    parts = [state.strided(node, state.ref(n), n.val) for n in node.args[0]]
    t = node.val
    out = state.buffer(node.name, TensorType(t.sizes, contiguous_strides(t.sizes), t.dtype, t.device))
    origin = ((op_name(node), node.loc),)
    state.steps.append(Extern(torch.ops.aten.cat.default, (parts, node.args[1]), {}, (out,), origin))
    return whole(out)


def checked(
    state: Lowering, body: Body, index: Ref, where: list[IntLike], size: IntLike
) -> tuple[IntLike, tuple[Symbol, Value] | None]:
    """The element of an index tensor as an index of a dim of ``size``: (expression, its binding)."""
    value = body.convert(body.add(Load(index.buffer, at(index, where))), torch.int64)
    value = body.compute("check_index", (value,), torch.int64, size=size)
    state.fresh_symbols += 1
    s = axis_of(state.fresh_symbols, size, "t")
    return s, None if isinstance(s, int) else (atom(s), value)


def _take(state: Lowering, node: Node) -> Ref:
    x, dim, index = state.ref(node.args[0]), node.args[1], state.ref(node.args[2])
    body = Body(node, node.val.sizes)
    k = len(index.sizes)
    axes = list(body.axes)
    s, bound = checked(state, body, index, axes[dim : dim + k], x.sizes[dim])
    place = axes[:dim] + [s] + axes[dim + k :]
    value = body.add(Load(x.buffer, at(x, place), (bound,) if bound else ()))
    return state.kernel(body, value, node.val)


def _gather(state: Lowering, node: Node) -> Ref:
    x, dim, index = state.ref(node.args[0]), node.args[1], state.ref(node.args[2])
    body = Body(node, node.val.sizes)
    axes = list(body.axes)
    s, bound = checked(state, body, index, axes, x.sizes[dim])
    place = [0 if n == 1 else e for e, n in zip(axes, x.sizes)]
    place[dim] = s
    value = body.add(Load(x.buffer, at(x, place), (bound,) if bound else ()))
    return state.kernel(body, value, node.val)


def subscript(
    state: Lowering, body: Body, sizes: tuple[IntLike, ...], indices: Any
) -> tuple[list[IntLike], tuple[tuple[Symbol, Value], ...]]:
    """The place that ``x[indices]`` reads at the body's axes (adjacent indexed dims), and its bindings."""
    used = [d for d, i in enumerate(indices) if i is not None]
    first = used[0]
    k = len(state.ref(indices[first]).sizes)
    axes = list(body.axes)
    place: list[IntLike] = axes[:first]
    bindings = []
    for d in used:
        s, bound = checked(state, body, state.ref(indices[d]), axes[first : first + k], sizes[d])
        place.append(s)
        if bound:
            bindings.append(bound)
    return place + axes[first + k :], tuple(bindings)


def _index(state: Lowering, node: Node) -> Ref:
    x = state.ref(node.args[0])
    body = Body(node, node.val.sizes)
    place, bindings = subscript(state, body, x.sizes, node.args[1])
    value = body.add(Load(x.buffer, at(x, place), bindings))
    return state.kernel(body, value, node.val)


_SCANS = {"cumsum": torch.ops.aten.cumsum.default, "cumprod": torch.ops.aten.cumprod.default}


def _scan(state: Lowering, node: Node) -> Ref:
    x, dim = state.strided(node, state.ref(node.args[0]), node.args[0].val), node.args[1]
    out = state.buffer(node.name, node.val)
    origin = ((op_name(node), node.loc),)
    kwargs = {"dtype": compute_dtype(node.val.dtype)} if node.val.dtype == compute_dtype(node.val.dtype) else {}
    state.steps.append(Extern(_SCANS[node.target.name], (x, dim), kwargs, (out,), origin))
    return whole(out)


RULES: dict[str, Rule] = {
    "pad": _pad,
    "cat": _cat,
    "take": _take,
    "gather": _gather,
    "index": _index,
    "cumsum": _scan,
    "cumprod": _scan,
}

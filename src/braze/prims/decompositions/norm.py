"""Layer, group, batch and RMS normalisation with their derivatives.

Statistics are in float32 (float64 for float64 inputs), the variance in two passes.  With xhat = (x - mean) * rstd and
g' = g * weight, every input gradient is ``rstd * (g' - mean(g') - xhat * mean(g' * xhat))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.errors import Unsupported
from braze.ir import IntLike, Node, TensorType

from ..builder import Builder, count
from ..reduction import Dims
from ..registry import decomposes
from .reduce import moments, shifted_moments


def _affine(b: Builder, x: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        x = b.mul(x, b.compute(weight))
    return x if bias is None else b.add(x, b.compute(bias))


def _input_gradient(b: Builder, g: Node, xhat: Node, rstd: Node, dims: Dims) -> Node:
    n = count(g.val.sizes, dims)
    mean_g = b.div(b.sum(g, dims, keepdim=True), n)
    mean_gx = b.div(b.sum(b.mul(g, xhat), dims, keepdim=True), n)
    return b.mul(b.sub(b.sub(g, mean_g), b.mul(xhat, mean_gx)), rstd)


# -- layer norm ------------------------------------------------------------------------------------------------------


@decomposes("native_layer_norm")
def native_layer_norm(
    b: Builder, input: Node, normalized_shape: Sequence[IntLike], weight: Node | None, bias: Node | None, eps: float
) -> Any:
    rank = input.val.rank
    if any(n == 0 for n in input.val.sizes):
        return NotImplemented
    x = b.compute(input)
    dims = tuple(range(rank - len(normalized_shape), rank))
    mean, var = moments(b, x, dims)
    rstd = b.rsqrt(b.add(var, eps))
    return _affine(b, b.mul(b.sub(x, mean), rstd), weight, bias), mean, rstd


@decomposes("native_layer_norm_backward")
def native_layer_norm_backward(
    b: Builder,
    grad_out: Node,
    input: Node,
    normalized_shape: Sequence[IntLike],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    output_mask: Sequence[bool],
) -> Any:
    if any(n == 0 for n in input.val.sizes):
        return NotImplemented
    g, x = b.compute(grad_out), b.compute(input)
    mean, rstd = b.convert(mean, x.val.dtype), b.convert(rstd, x.val.dtype)
    outer = tuple(range(x.val.rank - len(normalized_shape)))
    inner = tuple(range(len(outer), x.val.rank))
    xhat = b.mul(b.sub(x, mean), rstd)
    scaled = _affine(b, g, weight, None)
    return (
        _input_gradient(b, scaled, xhat, rstd, inner) if output_mask[0] else None,
        b.sum(b.mul(g, xhat), outer) if output_mask[1] and weight is not None else None,
        b.sum(g, outer) if output_mask[2] and bias is not None else None,
    )


# -- RMS norm --------------------------------------------------------------------------------------------------------


@decomposes("_fused_rms_norm")
def fused_rms_norm(
    b: Builder, input: Node, normalized_shape: Sequence[IntLike], weight: Node | None, eps: float | None
) -> Any:
    x = b.compute(input)
    dims = tuple(range(x.val.rank - len(normalized_shape), x.val.rank))
    small = torch.finfo(x.val.dtype).eps if eps is None else eps
    rstd = b.rsqrt(b.add(b.mean(b.mul(x, x), dims, keepdim=True), small))
    return _affine(b, b.mul(x, rstd), weight, None), rstd


@decomposes("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    b: Builder,
    grad_out: Node,
    input: Node,
    normalized_shape: Sequence[IntLike],
    rstd: Node,
    weight: Node | None,
    output_mask: Sequence[bool],
) -> Any:
    g, x = b.compute(grad_out), b.compute(input)
    rstd = b.convert(rstd, x.val.dtype)
    outer = tuple(range(x.val.rank - len(normalized_shape)))
    inner = tuple(range(len(outer), x.val.rank))
    xhat = b.mul(x, rstd)
    scaled = _affine(b, g, weight, None)
    pull = b.mean(b.mul(scaled, xhat), inner, keepdim=True)
    return (
        b.mul(b.sub(scaled, b.mul(xhat, pull)), rstd) if output_mask[0] else None,
        b.sum(b.mul(g, xhat), outer) if output_mask[1] and weight is not None else None,
    )


# -- group norm ------------------------------------------------------------------------------------------------------


def _in_groups(b: Builder, x: Node, group: int) -> Node:
    """(N, C, …) as (N, G, C // G, …): a view of every layout."""
    n, c, *rest = x.val.sizes
    return b.reshape(x, (n, group, c // group, *rest))


def _per_channel(b: Builder, v: Node, group: int, rank: int) -> Node:
    """A vector over C, or statistics over (N, G), shaped to broadcast against (N, G, C // G, …) of rank + 1."""
    if v.val.rank == 1:
        return b.reshape(v, (1, group, v.val.sizes[0] // group) + (1,) * (rank - 2))
    return b.reshape(v, v.val.sizes + (1,) * (rank - 1))


@decomposes("native_group_norm")
def native_group_norm(
    b: Builder,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    N: IntLike,
    C: IntLike,
    HxW: IntLike,
    group: int,
    eps: float,
) -> Any:
    if any(n == 0 for n in input.val.sizes):
        return NotImplemented
    rank = input.val.rank
    x = _in_groups(b, b.compute(input), group)
    dims = tuple(range(2, rank + 1))
    mean, var = shifted_moments(b, x, dims) if b.policy.one_pass_statistics else moments(b, x, dims)
    rstd = b.rsqrt(b.add(var, eps))
    w, c = (None if v is None else _per_channel(b, v, group, rank) for v in (weight, bias))
    out = b.reshape(_affine(b, b.mul(b.sub(x, mean), rstd), w, c), input.val.sizes)
    stats = b.out[1].sizes
    return out, b.reshape(mean, stats), b.reshape(rstd, stats)


@decomposes("native_group_norm_backward")
def native_group_norm_backward(
    b: Builder,
    grad_out: Node,
    input: Node,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    N: IntLike,
    C: IntLike,
    HxW: IntLike,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    if any(n == 0 for n in input.val.sizes):
        return NotImplemented
    rank = input.val.rank
    x, g = _in_groups(b, b.compute(input), group), _in_groups(b, b.compute(grad_out), group)
    m, r = (_per_channel(b, b.convert(v, x.val.dtype), group, rank) for v in (mean, rstd))
    xhat = b.mul(b.sub(x, m), r)
    w = None if weight is None else _per_channel(b, b.compute(weight), group, rank)
    pixels = tuple(range(3, rank + 1))
    # One pass over the data gives each image's sums per channel; everything else is made of these.
    plain, product = b.sum(g, pixels, keepdim=True), b.sum(b.mul(g, xhat), pixels, keepdim=True)
    dx = None
    if output_mask[0]:
        n = count(x.val.sizes, tuple(range(2, rank + 1)))
        mean_g, mean_gx = (
            b.div(b.sum(s if w is None else b.mul(s, w), (2,), keepdim=True), n) for s in (plain, product)
        )
        scaled = g if w is None else b.mul(g, w)
        dx = b.mul(b.sub(b.sub(scaled, mean_g), b.mul(xhat, mean_gx)), r)
        dx = b.reshape(dx, input.val.sizes)
    dw, db = (b.reshape(b.sum(s, (0,)), (C,)) if m else None for s, m in zip((product, plain), output_mask[1:]))
    return dx, dw, db


# -- batch norm ------------------------------------------------------------------------------------------------------


def _channel_dims(x: Node) -> Dims:
    return (0, *range(2, x.val.rank))


def _along_channel(b: Builder, v: Any, x: Node) -> Any:
    """A vector over channels in x's dtype, shaped to broadcast against x; None stays."""
    if v is None:
        return None
    sizes = tuple(n if d == 1 else 1 for d, n in enumerate(x.val.sizes))
    return b.reshape(b.convert(v, x.val.dtype), sizes)


class BatchNorm:
    """One batch norm: the result, the batch's mean and rstd (C) and the running statistics' new values."""

    def __init__(
        self,
        b: Builder,
        input: Node,
        weight: Any,
        bias: Any,
        mean: Any,
        var: Any,
        training: bool,
        momentum: float,
        eps: float,
    ) -> None:
        x = b.compute(input)
        self.running: tuple[Any, Any] = (mean, var)
        if training:
            dims = _channel_dims(x)
            m, v = shifted_moments(b, x, dims) if b.policy.one_pass_statistics else moments(b, x, dims)
            n = count(x.val.sizes, dims)
            if mean is not None:
                unbiased = b.div(b.mul(v, n), n - 1)
                self.running = _updated(b, mean, m, momentum), _updated(b, var, unbiased, momentum)
        else:
            m, v = _along_channel(b, mean, x), _along_channel(b, var, x)
        r = b.rsqrt(b.add(v, eps))
        scale = r if weight is None else b.mul(r, _along_channel(b, weight, x))
        out = b.mul(b.sub(x, m), scale)
        self.result = out if bias is None else b.add(out, _along_channel(b, bias, x))
        self.mean, self.rstd = m, r


def _updated(b: Builder, old: Node, batch: Node, momentum: float) -> Node:
    """(1 - momentum) * old + momentum * batch."""
    new = b.reshape(batch, old.val.sizes)
    old = b.convert(old, new.val.dtype)
    return b.add(b.mul(new, momentum), b.mul(old, 1 - momentum))


def _saved(b: Builder, stat: Node, promised: TensorType) -> Node:
    """A saved statistic; evaluation mode promises an empty tensor on some devices."""
    if promised.sizes == (0,):
        return b.full_like(promised, 0)
    return b.reshape(stat, promised.sizes)


@decomposes("_native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder, input: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if any(n == 0 for n in input.val.sizes):
        return NotImplemented
    bn = BatchNorm(b, input, weight, bias, mean, var, training, momentum, eps)
    return bn.result, _saved(b, bn.mean, b.out[1]), _saved(b, bn.rstd, b.out[2]), *bn.running


@decomposes("_batch_norm_with_update_functional")
def batch_norm_with_update(
    b: Builder, input: Node, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    bn = BatchNorm(b, input, weight, bias, mean, var, True, momentum, eps)
    reserve = b.full_like(b.out[3], 0)
    return bn.result, _saved(b, bn.mean, b.out[1]), _saved(b, bn.rstd, b.out[2]), reserve, *bn.running


@decomposes("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    b: Builder, input: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm_functional(b, input, weight, bias, None, None, training, momentum, eps)[:3]


@decomposes("_native_batch_norm_legit_no_training")
def batch_norm_eval(
    b: Builder, input: Node, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    return batch_norm_functional(b, input, weight, bias, mean, var, False, momentum, eps)[:3]


@decomposes("_batch_norm_no_update")
def batch_norm_no_update(
    b: Builder, input: Node, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    out = batch_norm_functional(b, input, weight, bias, mean, var, mean is None, momentum, eps)
    return *out[:3], b.full_like(b.out[3], 0)


@decomposes("native_batch_norm")
def native_batch_norm(
    b: Builder, input: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if training and mean is not None:
        raise Unsupported("native_batch_norm updates running statistics in place: functionalise it first")
    return batch_norm_functional(b, input, weight, bias, mean, var, training, momentum, eps)[:3]


@decomposes("cudnn_batch_norm miopen_batch_norm")
def cudnn_batch_norm(
    b: Builder, input: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    out = native_batch_norm(b, input, weight, bias, mean, var, training, momentum, eps)
    return (*out, b.full_like(b.out[3], 0)) if len(b.out) == 4 else out


@decomposes("native_batch_norm_backward")
def native_batch_norm_backward(
    b: Builder,
    grad_out: Node,
    input: Node,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    if any(n == 0 for n in input.val.sizes):
        return NotImplemented
    g, x = b.compute(grad_out), b.compute(input)
    dims = _channel_dims(x)
    if train:
        m, r = _along_channel(b, save_mean, x), _along_channel(b, save_invstd, x)
    else:
        m = _along_channel(b, running_mean, x)
        r = b.rsqrt(b.add(_along_channel(b, running_var, x), eps))
    xhat = b.mul(b.sub(x, m), r)
    scale = r if weight is None else b.mul(r, _along_channel(b, weight, x))
    dx = None
    if output_mask[0]:
        dx = _input_gradient(b, g, xhat, scale, dims) if train else b.mul(g, scale)
    dw = b.sum(b.mul(g, xhat), dims) if output_mask[1] else None
    return dx, dw, b.sum(g, dims) if output_mask[2] else None


@decomposes("batch_norm_backward")
def batch_norm_backward(
    b: Builder,
    grad_out: Node,
    input: Node,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Any = None,
) -> Any:
    return native_batch_norm_backward(
        b, grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@decomposes("cudnn_batch_norm_backward miopen_batch_norm_backward")
def cudnn_batch_norm_backward(
    b: Builder,
    input: Node,
    grad_output: Node,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    epsilon: float,
    reserveSpace: Any = None,
) -> Any:
    return native_batch_norm_backward(
        b, grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon, (True, True, True)
    )

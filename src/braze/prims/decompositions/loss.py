"""Losses and their derivatives. ``reduction`` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from braze.ir import IntLike, Node

from ..builder import Builder, normal_dims
from ..prim import PRIMS
from ..registry import decomposes

NONE, MEAN, SUM = 0, 1, 2


def reduced(b: Builder, loss: Node, reduction: int) -> Node:
    """The loss as it is, its mean or its sum."""
    if reduction == NONE:
        return loss
    dims = normal_dims(None, loss.val.rank)
    return b.mean(loss, dims) if reduction == MEAN else b.sum(loss, dims)


def _spread(b: Builder, grad: Node, reduction: int, n: IntLike) -> Node:
    """The gradient of each element's loss."""
    g = b.compute(grad)
    return b.div(g, n) if reduction == MEAN else g


def _pair(b: Builder, *tensors: Node) -> list[Node]:
    return [b.compute(t) for t in b.promoted(*tensors)]


# -- negative log likelihood -----------------------------------------------------------------------------------------


class _Classes:
    """Where the target class of each sample is: the class dim is 1, or 0 of a single sample."""

    def __init__(self, b: Builder, x: Node, target: Node, weight: Node | None, ignore: int) -> None:
        self.dim = 0 if x.val.rank == 1 else 1
        self.valid = b.ne(target, ignore)
        self.safe = b.where(self.valid, target, 0)
        self.column = b.unsqueeze(self.safe, self.dim) if x.val.rank != 1 or target.val.rank == 0 else self.safe
        self.weight = None if weight is None else b.call(PRIMS["take"], b.compute(weight), 0, self.safe)


@decomposes("nll_loss_forward nll_loss2d_forward")
def nll_loss_forward(
    b: Builder, self: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> tuple[Node, Node]:
    x = b.compute(self)
    at = _Classes(b, x, target, weight, ignore_index)
    picked = b.reshape(b.call(PRIMS["gather"], x, at.dim, at.column), target.val.sizes)
    loss = b.neg(picked if at.weight is None else b.mul(picked, at.weight))
    loss = b.where(at.valid, loss, 0.0)
    if reduction == NONE:
        return loss, b.full_like(b.out[1], 0)
    dims = normal_dims(None, loss.val.rank)
    ones = b.convert(at.valid, x.val.dtype) if at.weight is None else b.where(at.valid, at.weight, 0.0)
    total = b.sum(ones, dims)
    loss = b.sum(loss, dims)
    return b.div(loss, total) if reduction == MEAN else loss, total


@decomposes("nll_loss_backward nll_loss2d_backward")
def nll_loss_backward(
    b: Builder,
    grad_output: Node,
    self: Node,
    target: Node,
    weight: Node | None,
    reduction: int,
    ignore_index: int,
    total_weight: Node,
) -> Node:
    g = b.compute(grad_output)
    x = self.val
    at = _Classes(b, self, target, weight, ignore_index)
    if reduction == MEAN:
        g = b.div(g, b.convert(total_weight, g.val.dtype))
    g = b.neg(g)
    if at.weight is not None:
        g = b.mul(g, at.weight)
    if reduction == NONE or at.weight is not None:
        g = b.where(at.valid, g, 0.0)
        hit = b.eq(b.iota_along(x, at.dim), at.column)
    else:
        hit = b.bitwise_and(b.eq(b.iota_along(x, at.dim), at.column), _along(b, at.valid, at))
    spread = g if g.val.rank == 0 else _along(b, g, at)
    return b.where(hit, spread, b.full(x.sizes, 0.0, g.val.dtype, x.device))


def _along(b: Builder, x: Node, at: _Classes) -> Node:
    """A value a sample, shaped as the column of target classes."""
    return b.reshape(x, at.column.val.sizes)


# -- regression ------------------------------------------------------------------------------------------------------


@decomposes("mse_loss")
def mse_loss(b: Builder, self: Node, target: Node, reduction: int = MEAN) -> Node:
    x, y = _pair(b, self, target)
    gap = b.sub(x, y)
    return reduced(b, b.mul(gap, gap), reduction)


@decomposes("mse_loss_backward")
def mse_loss_backward(b: Builder, grad_output: Node, self: Node, target: Node, reduction: int) -> Node:
    x, y = _pair(b, self, target)
    g = _spread(b, grad_output, reduction, b.out.numel)
    return b.mul(b.mul(b.sub(x, y), 2.0), g)


@decomposes("smooth_l1_loss")
def smooth_l1_loss(b: Builder, self: Node, target: Node, reduction: int = MEAN, beta: float = 1.0) -> Node:
    x, y = _pair(b, self, target)
    z = b.abs(b.sub(x, y))
    if beta == 0:
        return reduced(b, z, reduction)
    near = b.div(b.mul(b.mul(z, z), 0.5), beta)
    return reduced(b, b.where(b.lt(z, beta), near, b.sub(z, 0.5 * beta)), reduction)


@decomposes("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    b: Builder, grad_output: Node, self: Node, target: Node, reduction: int, beta: float
) -> Node:
    x, y = _pair(b, self, target)
    g = _spread(b, grad_output, reduction, b.out.numel)
    z = b.sub(x, y)
    near = b.sign(z) if beta == 0 else b.div(z, beta)
    return b.mul(g, b.where(b.le(z, -beta), -1.0, b.where(b.ge(z, beta), 1.0, near)))


@decomposes("huber_loss")
def huber_loss(b: Builder, self: Node, target: Node, reduction: int = MEAN, delta: float = 1.0) -> Node:
    x, y = _pair(b, self, target)
    z = b.abs(b.sub(x, y))
    near = b.mul(b.mul(z, z), 0.5)
    return reduced(b, b.where(b.le(z, delta), near, b.mul(b.sub(z, 0.5 * delta), delta)), reduction)


@decomposes("huber_loss_backward")
def huber_loss_backward(b: Builder, grad_output: Node, self: Node, target: Node, reduction: int, delta: float) -> Node:
    x, y = _pair(b, self, target)
    g = _spread(b, grad_output, reduction, b.out.numel)
    z = b.sub(x, y)
    return b.mul(g, b.where(b.le(z, -delta), -delta, b.where(b.ge(z, delta), delta, z)))


@decomposes("soft_margin_loss")
def soft_margin_loss(b: Builder, self: Node, target: Node, reduction: int = MEAN) -> Node:
    x, y = _pair(b, self, target)
    return reduced(b, b.log1p(b.exp(b.mul(b.neg(y), x))), reduction)


@decomposes("soft_margin_loss_backward")
def soft_margin_loss_backward(b: Builder, grad_output: Node, self: Node, target: Node, reduction: int) -> Node:
    x, y = _pair(b, self, target)
    g = _spread(b, grad_output, reduction, b.out.numel)
    z = b.exp(b.mul(b.neg(y), x))
    return b.mul(b.div(b.mul(b.neg(y), z), b.add(z, 1.0)), g)


# -- binary cross entropy --------------------------------------------------------------------------------------------


@decomposes("binary_cross_entropy")
def binary_cross_entropy(
    b: Builder, self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    x, y = _pair(b, self, target)
    loss = b.sub(b.mul(b.sub(y, 1.0), b.maximum(b.log1p(b.neg(x)), -100.0)), b.mul(y, b.maximum(b.log(x), -100.0)))
    return reduced(b, loss if weight is None else b.mul(loss, b.compute(weight)), reduction)


@decomposes("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    b: Builder, grad_output: Node, self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    x, y = _pair(b, self, target)
    g = _spread(b, grad_output, reduction, b.out.numel)
    slope = b.div(b.mul(g, b.sub(x, y)), b.maximum(b.mul(b.sub(1.0, x), x), 1e-12))
    return slope if weight is None else b.mul(slope, b.compute(weight))


@decomposes("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    b: Builder,
    self: Node,
    target: Node,
    weight: Node | None = None,
    pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:
    x, y = _pair(b, self, target)
    log_sigmoid = b.sub(b.minimum(x, 0.0), b.log1p(b.exp(b.neg(b.abs(x)))))
    if pos_weight is not None:
        scale = b.add(b.mul(b.sub(b.compute(pos_weight), 1.0), y), 1.0)
        log_sigmoid = b.mul(scale, log_sigmoid)
    loss = b.sub(b.mul(b.sub(1.0, y), x), log_sigmoid)
    return reduced(b, loss if weight is None else b.mul(loss, b.compute(weight)), reduction)

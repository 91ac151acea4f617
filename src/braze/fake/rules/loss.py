"""Losses: a scalar for reduction mean (1) or sum (2), else pointwise."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...ir import TensorType
from ..questions import agree
from ..registry import register, rule
from ..result import copy_of, fresh
from .pointwise import pointwise


def _pair(x: TensorType, y: TensorType, *rest: Any, reduction: int = 1) -> TensorType:
    out = pointwise("same", (x, y))
    return fresh(out, ()) if reduction else out


def _reduction_at(i: int, x: TensorType, y: TensorType, *rest: Any) -> TensorType:
    return _pair(x, y, reduction=rest[i] if len(rest) > i else 1)


# (position of `reduction` after (input, target), names)
register(partial(_reduction_at, 0), "mse_loss smooth_l1_loss huber_loss soft_margin_loss l1_loss".split())
register(partial(_reduction_at, 1), ["binary_cross_entropy"])


@rule("binary_cross_entropy_with_logits")
def bce_logits(x: TensorType, y: TensorType, w: Any = None, pw: Any = None, reduction: int = 1) -> TensorType:
    return _pair(x, y, reduction=reduction)


@rule("mse_loss_backward smooth_l1_loss_backward huber_loss_backward l1_loss_backward")
def pair_backward(g: TensorType, x: TensorType, y: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


@rule("soft_margin_loss_backward")
def soft_margin_backward(g: TensorType, x: TensorType, y: TensorType, *rest: Any) -> TensorType:
    return pointwise("same", (x, y, g))


@rule("binary_cross_entropy_backward")
def bce_backward(g: TensorType, x: TensorType, y: TensorType, *rest: Any) -> TensorType:
    return copy_of(x)


@rule("multi_margin_loss")
def multi_margin(x: TensorType, y: TensorType, p: Any = 1, m: Any = 1, w: Any = None, reduction: int = 1) -> TensorType:
    return fresh(x, y.sizes if reduction == 0 else ())


@rule("multilabel_margin_loss_forward")
def multilabel_margin(x: TensorType, y: TensorType, reduction: int) -> Any:
    return fresh(x, x.sizes[:-1] if reduction == 0 else ()), fresh(x, y.sizes)


@rule("multi_margin_loss_backward multilabel_margin_loss_backward")
def margin_backward(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


def _class_weights(x: TensorType, w: TensorType | None, dim: int) -> None:
    if w is not None:
        agree(
            w.sizes[0], x.sizes[dim], f"weight tensor should be defined either for all classes or no classes: {w}, {x}"
        )


@rule("nll_loss_forward")
def nll_loss(x: TensorType, y: TensorType, w: Any, reduction: int, ignore: int) -> Any:
    if x.rank == 2 and y.rank:
        agree(x.sizes[0], y.sizes[0], f"size mismatch (got input: {x}, target: {y})")
    _class_weights(x, w, -1)
    return fresh(x, (x.sizes[0],) if reduction == 0 and x.rank == 2 else ()), fresh(x, ())


@rule("nll_loss_backward")
def nll_loss_backward(g: Any, x: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


@rule("nll_loss2d_forward")
def nll_loss2d(x: TensorType, y: TensorType, w: Any, reduction: int, ignore: int) -> Any:
    for a, b in zip((x.sizes[0], *x.sizes[2:]), y.sizes):
        agree(a, b, f"size mismatch (got input: {x}, target: {y})")
    _class_weights(x, w, 1)
    return fresh(x, (x.sizes[0], *x.sizes[2:]) if reduction == 0 else ()), fresh(x, ())


@rule("nll_loss2d_backward")
def nll_loss2d_backward(g: Any, x: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


@rule("_ctc_loss.default")
def ctc_loss(x: TensorType, targets: TensorType, lengths: Any, target_lengths: Any, *rest: Any) -> Any:
    """(loss, log alpha)"""
    time, batch, _ = x.sizes
    return fresh(x, (batch,)), fresh(x, (batch, time, 2 * max(target_lengths, default=0) + 1))

"""Normalisation layers and their statistics."""

from __future__ import annotations

from typing import Any

import torch

from ...ir import IntLike, TensorType, mod
from ..promote import to_float
from ..questions import agree
from ..registry import rule
from ..result import copy_of, formatted, fresh

_LOW = (torch.float16, torch.bfloat16)


def _acc(x: TensorType, other: TensorType | None) -> torch.dtype:
    """The dtype of saved statistics: float32 for low precision on CUDA or with float32 parameters."""
    if x.dtype in _LOW and (x.device.type == "cuda" or (other is not None and other.dtype not in _LOW)):
        return torch.float32
    return x.dtype


def _masked(types: tuple[Any, ...], mask: Any) -> tuple[Any, ...]:
    return tuple(t if keep else None for t, keep in zip(types, mask))


def _parameters(sizes: Any, *given: TensorType | None) -> None:
    """Weights, biases and running statistics must have these sizes."""
    for p in given:
        if p is not None:
            for a, b in zip(p.sizes, sizes):
                agree(a, b, f"a normalisation of {list(sizes)} with a parameter {p}")


@rule("native_layer_norm")
def layer_norm(x: TensorType, shape: Any, w: Any, b: Any, eps: float) -> Any:
    k = x.rank - len(shape)
    for a, n in zip(x.sizes[k:], shape):
        agree(a, n, f"Given normalized_shape={list(shape)}, expected input with shape [*, {shape}], got {x}")
    _parameters(shape, w, b)
    n = (*x.sizes[:k], *(1 for _ in shape))
    stat = fresh(x, n, _acc(x, w if w is not None else b))
    return fresh(x), stat, stat


@rule("native_layer_norm_backward")
def layer_norm_backward(g: Any, x: TensorType, shape: Any, mean: Any, rstd: Any, w: Any, b: Any, mask: Any) -> Any:
    return _masked((fresh(x), w and fresh(w), b and fresh(b)), mask)


@rule("_fused_rms_norm")
def rms_norm(x: TensorType, shape: Any, w: Any, eps: Any) -> Any:
    k = x.rank - len(shape)
    for a, n in zip(x.sizes[k:], shape):
        agree(a, n, f"Given normalized_shape={list(shape)}, expected input with shape [*, {shape}], got {x}")
    _parameters(shape, w)
    acc = torch.float32 if x.dtype in _LOW else x.dtype
    return fresh(x), fresh(x, (*x.sizes[:k], *(1 for _ in shape)), acc)


@rule("_fused_rms_norm_backward")
def rms_norm_backward(g: TensorType, x: TensorType, shape: Any, rstd: Any, w: Any, mask: Any) -> Any:
    return _masked((fresh(x), w and fresh(w)), mask)


@rule("native_group_norm")
def group_norm(x: TensorType, w: Any, b: Any, n: IntLike, c: IntLike, hw: IntLike, groups: IntLike, eps: float) -> Any:
    _parameters((c,), w, b)
    agree(mod(c, groups), 0, f"Expected number of channels in input to be divisible by num_groups ({groups})")
    mixed = x.dtype in _LOW and w is not None and w.dtype not in _LOW
    stat = fresh(x, (n, groups), torch.float32 if mixed else x.dtype)
    return formatted(x, x.sizes) if x.device.type == "cpu" else fresh(x), stat, stat


@rule("native_group_norm_backward")
def group_norm_backward(
    g: Any, x: TensorType, m: Any, r: Any, w: Any, n: Any, c: IntLike, hw: Any, groups: Any, mask: Any
) -> Any:
    return _masked((formatted(x, x.sizes), fresh(x, (c,), w and w.dtype), fresh(x, (c,), w and w.dtype)), mask)


def _channels(x: TensorType) -> IntLike:
    return x.sizes[1] if x.rank > 1 else 1


@rule("native_batch_norm _native_batch_norm_legit.no_stats")
def batch_norm(x: TensorType, w: Any, b: Any, *rest: Any) -> Any:
    # (mean, var, training, momentum, eps), or (training, momentum, eps) without running statistics
    training = rest[-3]
    _parameters((_channels(x),), w, b, *rest[:-3])
    c = (_channels(x),) if training or x.device.type == "cuda" else (0,)
    stat = fresh(x, c, _acc(x, w if w is not None else (rest[0] if len(rest) > 3 else None)))
    return formatted(x, x.sizes), stat, stat


@rule("_native_batch_norm_legit.default")
def batch_norm_legit(x: TensorType, w: Any, b: Any, mean: Any, var: Any, training: bool, m: float, eps: float) -> Any:
    return batch_norm(x, w, b, mean, var, training, m, eps)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_eval(x: TensorType, w: Any, b: Any, mean: Any, var: Any, m: float, eps: float) -> Any:
    return batch_norm(x, w, b, mean, var, False, m, eps)


@rule("_native_batch_norm_legit_functional")
def batch_norm_functional(
    x: TensorType, w: Any, b: Any, mean: TensorType, var: TensorType, training: bool, m: float, eps: float
) -> Any:
    return (*batch_norm(x, w, b, mean, var, training, m, eps), copy_of(mean), copy_of(var))


@rule("_batch_norm_with_update")
def batch_norm_update(x: TensorType, w: Any, b: Any, mean: Any, var: Any, m: float, eps: float) -> Any:
    return (*batch_norm(x, w, b, mean, var, True, m, eps), fresh(x, (0,), torch.uint8))


@rule("_batch_norm_no_update")
def batch_norm_no_update(x: TensorType, w: Any, b: Any, mean: Any, var: Any, m: float, eps: float) -> Any:
    return (*batch_norm(x, w, b, mean, var, False, m, eps), fresh(x, (0,), torch.uint8))


@rule("cudnn_batch_norm")
def cudnn_batch_norm(x: TensorType, w: TensorType, b: Any, mean: Any, var: Any, training: bool, m: Any, e: Any) -> Any:
    stat = fresh(w, (_channels(x),) if training else (0,))
    return formatted(x, x.sizes), stat, stat, fresh(x, (0,), torch.uint8)


@rule("native_batch_norm_backward")
def batch_norm_backward(g: Any, x: TensorType, w: Any, mean: Any, var: Any, sm: Any, si: Any, *rest: Any) -> Any:
    mask = rest[-1]
    c = (_channels(x),)
    dtype = w.dtype if w is not None else _acc(x, None)
    return _masked((formatted(x, x.sizes), fresh(x, c, dtype), fresh(x, c, dtype)), mask)


@rule("batch_norm_backward")
def batch_norm_backward_any(g: Any, x: TensorType, w: Any, mean: Any, var: Any, sm: Any, si: Any, *rest: Any) -> Any:
    _update, _eps, mask, _reserve = rest
    return batch_norm_backward(g, x, w, mean, var, sm, si, _update, _eps, mask)


@rule("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(x: TensorType, g: Any, w: TensorType, *rest: Any) -> Any:
    return formatted(x, x.sizes), fresh(w), fresh(w)


@rule("batch_norm_stats")
def batch_norm_stats(x: TensorType, eps: float) -> Any:
    stat = fresh(x, (_channels(x),), _acc(x, None))
    return stat, stat


@rule("batch_norm_gather_stats batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(x: TensorType, mean: TensorType, *rest: Any) -> Any:
    stat = fresh(mean, (_channels(x),))
    return stat, stat


@rule("batch_norm_elemt")
def batch_norm_elemt(x: TensorType, *rest: Any) -> TensorType:
    return formatted(x, x.sizes)


@rule("batch_norm_backward_reduce")
def batch_norm_backward_reduce(g: Any, x: TensorType, mean: TensorType, invstd: Any, w: Any, *mask: bool) -> Any:
    stat = fresh(mean, (_channels(x),))
    out = (stat, stat, w and fresh(w), w and fresh(w))
    return tuple(t if keep else None for t, keep in zip(out, (mask[0], mask[0], mask[1], mask[2])))


@rule("batch_norm_backward_elemt")
def batch_norm_backward_elemt(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return formatted(x, x.sizes)


@rule("_weight_norm_interface")
def weight_norm(v: TensorType, g: TensorType, dim: int = 0) -> Any:
    return copy_of(v), fresh(g, None, torch.float32 if g.dtype in _LOW else to_float(g.dtype))


@rule("_weight_norm_interface_backward")
def weight_norm_backward(gw: Any, v: TensorType, g: TensorType, norms: Any, dim: int) -> Any:
    return copy_of(v), fresh(g)

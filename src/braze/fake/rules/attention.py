"""Scaled dot-product attention: the fused kernels of CPU and CUDA, forward and backward.

Queries, keys and values are [batch, heads, length, width]; the kernels work on [batch, length, heads, width].
"""

from __future__ import annotations

from typing import Any

import torch

from ...ir import IntLike, TensorType
from ..questions import agree
from ..registry import rule
from ..result import copy_of, fresh
from .view import transpose

_I64, _U64 = torch.int64, torch.uint64
_CPU = torch.device("cpu")


def _heads_inside(x: TensorType, sizes: tuple[Any, ...]) -> TensorType:
    """[batch, heads, length, width] stored as [batch, length, heads, width]."""
    b, h, t, d = sizes
    return transpose(fresh(x, (b, t, h, d)), 1, 2)


def _like_heads_inside(x: TensorType) -> TensorType:
    """``empty_like`` of the kernel's view of ``x``, seen again as [batch, heads, length, width]."""
    return transpose(copy_of(transpose(x, 1, 2)), 1, 2)


def _paired(q: TensorType, k: TensorType, v: TensorType) -> None:
    """Keys and values of one length and batch."""
    agree(k.sizes[-2], v.sizes[-2], f"attention with keys {k} and values {v}")
    agree(k.sizes[0], v.sizes[0], f"attention with keys {k} and values {v}")
    agree(q.sizes[0], k.sizes[0], f"attention with queries {q} and keys {k}")
    agree(q.sizes[-1], k.sizes[-1], f"attention with queries {q} and keys {k}")


@rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_cpu(q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    _paired(q, k, v)
    b, h, t, _ = q.sizes
    acc = torch.float64 if q.dtype is torch.float64 else torch.float32
    return copy_of(q), transpose(fresh(q, (b, t, h), acc), 1, 2)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_cpu_backward(g: TensorType, q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    return tuple(_heads_inside(x, x.sizes) for x in (q, k, v))


@rule("_scaled_dot_product_flash_attention")
def flash(q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    _paired(q, k, v)
    b, h, t, _ = q.sizes
    lse = fresh(q, (b, h, t), torch.float32)
    state = fresh(q, (2,), _U64), fresh(q, (), _U64)
    return _like_heads_inside(q), lse, None, None, t, k.sizes[2], *state, fresh(q, (0,))


@rule("_scaled_dot_product_flash_attention_backward")
def flash_backward(g: TensorType, q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    return tuple(_like_heads_inside(x) for x in (q, k, v))


@rule("_scaled_dot_product_efficient_attention")
def efficient(q: TensorType, k: TensorType, v: TensorType, bias: Any, keep_lse: bool, *rest: Any, **kw: Any) -> Any:
    _paired(q, k, v)
    b, h, t, _ = q.sizes
    length: IntLike = (t + 31) // 32 * 32 if keep_lse else 0
    number = TensorType((), (), _I64, _CPU)
    out = _heads_inside(q, (b, h, t, v.sizes[-1]))
    return out, fresh(q, (b, h, length), torch.float32), number, number


@rule("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(
    g: TensorType, q: TensorType, k: TensorType, v: TensorType, bias: Any, out: Any, lse: Any, seed: Any, offset: Any,
    dropout: float, mask: Any, *rest: Any, **kw: Any
) -> Any:  # fmt: skip
    with_bias = [*(_heads_inside(x, x.sizes) for x in (q, k, v)), bias and fresh(bias)]
    return tuple(t if keep else None for t, keep in zip(with_bias, mask))


@rule("_scaled_dot_product_cudnn_attention")
def cudnn(q: TensorType, k: TensorType, v: TensorType, bias: Any, keep_lse: bool, *rest: Any, **kw: Any) -> Any:
    _paired(q, k, v)
    b, h, t, _ = q.sizes
    out = _like_heads_inside(TensorType((b, h, t, v.sizes[-1]), q.strides, q.dtype, q.device))
    lse = fresh(q, (b, h, t, 1), torch.float32) if keep_lse else fresh(q, (0,), torch.float32)
    number = fresh(q, (), _I64)
    return out, lse, None, None, t, k.sizes[2], number, number, None


@rule("_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(g: TensorType, q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    return tuple(copy_of(x) for x in (q, k, v))


@rule("_scaled_dot_product_attention_math")
def sdpa_math(q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    return fresh(q, (*q.sizes[:-1], v.sizes[-1])), fresh(q, (*q.sizes[:-1], k.sizes[-2]))

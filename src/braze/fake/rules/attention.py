"""Scaled dot-product attention: the fused kernels of CPU and CUDA, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from ...ir import TensorType
from ..layout import contiguous
from ..registry import rule
from ..result import copy_of, fresh


def _heads_inside(q: TensorType, sizes: tuple[Any, ...]) -> TensorType:
    """[batch, heads, length, width] stored as [batch, length, heads, width], as the flash kernels return it."""
    b, h, t, d = sizes
    return fresh(q, sizes, strides=(h * t * d, d, h * d, 1))


@rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_cpu(q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    b, h, t, _ = q.sizes
    out = copy_of(q)
    acc = torch.float64 if q.dtype is torch.float64 else torch.float32
    return out, fresh(q, (b, h, t), acc, (h * t, 1, h))


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_cpu_backward(g: TensorType, q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    return tuple(_heads_inside(x, x.sizes) for x in (q, k, v))


@rule("_scaled_dot_product_attention_math")
def sdpa_math(q: TensorType, k: TensorType, v: TensorType, *rest: Any, **kw: Any) -> Any:
    shape = (*q.sizes[:-1], k.sizes[-2])
    return fresh(q, (*q.sizes[:-1], v.sizes[-1])), fresh(q, shape, strides=contiguous(shape))

"""Softmax, its logarithm and their derivatives: the maximum is subtracted first, sums are in float32 or wider."""

from __future__ import annotations

import math
from typing import Any

import torch

from braze.ir import Node

from ..builder import Builder, normal_dims
from ..reduction import Dims
from ..registry import decomposes


def _shifted(b: Builder, x: Node, dims: Dims) -> Node:
    return b.sub(x, b.reduce("amax", x, dims, keepdim=True))


def _is_empty(x: Node) -> bool:
    return any(n == 0 for n in x.val.sizes)


@decomposes("_softmax")
def softmax(b: Builder, self: Node, dim: int, half_to_float: bool = False) -> Node:
    if _is_empty(self):
        return b.full_like(b.out, 0)
    dims = normal_dims(dim, self.val.rank)
    e = b.exp(_shifted(b, b.compute(self), dims))
    return b.div(e, b.sum(e, dims, keepdim=True))


@decomposes("_safe_softmax")
def safe_softmax(b: Builder, self: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    """Rows of -inf only give zeros: they are shifted by 0 and divided by 1."""
    x = b.compute(b.convert(self, b.out.dtype))
    if _is_empty(self):
        return b.full_like(b.out, 0)
    dims = normal_dims(dim, self.val.rank)
    most = b.reduce("amax", x, dims, keepdim=True)
    masked = b.eq(most, -math.inf)
    e = b.exp(b.sub(x, b.where(masked, 0.0, most)))
    return b.div(e, b.where(masked, 1.0, b.sum(e, dims, keepdim=True)))


@decomposes("_log_softmax")
def log_softmax(b: Builder, self: Node, dim: int, half_to_float: bool = False) -> Node:
    if _is_empty(self):
        return b.full_like(b.out, 0)
    dims = normal_dims(dim, self.val.rank)
    x = _shifted(b, b.compute(self), dims)
    return b.sub(x, b.log(b.sum(b.exp(x), dims, keepdim=True)))


@decomposes("_softmax_backward_data")
def softmax_backward(b: Builder, grad_output: Node, output: Node, dim: int, input_dtype: Any = None) -> Node:
    g, y = b.compute(grad_output), b.compute(output)
    dims = normal_dims(dim, output.val.rank)
    return b.mul(y, b.sub(g, b.sum(b.mul(g, y), dims, keepdim=True)))


@decomposes("_log_softmax_backward_data")
def log_softmax_backward(b: Builder, grad_output: Node, output: Node, dim: int, input_dtype: Any = None) -> Node:
    g, y = b.compute(grad_output), b.compute(output)
    dims = normal_dims(dim, output.val.rank)
    return b.sub(g, b.mul(b.exp(y), b.sum(g, dims, keepdim=True)))


@decomposes("logsumexp")
def logsumexp(b: Builder, self: Node, dim: Any, keepdim: bool = False) -> Any:
    if _is_empty(self):
        return NotImplemented
    x = b.compute(b.convert(self, b.out.dtype))
    dims = normal_dims(dim, self.val.rank)
    most = b.reduce("amax", x, dims, keepdim=True)
    most = b.where(b.isinf(most), 0.0, most)
    total = b.log(b.sum(b.exp(b.sub(x, most)), dims, keepdim=True))
    return b.reshape(b.add(total, most), b.out.sizes)

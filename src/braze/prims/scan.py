"""Prefix sums and products along one dim, in x's dtype (16-bit floats accumulate in float32)."""

from __future__ import annotations

import torch

from braze.ir import TensorType, contiguous_strides

from .elementwise import dense_strides
from .prim import Prim


def _shape(x: TensorType, dim: int) -> TensorType:
    return TensorType(x.sizes, dense_strides(x.sizes, x.strides) or contiguous_strides(x.sizes), x.dtype, x.device)


cumsum = Prim(
    "cumsum", "scan", _shape, lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), "out[…, i, …] = sum of x[…, :i+1, …]"
)
cumprod = Prim("cumprod", "scan", _shape, lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), "the same with products")

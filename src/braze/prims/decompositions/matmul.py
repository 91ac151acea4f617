"""Products with a bias. Plain products are vendor calls and stay opaque."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir import Node, TensorType, contiguous_strides

from ..builder import Builder
from ..elementwise import FLOATS
from ..registry import decomposes

_aten = torch.ops.aten


@decomposes("addmm")
def addmm(b: Builder, self: Node, mat1: Node, mat2: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """One vendor call, or a product and an addition where the policy asks for it."""
    if not b.policy.split_addmm or b.out.dtype not in FLOATS:
        return NotImplemented
    want: TensorType = b.out
    val = TensorType(want.sizes, contiguous_strides(want.sizes), want.dtype, want.device)
    product = b.compute(b.graph.call(_aten.mm.default, (mat1, mat2), val=val))
    if alpha != 1:
        product = b.mul(product, alpha)
    if beta == 0:
        return product
    bias = b.compute(self)
    return b.add(product, bias if beta == 1 else b.mul(bias, beta))

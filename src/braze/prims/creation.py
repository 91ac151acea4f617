"""Tensors from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir import IntLike, TensorType, contiguous_strides

from .prim import Prim


def _full(sizes: Sequence[IntLike], value: Any, dtype: torch.dtype, device: torch.device) -> TensorType:
    return TensorType(tuple(sizes), contiguous_strides(sizes), dtype, device)


def _iota(n: IntLike, start: IntLike, step: IntLike, dtype: torch.dtype, device: torch.device) -> TensorType:
    assert not dtype.is_floating_point, "prims.iota gives integers; convert and scale for floats"
    return TensorType((n,), (1,), dtype, device)


full = Prim(
    "full",
    "creation",
    _full,
    lambda sizes, value, dtype, device: torch.full(tuple(sizes), value, dtype=dtype, device=device),
    "one value everywhere",
)
iota = Prim(
    "iota",
    "creation",
    _iota,
    lambda n, start, step, dtype, device: torch.arange(n, dtype=dtype, device=device) * step + start,
    "out[i] = start + i * step, integers, for 0 <= i < n",
)

"""Short constructors for the result types that rules return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir import IntLike, TensorType
from .layout import contiguous, in_format, suggested


def fresh(
    like: TensorType, sizes: Sequence[IntLike] | None = None, dtype: torch.dtype | None = None, strides: Any = None
) -> TensorType:
    """A new tensor on ``like``'s device: contiguous unless strides are given; sizes and dtype default to ``like``'s."""
    n = like.sizes if sizes is None else tuple(sizes)
    return TensorType(n, contiguous(n) if strides is None else strides, dtype or like.dtype, like.device)


def copy_of(x: TensorType, fmt: torch.memory_format | None = None, dtype: torch.dtype | None = None) -> TensorType:
    """A new tensor of ``x``'s sizes in a memory format (None: preserve)."""
    return TensorType(x.sizes, in_format(x.sizes, x.strides, fmt), dtype or x.dtype, x.device)


def formatted(x: TensorType, sizes: Sequence[IntLike], dtype: torch.dtype | None = None) -> TensorType:
    """A new tensor of these sizes in the memory format that ``x`` suggests."""
    n = tuple(sizes)
    return TensorType(n, suggested(n, (x.sizes, x.strides)), dtype or x.dtype, x.device)


def view_of(x: TensorType, sizes: Sequence[IntLike], strides: Sequence[IntLike], offset: IntLike) -> TensorType:
    """An alias of ``x`` with other sizes, strides and storage offset."""
    return TensorType(tuple(sizes), tuple(strides), x.dtype, x.device, offset)


def real_device(device: torch.device | str | None) -> torch.device:
    """A device as tensors have it: "cuda" becomes the current CUDA device, None the CPU."""
    d = torch.device("cpu" if device is None else device)
    if d.index is None and d.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    return d


def dim_of(dim: int, rank: int) -> int:
    """A dim counted from the front. IndexError, as in eager, when out of range (0-d tensors count as rank 1)."""
    n = max(rank, 1)
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim % n


def dims_of(dims: Any, rank: int) -> tuple[int, ...]:
    """The dims of a reduction from the front; None and () mean all."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    return tuple(dim_of(d, rank) for d in ((dims,) if isinstance(dims, int) else dims))

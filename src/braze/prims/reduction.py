"""Reductions over ``dims``: ``prim(x, dims)`` with dims an ascending tuple of non-negative dims; they are dropped.

The result has x's dtype (convert first for another accumulator); float16 and bfloat16 accumulate in float32 and round
once at the end; float32 sums are as accurate as a cascaded sum.  ``any``/``all`` take bool.  ``argmax``/``argmin`` give
the int64 position of the first best in the row-major order of ``dims``; the first NaN wins.  Over no elements: sum 0,
prod 1, any False, all True; the others raise ValueError when the graph is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.ir import TensorType, contiguous_strides

from .prim import Prim

Dims = tuple[int, ...]


def _flat(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    """x with ``dims`` moved to the back and flattened into one."""
    keep = [d for d in range(x.dim()) if d not in dims]
    y = x.permute(*keep, *dims)
    return y.reshape([x.shape[d] for d in keep] + [-1 if y.numel() else _count(x, dims)])


def _count(x: torch.Tensor, dims: Dims) -> int:
    n = 1
    for d in dims:
        n *= x.shape[d]
    return n


def _whole(fn: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, Dims], torch.Tensor]:
    """A reference from ``fn(t, -1)`` over the flattened dims. No dims: x itself as a one-element fold."""
    return lambda x, dims: fn(_flat(x, dims), -1)


def _sum(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    return torch.sum(x, dims, dtype=x.dtype) if dims else x.clone()


def _shape_rule(name: str, result: torch.dtype | None, empty_ok: bool) -> Callable[[TensorType, Dims], TensorType]:
    def rule(x: TensorType, dims: Dims) -> TensorType:
        assert list(dims) == sorted(set(dims)) and all(0 <= d < x.rank for d in dims), f"prims.{name}: dims {dims}"
        if not empty_ok and any(x.sizes[d] == 0 for d in dims):
            raise ValueError(f"prims.{name} over the empty dims {dims} of {x}")
        sizes = tuple(n for d, n in enumerate(x.sizes) if d not in dims)
        return TensorType(sizes, contiguous_strides(sizes), result or x.dtype, x.device)

    return rule


for _name, _ref, _result, _empty, _doc in (
    ("sum", _sum, None, True, "sum"),
    ("prod", _whole(lambda t, d: torch.prod(t, d, dtype=t.dtype)), None, True, "product"),
    ("amax", _whole(torch.amax), None, False, "largest; NaN if any is NaN"),
    ("amin", _whole(torch.amin), None, False, "smallest; NaN if any is NaN"),
    ("any", _whole(torch.any), torch.bool, True, "logical or of bool"),
    ("all", _whole(torch.all), torch.bool, True, "logical and of bool"),
    ("argmax", _whole(torch.argmax), torch.int64, False, "position of the first largest"),
    ("argmin", _whole(torch.argmin), torch.int64, False, "position of the first smallest"),
):
    Prim(_name, "reduction", _shape_rule(_name, _result, _empty), _ref, _doc)


def all_dims(x: Any) -> Dims:
    """Every dim of a value with ``rank``."""
    return tuple(range(x.rank))

"""Functional collectives (``torch.ops._c10d_functional``): a result has memory of its own, in rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir import IntLike, TensorType, contiguous_strides
from ..registry import rule


def _rows(x: TensorType, first: IntLike | None = None) -> TensorType:
    """A contiguous result with the sizes of ``x``, but for the first dim."""
    sizes = x.sizes if first is None else (first, *x.sizes[1:])
    return TensorType(sizes, contiguous_strides(sizes), x.dtype, x.device)


def _first(x: TensorType) -> IntLike:
    return x.sizes[0] if x.sizes else 1


@rule("_c10d_functional::all_reduce _c10d_functional::broadcast")
def same(x: TensorType, *rest: Any) -> TensorType:
    return _rows(x)


@rule("_c10d_functional::wait_tensor _c10d_functional::_wrap_tensor_autograd")
def wait(x: TensorType) -> TensorType:
    return TensorType(x.sizes, x.strides, x.dtype, x.device)


@rule("_c10d_functional::all_gather_into_tensor")
def gathered(x: TensorType, group_size: int, group: Any) -> TensorType:
    return _rows(x, _first(x) * group_size)


@rule("_c10d_functional::reduce_scatter_tensor")
def scattered(x: TensorType, op: str, group_size: int, group: Any) -> TensorType:
    first = _first(x)
    return _rows(x, first // group_size)


@rule("_c10d_functional::all_to_all_single")
def exchanged(x: TensorType, received: Sequence[int], sent: Sequence[int], group: Any) -> TensorType:
    return _rows(x, sum(received))


@rule("_c10d_functional::all_reduce_coalesced")
def several_same(xs: Sequence[TensorType], *rest: Any) -> list[TensorType]:
    return [_rows(x) for x in xs]


@rule("_c10d_functional::all_gather_into_tensor_coalesced")
def several_gathered(xs: Sequence[TensorType], group_size: int, group: Any) -> list[TensorType]:
    return [gathered(x, group_size, group) for x in xs]


@rule("_c10d_functional::reduce_scatter_tensor_coalesced")
def several_scattered(xs: Sequence[TensorType], op: str, group_size: int, group: Any) -> list[TensorType]:
    return [scattered(x, op, group_size, group) for x in xs]

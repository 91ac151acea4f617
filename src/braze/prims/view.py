"""View primitives: the same elements under other indices.  A result may alias its operand; values are all that counts.

The val's strides are those of the view of the operand's val where one exists (``reshape`` of a layout that has no view
is contiguous).  All sizes are final: no -1, no negative dims, bounds normalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.fake.layout import view_strides
from braze.ir import IntLike, TensorType, contiguous_strides, product

from .prim import Prim

Ints = Sequence[IntLike]


def _expand(x: TensorType, sizes: Ints) -> TensorType:
    lead = len(sizes) - x.rank
    assert lead >= 0, f"prims.expand: {x} to the fewer dims {sizes}"
    strides: list[IntLike] = [0] * lead
    for d, n in enumerate(x.sizes):
        assert n == sizes[lead + d] or n == 1, f"prims.expand: {x} to {sizes}"
        strides.append(x.strides[d] if n == sizes[lead + d] else 0)
    return TensorType(tuple(sizes), tuple(strides), x.dtype, x.device, x.offset)


def _permute(x: TensorType, dims: Sequence[int]) -> TensorType:
    assert sorted(dims) == list(range(x.rank)), f"prims.permute: {x} by {dims}"
    sizes, strides = tuple(x.sizes[d] for d in dims), tuple(x.strides[d] for d in dims)
    return TensorType(sizes, strides, x.dtype, x.device, x.offset)


def _reshape(x: TensorType, sizes: Ints) -> TensorType:
    assert product(x.sizes) == product(sizes), f"prims.reshape: {x} to {sizes}"
    strides = view_strides(x.sizes, x.strides, tuple(sizes))
    if strides is None:
        return TensorType(tuple(sizes), contiguous_strides(sizes), x.dtype, x.device)
    return TensorType(tuple(sizes), strides, x.dtype, x.device, x.offset)


def _slice(x: TensorType, starts: Ints, stops: Ints, steps: Ints) -> TensorType:
    assert len(starts) == len(stops) == len(steps) == x.rank, f"prims.slice: {x} by {starts}, {stops}, {steps}"
    sizes = tuple((b - a + s - 1) // s for a, b, s in zip(starts, stops, steps))
    strides = tuple(x.strides[d] * steps[d] for d in range(x.rank))
    offset = x.offset
    for a, s in zip(starts, x.strides):
        offset = offset + a * s
    return TensorType(sizes, strides, x.dtype, x.device, offset)


def _slice_reference(
    x: torch.Tensor, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
) -> torch.Tensor:
    return x[tuple(slice(a, b, s) for a, b, s in zip(starts, stops, steps))] if x.dim() else x


def _flip(x: TensorType, dims: Sequence[int]) -> TensorType:
    return TensorType(x.sizes, contiguous_strides(x.sizes), x.dtype, x.device)


def _as_strided(x: TensorType, sizes: Ints, strides: Ints, offset: IntLike) -> TensorType:
    if x.is_contiguous:
        return TensorType(tuple(sizes), tuple(strides), x.dtype, x.device, x.offset + offset)
    return TensorType(tuple(sizes), contiguous_strides(sizes), x.dtype, x.device)


def _as_strided_reference(x: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    flat = x.contiguous()
    return flat.as_strided(sizes, strides, flat.storage_offset() + offset)


expand = Prim(
    "expand", "view", _expand, lambda x, sizes: x.expand(sizes), "size-1 and new leading dims repeated to ``sizes``"
)
permute = Prim("permute", "view", _permute, lambda x, dims: x.permute(dims), "result dim i is x's dim dims[i]")
reshape = Prim(
    "reshape", "view", _reshape, lambda x, sizes: x.reshape(sizes), "the row-major order of the elements in other sizes"
)
slice_ = Prim("slice", "view", _slice, _slice_reference, "x[a:b:s] in every dim, with 0 <= a <= b <= size and s >= 1")
flip = Prim("flip", "view", _flip, lambda x, dims: torch.flip(x, dims), "reversed along dims")
as_strided = Prim(
    "as_strided",
    "view",
    _as_strided,
    _as_strided_reference,
    "element (i, j, …) is the element offset + i*strides[0] + j*strides[1] + … in the row-major order of x",
)

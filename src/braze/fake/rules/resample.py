"""Padding by copying, resampling, grid sampling, unpooling, and columns of patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...ir import IntLike, TensorType
from ..promote import result_type
from ..registry import register, rule
from ..result import copy_of, formatted, fresh
from .conv import pool_sizes
from .pointwise import pointwise

_I64 = torch.int64


def _padded(rank: int, x: TensorType, pads: Sequence[IntLike]) -> TensorType:
    sizes = list(x.sizes)
    for i in range(rank):
        sizes[-1 - i] = sizes[-1 - i] + pads[2 * i] + pads[2 * i + 1]
    if any(isinstance(n, int) and n < 1 for n in sizes[-rank:]):
        raise RuntimeError(f"padding {list(pads)} leaves no elements of {x}")
    return formatted(x, sizes)


def _like_input(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return formatted(x, x.sizes)


for _kind in ("reflection", "replication"):
    for _rank in (1, 2, 3):
        register(partial(_padded, _rank), [f"{_kind}_pad{_rank}d"])
        register(_like_input, [f"{_kind}_pad{_rank}d_backward"])


def _resized(x: TensorType, size: Sequence[IntLike], *rest: Any) -> TensorType:
    return formatted(x, (*x.sizes[:2], *size))


def _resized_backward(g: TensorType, size: Sequence[IntLike], input_size: Sequence[IntLike], *rest: Any) -> TensorType:
    return formatted(g, input_size)


def _contiguous_backward(
    g: TensorType, size: Sequence[IntLike], input_size: Sequence[IntLike], *rest: Any
) -> TensorType:
    return fresh(g, input_size)


RESIZERS = """
upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa
"""
ROW_MAJOR_BACKWARD = "upsample_bicubic2d upsample_nearest3d _upsample_nearest_exact3d".split()
for _name in RESIZERS.split():
    # the .vec overloads are composite: only those with an explicit output size arrive here
    register(_resized, [f"{_name}.default", f"{_name}.out"])
    backward = _contiguous_backward if _name in ROW_MAJOR_BACKWARD else _resized_backward
    register(backward, [f"{_name}_backward"])


@rule("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler")
def grid_sampler(x: TensorType, grid: TensorType, *rest: Any) -> TensorType:
    return fresh(x, (*x.sizes[:2], *grid.sizes[1:-1]))


@rule("grid_sampler_2d_backward grid_sampler_3d_backward")
def grid_sampler_backward(
    g: TensorType, x: TensorType, grid: TensorType, mode: int, padding: int, align: bool, mask: Any
) -> Any:
    return fresh(x) if mask[0] else None, fresh(grid) if mask[1] else None


@rule("adaptive_max_pool3d")
def adaptive_max_pool3d(x: TensorType, size: Sequence[IntLike]) -> Any:
    n = (*x.sizes[:-3], *size)
    return fresh(x, n), fresh(x, n, _I64)


@rule("adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward")
def contiguous_backward(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


@rule("fractional_max_pool2d fractional_max_pool3d")
def fractional_max_pool(x: TensorType, kernel: Any, size: Sequence[IntLike], samples: TensorType) -> Any:
    n = (*x.sizes[: x.rank - len(size)], *size)
    return fresh(x, n), fresh(x, n, _I64)


@rule("max_unpool2d")
def max_unpool2d(x: TensorType, index: TensorType, size: Sequence[IntLike]) -> TensorType:
    return formatted(x, (*x.sizes[:-2], *size))


@rule("max_unpool3d")
def max_unpool3d(x: TensorType, index: TensorType, size: Sequence[IntLike], *rest: Any) -> TensorType:
    return fresh(x, (*x.sizes[:-3], *size))


@rule("channel_shuffle native_channel_shuffle")
def channel_shuffle(x: TensorType, groups: int) -> TensorType:
    return formatted(x, x.sizes)


@rule("im2col")
def im2col(x: TensorType, kernel: Any, dilation: Any, padding: Any, stride: Any) -> TensorType:
    *_, h, w = pool_sizes(x, 2, kernel, stride, padding, dilation, False)
    return fresh(x, (*x.sizes[:-3], x.sizes[-3] * kernel[0] * kernel[1], h * w))


@rule("col2im")
def col2im(x: TensorType, size: Sequence[IntLike], kernel: Any, *rest: Any) -> TensorType:
    return fresh(x, (*x.sizes[:-2], x.sizes[-2] // (kernel[0] * kernel[1]), *size))


@rule("_prelu_kernel_backward")
def prelu_backward(g: TensorType, x: TensorType, w: TensorType) -> Any:
    out = pointwise("same", (x, w, g))
    return out, out


@rule("rrelu_with_noise")
def rrelu(x: TensorType, noise: TensorType, *rest: Any, **kw: Any) -> TensorType:
    return fresh(x)


@rule("rrelu_with_noise_backward")
def rrelu_backward(g: TensorType, x: TensorType, noise: TensorType, *rest: Any) -> TensorType:
    return pointwise("same", (g, x, noise))


@rule("cross")
def cross(a: TensorType, b: TensorType, dim: int | None = None) -> TensorType:
    return fresh(pointwise("same", (a, b)))


@rule("normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor")
def normal(mean: Any, std: Any = 1.0, *, generator: Any = None) -> TensorType:
    operands = tuple(x for x in (mean, std) if isinstance(x, TensorType))
    return fresh(pointwise("first", operands), None, result_type(operands))


@rule("frexp.Tensor")
def frexp(x: TensorType) -> Any:
    return copy_of(x), copy_of(x, None, torch.int32)

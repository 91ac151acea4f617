"""Convolutions of single pixels as products of matrices, where the policy asks for it."""

from __future__ import annotations

from typing import Any

import torch

from braze.fake.layout import is_channels_last
from braze.ir import Node, TensorType, contiguous_strides, known_le

from ..builder import Builder
from ..registry import decomposes
from .window import pad, spread_out

_aten = torch.ops.aten
MOST_PIXELS = 512
"""Of more than these the vendor's convolution is as fast as its product."""


def of_few_pixels(x: TensorType, w: TensorType, result: TensorType, settings: Any) -> bool:
    """Whether a convolution is a product over the channels of few pixels: of images x by weights w, with
    ``settings = (stride, padding, dilation, transposed, output padding, groups)``."""
    _, padding, _, transposed, _, groups = settings
    if transposed or groups != 1 or x.rank != 4 or x.dtype is not torch.float32:
        return False
    sizes = (*x.sizes, *w.sizes)
    if not all(isinstance(n, int) and n > 0 for n in sizes) or tuple(w.sizes[2:]) != (1, 1):
        return False
    if any(padding):
        return False
    n, _, high, wide = result.sizes
    last = all(is_channels_last(t.sizes, t.strides) for t in (x, result))
    return last and known_le(n * high * wide, MOST_PIXELS)


def _rows(b: Builder, x: Node) -> Node:
    """(n, c, h, w) as a matrix of its pixels' channels."""
    n, c, h, w = x.val.sizes
    return b.reshape(b.permute(x, (0, 2, 3, 1)), (n * h * w, c))


def _images(b: Builder, rows: Node, like: TensorType) -> Node:
    n, c, h, w = like.sizes
    return b.permute(b.reshape(rows, (n, h, w, c)), (0, 3, 1, 2))


def _picked(b: Builder, x: Node, stride: Any) -> Node:
    """The pixels that a strided convolution looks at."""
    for dim, step in zip((2, 3), stride):
        x = b.slice(x, dim, 0, x.val.sizes[dim], step) if step != 1 else x
    return x


def _put_back(b: Builder, x: Node, like: TensorType, stride: Any) -> Node:
    """Those pixels among zeros."""
    for dim, step in zip((2, 3), stride):
        x = spread_out(b, x, dim, step)
        x = pad(b, x, dim, 0, like.sizes[dim] - x.val.sizes[dim])
    return x


def _turned(b: Builder, x: Node) -> Node:
    return b.permute(x, (1, 0))


def _product(b: Builder, left: Node, right: Node, bias: Node | None = None) -> Node:
    sizes = (left.val.sizes[0], right.val.sizes[1])
    val = TensorType(sizes, contiguous_strides(sizes), left.val.dtype, left.val.device)
    if bias is None:
        return b.graph.call(_aten.mm.default, (left, right), val=val)
    return b.graph.call(_aten.addmm.default, (bias, left, right), val=val)


@decomposes("convolution")
def convolution(b: Builder, x: Node, w: Node, bias: Node | None, *settings: Any) -> Any:
    """x[pixel, i] @ w[o, i].T"""
    if not b.policy.pixel_products or not of_few_pixels(x.val, w.val, b.out, settings):
        return NotImplemented
    o, i = w.val.sizes[:2]
    rows = _rows(b, _picked(b, x, settings[0]))
    return _images(b, _product(b, rows, _turned(b, b.reshape(w, (o, i))), bias), b.out)


@decomposes("convolution_backward")
def convolution_backward(b: Builder, g: Node, x: Node, w: Node, bias_sizes: Any, *rest: Any) -> Any:
    """g @ w for the input, g.T @ x for the weight."""
    *settings, mask = rest
    if not b.policy.pixel_products or not of_few_pixels(x.val, w.val, g.val, settings):
        return NotImplemented
    o, i = w.val.sizes[:2]
    gs, stride = _rows(b, g), settings[0]
    few = _picked(b, x, stride)
    back = _images(b, _product(b, gs, b.reshape(w, (o, i))), few.val) if mask[0] else None
    return (
        _put_back(b, back, x.val, stride) if back is not None else None,
        b.reshape(_product(b, _turned(b, gs), _rows(b, few)), w.val.sizes) if mask[1] else None,
        b.sum(g, (0, 2, 3)) if mask[2] else None,
    )

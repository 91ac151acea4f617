"""Convolutions of single pixels as products of matrices, where the policy asks for it."""

from __future__ import annotations

from typing import Any

import torch

from braze.fake.layout import is_channels_last
from braze.ir import Node, TensorType, contiguous_strides

from ..builder import Builder
from ..registry import decomposes

_aten = torch.ops.aten
MOST_PIXELS = 512
"""Of more than these the vendor's convolution is as fast as its product."""


def _pixels(b: Builder, x: TensorType, w: TensorType, result: TensorType, settings: Any) -> int | None:
    """The number of pixels of a convolution that is a product over channels, else None."""
    stride, padding, dilation, transposed, _, groups = settings
    if not b.policy.pixel_products or transposed or groups != 1 or x.rank != 4 or x.dtype is not torch.float32:
        return None
    sizes = (*x.sizes, *w.sizes)
    if not all(isinstance(n, int) and n > 0 for n in sizes) or tuple(w.sizes[2:]) != (1, 1):
        return None
    if any(n != 1 for n in stride) or any(padding):
        return None
    pixels: int = x.sizes[0] * x.sizes[2] * x.sizes[3]
    last = all(is_channels_last(t.sizes, t.strides) for t in (x, result))
    return pixels if last and pixels <= MOST_PIXELS else None


def _rows(b: Builder, x: Node) -> Node:
    """(n, c, h, w) as a matrix of its pixels' channels."""
    n, c, h, w = x.val.sizes
    return b.reshape(b.permute(x, (0, 2, 3, 1)), (n * h * w, c))


def _images(b: Builder, rows: Node, like: TensorType) -> Node:
    n, c, h, w = like.sizes
    return b.permute(b.reshape(rows, (n, h, w, c)), (0, 3, 1, 2))


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
    if _pixels(b, x.val, w.val, b.out, settings) is None:
        return NotImplemented
    o, i = w.val.sizes[:2]
    return _images(b, _product(b, _rows(b, x), _turned(b, b.reshape(w, (o, i))), bias), b.out)


@decomposes("convolution_backward")
def convolution_backward(b: Builder, g: Node, x: Node, w: Node, bias_sizes: Any, *rest: Any) -> Any:
    """g @ w for the input, g.T @ x for the weight."""
    *settings, mask = rest
    if _pixels(b, x.val, w.val, g.val, settings) is None:
        return NotImplemented
    o, i = w.val.sizes[:2]
    gs = _rows(b, g)
    return (
        _images(b, _product(b, gs, b.reshape(w, (o, i))), x.val) if mask[0] else None,
        b.reshape(_product(b, _turned(b, gs), _rows(b, x)), w.val.sizes) if mask[1] else None,
        b.sum(g, (0, 2, 3)) if mask[2] else None,
    )

"""A strided convolution of few channels as a plain one over blocks of pixels (space to depth).

    y = convolution(x: [n, 3, 224, 224], w: [64, 3, 7, 7], stride 2, padding 3)
        ->  y = convolution(blocks of x: [n, 16, 115, 115], w in blocks: [64, 16, 4, 4], stride 1, padding 0)

Tensor cores take channels by eights: three of them waste most of the work and need a padded copy of the input anyway.
Here the copy holds each 2 x 2 block of pixels as channels.  The products and sums are the same; zeros are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir import Node, TensorType
from .layout import Emits

aten = torch.ops.aten
FEW = 4  # channels


@dataclass(frozen=True)
class Blocks:
    """``step``: the convolution's stride, the blocks' sides; ``low``: its padding; ``kernel``: its window in blocks;
    ``size``: the input's blocks along each side; ``channels``: those of a pixel, so padded that blocks have eights."""

    step: tuple[int, int]
    low: tuple[int, int]
    kernel: tuple[int, int]
    size: tuple[int, int]
    channels: int


def blocks_of(x: TensorType, w: TensorType, settings: Sequence[Any]) -> Blocks | None:
    """The blocks for a convolution's operands and ``(stride, padding, dilation, transposed, output padding, groups)``;
    None where it stays as it is."""
    stride, padding, dilation, transposed, _, groups = settings
    if transposed or groups != 1 or w.rank != 4 or any(not isinstance(n, int) for n in (*x.sizes, *w.sizes)):
        return None
    (s, t), (p, q), dilations = _pair(stride), _pair(padding), _pair(dilation)
    c = x.sizes[1]
    if not isinstance(c, int) or c > FEW or s * t == 1 or dilations != (1, 1):
        return None
    while c * s * t % 8 and c < FEW:
        c += 1
    sizes, windows = x.sizes[2:], w.sizes[2:]
    kernel = tuple([-(-k // v) for k, v in zip(windows, (s, t))])
    out = [(n + 2 * v - k) // u + 1 for n, k, u, v in zip(sizes, windows, (s, t), (p, q))]
    size = tuple([n - 1 + k for n, k in zip(out, kernel)])
    return Blocks((s, t), (p, q), kernel, size, c)  # type: ignore[arg-type]


def _pair(v: Sequence[int]) -> tuple[int, int]:
    return v[0], v[-1]


def input_in_blocks(rec: Emits, x: Node, b: Blocks) -> Node:
    """The padded input with each block's pixels as channels, a view."""
    high = [b.size[i] * b.step[i] - x.val.sizes[2 + i] - b.low[i] for i in range(2)]
    return _gathered(rec, x, b, b.low, (high[0], high[1]), b.size)


def weight_in_blocks(rec: Emits, w: Node, b: Blocks) -> Node:
    """The window, filled up to whole blocks, likewise."""
    high = [b.kernel[i] * b.step[i] - w.val.sizes[2 + i] for i in range(2)]
    return _gathered(rec, w, b, (0, 0), (high[0], high[1]), b.kernel)


def _gathered(
    rec: Emits, x: Node, b: Blocks, low: tuple[int, int], high: tuple[int, int], size: tuple[int, int]
) -> Node:
    n, c = x.val.sizes[:2]
    pad = [low[1], high[1], low[0], high[0], 0, b.channels - c]
    if any(pad):
        x = rec.call(aten.constant_pad_nd.default, x, pad, 0.0)
    (h, w), (s, t) = size, b.step
    x = rec.call(aten.view.default, x, [n, b.channels, h, s, w, t])
    x = rec.call(aten.permute.default, x, [0, 3, 5, 1, 2, 4])
    x = rec.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return rec.call(aten.view.default, x, [n, s * t * b.channels, h, w])


def weight_from_blocks(rec: Emits, w: Node, b: Blocks, like: TensorType) -> Node:
    """A gradient over the window in blocks as one over the window."""
    (h, k), (s, t) = b.kernel, b.step
    w = rec.call(aten.view.default, w, [w.val.sizes[0], s, t, b.channels, h, k])
    w = rec.call(aten.permute.default, w, [0, 3, 4, 1, 5, 2])
    w = rec.call(aten.clone.default, w, memory_format=torch.contiguous_format)
    w = rec.call(aten.view.default, w, [w.val.sizes[0], b.channels, h * s, k * t])
    for d in (1, 2, 3):
        if w.val.sizes[d] != like.sizes[d]:
            w = rec.call(aten.slice.Tensor, w, d, 0, like.sizes[d])
    return w

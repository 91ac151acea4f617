"""Pooling and resizing that are means, broadcasts or gathers; other overlapping windows than those of maxima stay
vendor calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir import IntLike, Node, TensorType, known_eq

from ..builder import Builder, opmath
from ..elementwise import FLOATS
from ..prim import PRIMS
from ..registry import decomposes, register
from .window import pad


def _whole_blocks(sizes: Sequence[IntLike], parts: Sequence[IntLike]) -> list[int] | None:
    """The block sizes when each size is a whole multiple of its number of parts, else None."""
    out = []
    for n, p in zip(sizes, parts):
        if not isinstance(n, int) or not isinstance(p, int) or p == 0 or n == 0 or n % p:
            return None
        out.append(n // p)
    return out


def _in_blocks(x: Node, b: Builder, blocks: Sequence[int]) -> tuple[Node, tuple[int, ...]]:
    """(…, H, W) as (…, H / h, h, W / w, w), and the dims of the blocks."""
    k = len(blocks)
    lead = x.val.sizes[: x.val.rank - k]
    sizes = list(lead)
    for n, s in zip(x.val.sizes[len(lead) :], blocks):
        sizes += [n // s, s]
    return b.reshape(x, sizes), tuple(len(lead) + 2 * i + 1 for i in range(k))


def _block_mean(b: Builder, x: Node, blocks: Sequence[int]) -> Any:
    """The mean of each block."""
    if b.out.dtype not in FLOATS:
        return NotImplemented
    split, dims = _in_blocks(b.compute(x), b, blocks)
    return b.reshape(b.mean(split, dims), b.out.sizes)


def _block_spread(b: Builder, g: Node, blocks: Sequence[int], scale: float = 1.0) -> Node:
    """Every element repeated over its block, times scale."""
    k = len(blocks)
    lead = g.val.sizes[: g.val.rank - k]
    thin, wide = list(lead), list(lead)
    for n, s in zip(g.val.sizes[len(lead) :], blocks):
        thin += [n, 1]
        wide += [n, s]
    g = b.compute(g) if scale != 1.0 else g
    if scale != 1.0:
        g = b.mul(g, scale)
    return b.reshape(b.expand(b.reshape(g, thin), wide), b.out.sizes)


def _area(blocks: Sequence[int]) -> int:
    n = 1
    for s in blocks:
        n *= s
    return n


@decomposes("_adaptive_avg_pool2d _adaptive_avg_pool3d")
def adaptive_avg_pool(b: Builder, self: Node, output_size: Sequence[IntLike]) -> Any:
    k = len(output_size)
    blocks = _whole_blocks(self.val.sizes[-k:], output_size)
    return NotImplemented if blocks is None else _block_mean(b, self, blocks)


@decomposes("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(b: Builder, grad_output: Node, self: Node) -> Any:
    return _adaptive_backward(b, grad_output, 2)


@decomposes("_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(b: Builder, grad_output: Node, self: Node) -> Any:
    return _adaptive_backward(b, grad_output, 3)


def _adaptive_backward(b: Builder, g: Node, k: int) -> Any:
    blocks = _whole_blocks(b.out.sizes[-k:], g.val.sizes[-k:])
    return NotImplemented if blocks is None else _block_spread(b, g, blocks, 1.0 / _area(blocks))


def _windows(
    k: int, sizes: Sequence[IntLike], kernel: Any, stride: Any, padding: Any, divisor: Any
) -> list[int] | None:
    """The block sizes when windows tile the input exactly, else None."""
    kernel, stride, padding = (list(v) * k if len(v) == 1 else list(v) for v in (kernel, stride or kernel, padding))
    if kernel != stride or any(padding) or divisor is not None:
        return None
    parts = [n // s if isinstance(n, int) else 0 for n, s in zip(sizes[-k:], kernel)]
    return kernel if _whole_blocks(sizes[-k:], parts) == kernel else None


def _avg_pool(k: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(
        b: Builder,
        self: Node,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        blocks = _windows(k, self.val.sizes, kernel_size, stride, padding, divisor_override)
        if blocks is None:
            settings = (kernel_size, stride, padding, count_include_pad, divisor_override)
            return _window_mean(b, self, *settings) if k == 2 else NotImplemented
        return _block_mean(b, self, blocks)

    def backward(
        b: Builder,
        grad_output: Node,
        self: Node,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Any,
    ) -> Any:
        blocks = _windows(k, self.val.sizes, kernel_size, stride, padding, divisor_override)
        if blocks is None:
            settings = (kernel_size, stride, padding, count_include_pad, divisor_override)
            return _window_spread(b, grad_output, self, *settings) if k == 2 else NotImplemented
        return _block_spread(b, grad_output, blocks, 1.0 / _area(blocks))

    return forward, backward


for _k in (2, 3):
    _forward, _backward = _avg_pool(_k)
    register(f"avg_pool{_k}d", _forward)
    register(f"avg_pool{_k}d_backward", _backward)


# -- means over windows that overlap or hang over


def _window_mean(
    b: Builder, x: Node, kernel_size: Any, stride: Any, padding: Any, include_pad: bool, divisor: Any
) -> Any:
    """The sum over each window by slices of the padded input, over the number of its elements."""
    found = _plain_windows(b, x, kernel_size, stride, padding, 1)
    if found is None:
        return NotImplemented
    kernel, step, low = found
    out, dims = b.out, (x.val.rank - 2, x.val.rank - 1)
    counts = _counts(b, x.val, out, found, include_pad, divisor)
    x = b.compute(x)
    for d, k, s, p in zip(dims, kernel, step, low):
        x = pad(b, x, d, p, max((out.sizes[d] - 1) * s + k - x.val.sizes[d] - p, 0), 0.0)
    total = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            value = x
            for d, first, s in zip(dims, (i, j), step):
                value = b.slice(value, d, first, first + (out.sizes[d] - 1) * s + 1, s)
            total = value if total is None else b.add(total, value)
    return b.div(total, counts)


def _window_spread(
    b: Builder, g: Node, x: Node, kernel_size: Any, stride: Any, padding: Any, include_pad: bool, divisor: Any
) -> Any:
    """Windows one step apart: each element takes its share of the gradients of all windows that it is in."""
    found = _plain_windows(b, x, kernel_size, stride, padding, 1)
    if found is None or found[1] != (1, 1):
        return NotImplemented
    (kernel, low), dims = (found[0], found[2]), (x.val.rank - 2, x.val.rank - 1)
    share = b.div(b.compute(g), _counts(b, x.val, g.val, found, include_pad, divisor))
    for d, k, p in zip(dims, kernel, low):
        share = pad(b, share, d, max(k - 1 - p, 0), max(x.val.sizes[d] + p - g.val.sizes[d], 0), 0.0)
        share = b.slice(share, d, max(p - k + 1, 0), share.val.sizes[d])
    total = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            value = share
            for d, first in zip(dims, (i, j)):
                value = b.slice(value, d, first, first + x.val.sizes[d])
            total = value if total is None else b.add(total, value)
    return total


def _counts(b: Builder, x: TensorType, out: TensorType, windows: Any, include_pad: bool, divisor: Any) -> Any:
    """What the sum over each window is divided by: a number, or a tensor that broadcasts."""
    if divisor is not None:
        return float(divisor)
    number, tensor = 1.0, None
    for d, k, s, p in zip((x.rank - 2, x.rank - 1), *windows):
        lo, hi = (-p, x.sizes[d] + p) if include_pad else (0, x.sizes[d])
        each = [min(w * s - p + k, hi) - max(w * s - p, lo) for w in range(out.sizes[d])]
        if len(set(each)) == 1:
            number *= each[0]
            continue
        start = b.sub(b.mul(b.iota_along(out, d), s), p)
        along = b.sub(b.minimum(b.add(start, k), hi), b.maximum(start, lo))
        tensor = along if tensor is None else b.mul(tensor, along)
    if tensor is None:
        return number
    return b.mul(b.convert(tensor, opmath(x.dtype)), number)


# -- maxima over windows -----------------------------------------------------------------------------------------------

MOST_POSITIONS = 16  # of a window; larger ones stay vendor calls


def _pairs(*values: Any) -> list[tuple[int, int]]:
    return [(v, v) if isinstance(v, int) else (v[0], v[-1]) for v in values]


def _plain_windows(b: Builder, x: Node, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """(kernel, stride, padding) as pairs where the windows are few, undilated and of known sizes; else None."""
    k, s, p, d = _pairs(kernel, stride if stride not in ((), [], None) else kernel, padding, dilation)
    known = all(isinstance(n, int) and n > 0 for n in x.val.sizes)
    if not b.policy.max_pools or d != (1, 1) or k[0] * k[1] > MOST_POSITIONS or not known or x.val.dtype not in FLOATS:
        return None
    return k, s, p


@decomposes("max_pool2d_with_indices")
def max_pool2d(
    b: Builder,
    self: Node,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """The last NaN, else the first largest; its place counts the elements of the (H, W) plane."""
    found = _plain_windows(b, self, kernel_size, stride, padding, dilation)
    if found is None:
        return NotImplemented
    kernel, step, low = found
    out, dims = b.out[0], (self.val.rank - 2, self.val.rank - 1)
    x = self
    for d, k, s, p in zip(dims, kernel, step, low):
        x = pad(b, x, d, p, max((out.sizes[d] - 1) * s + k - self.val.sizes[d] - p, 0), float("-inf"))
    best, at = None, b.full(out.sizes, 0, torch.int32, out.device)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            value = x
            for d, first, s in zip(dims, (i, j), step):
                value = b.slice(value, d, first, first + (out.sizes[d] - 1) * s + 1, s)
            if best is None:
                best = value
                continue
            better = b.bitwise_or(b.gt(value, best), b.ne(value, value))
            best = b.where(better, value, best)
            at = b.where(better, i * kernel[1] + j, at)
    at = b.convert(at, torch.int64)
    row, column = b.floor_div(at, kernel[1]), b.remainder(at, kernel[1])
    places = []
    for d, inside, s, p in zip(dims, (row, column), step, low):
        places.append(b.add(inside, b.sub(b.mul(b.iota_along(out, d), s), p)))
    return best, b.add(b.mul(places[0], self.val.sizes[-1]), places[1])


@decomposes("max_pool2d_with_indices_backward")
def max_pool2d_backward(
    b: Builder,
    grad_output: Node,
    self: Node,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Node,
) -> Any:
    """Each element looks at the windows that it may be in and takes the gradients of those whose largest it is; on the
    CPU, where there are more such than windows, the windows add to their elements, plane by plane."""
    found = _plain_windows(b, self, kernel_size, stride, padding, dilation)
    if found is None:
        return NotImplemented
    kernel, step, low = found
    x = self.val
    overlap = kernel[0] > step[0] or kernel[1] > step[1]
    if overlap and x.device.type == "cpu" and x.is_contiguous:
        planes = x.sizes[:-2]
        g = b.reshape(b.compute(grad_output), (*planes, grad_output.val.sizes[-2] * grad_output.val.sizes[-1]))
        zeros = b.full((*planes, x.sizes[-2] * x.sizes[-1]), 0, g.val.dtype, x.device)
        index = b.reshape(indices, g.val.sizes)
        return b.reshape(b.call(PRIMS["scatter_add"], zeros, len(planes), index, g), x.sizes)
    me = b.add(b.mul(b.iota_along(x, x.rank - 2), x.sizes[-1]), b.iota_along(x, x.rank - 1))
    g = b.compute(grad_output)
    total = None
    for i in range(-(-kernel[0] // step[0])):
        for j in range(-(-kernel[1] // step[1])):
            back = (i, j)
            mine = b.eq(_window_of(b, indices, x.sizes, step, low, back, -1), me)
            part = b.where(mine, _window_of(b, g, x.sizes, step, low, back, 0), 0.0)
            total = part if total is None else b.add(total, part)
    return total


def _window_of(b: Builder, y: Node, sizes: Any, step: Any, low: Any, back: tuple[int, int], other: Any) -> Node:
    """At (h, w): y at window ((h + low) // step - back), ``other`` where there is none."""
    lead = y.val.sizes[:-2]
    (m, n), (s, t) = y.val.sizes[-2:], step
    y = b.reshape(b.expand(b.reshape(y, (*lead, m, 1, n, 1)), (*lead, m, s, n, t)), (*lead, m * s, n * t))
    for d, w, p, k in zip((len(lead), len(lead) + 1), step, low, back):
        start = p - k * w  # where the first element reads
        if start < 0:
            y = pad(b, y, d, -start, 0, other)
            start = 0
        y = pad(b, y, d, 0, max(start + sizes[d] - y.val.sizes[d], 0), other)
        y = b.slice(y, d, start, start + sizes[d])
    return y


# -- nearest neighbour -----------------------------------------------------------------------------------------------


def _nearest(k: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def scales_agree(scales: Sequence[Any], blocks: Sequence[int]) -> bool:
        return all(s is None or known_eq(s, n) for s, n in zip(scales, blocks))

    def forward(b: Builder, self: Node, output_size: Sequence[IntLike], *scales: Any, **kwargs: Any) -> Any:
        blocks = _whole_blocks(output_size, self.val.sizes[-k:])
        if blocks is None or not scales_agree([*scales, *kwargs.values()], blocks):
            return NotImplemented
        return _block_spread(b, self, blocks)

    def backward(
        b: Builder, grad_output: Node, output_size: Sequence[IntLike], input_size: Any, *scales: Any, **kwargs: Any
    ) -> Any:
        blocks = _whole_blocks(output_size, input_size[-k:])
        if blocks is None or not scales_agree([*scales, *kwargs.values()], blocks):
            return NotImplemented
        split, dims = _in_blocks(b.compute(grad_output), b, blocks)
        return b.reshape(b.sum(split, dims), b.out.sizes)

    return forward, backward


for _k in (1, 2, 3):
    _forward, _backward = _nearest(_k)
    register(f"upsample_nearest{_k}d _upsample_nearest_exact{_k}d", _forward)
    register(f"upsample_nearest{_k}d_backward _upsample_nearest_exact{_k}d_backward", _backward)

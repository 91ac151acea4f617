"""Pooling and resizing that are means, broadcasts or gathers; overlapping windows stay vendor calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.ir import IntLike, Node, known_eq

from ..builder import Builder
from ..elementwise import FLOATS
from ..registry import decomposes, register


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
        return NotImplemented if blocks is None else _block_mean(b, self, blocks)

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
        return NotImplemented if blocks is None else _block_spread(b, grad_output, blocks, 1.0 / _area(blocks))

    return forward, backward


for _k in (2, 3):
    _forward, _backward = _avg_pool(_k)
    register(f"avg_pool{_k}d", _forward)
    register(f"avg_pool{_k}d_backward", _backward)


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

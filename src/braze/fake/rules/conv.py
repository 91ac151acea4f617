"""Convolution, pooling and resampling: results in the memory format that the inputs suggest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...ir import IntLike, TensorType, mod
from ..layout import channels_last, contiguous, is_contiguous, suggests_channels_last
from ..questions import agree, ask, number
from ..registry import rule
from ..result import formatted, fresh
from .view import squeeze, unsqueeze


def conv_sizes(
    x: TensorType,
    w: TensorType,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    out_padding: Sequence[int],
    groups: int,
) -> tuple[IntLike, ...]:
    """The sizes of a convolution's result. RuntimeError when channels do not fit or a size is not positive."""
    k = len(w.sizes) - 2
    batch, channels = x.sizes[:-k][:-1], x.sizes[-k - 1]
    want = w.sizes[0] if transposed else w.sizes[1] * groups
    agree(
        channels, want, f"expected input {list(x.sizes)} to have {want} channels, but got {channels} channels instead"
    )

    def at(v: Sequence[int], i: int) -> int:
        return v[i] if len(v) > 1 else v[0]

    spatial: list[IntLike] = []
    for i in range(k):
        n, f = x.sizes[i - k], w.sizes[2 + i]
        s, p, d = at(stride, i), at(padding, i), at(dilation, i)
        if transposed:
            spatial.append((n - 1) * s - 2 * p + d * (f - 1) + at(out_padding, i) + 1)
        else:
            spatial.append((n + 2 * p - d * (f - 1) - 1) // s + 1)
    if any(isinstance(n, int) and n < 0 for n in spatial):
        raise RuntimeError(f"convolution of {x} with {w} has no output: {spatial}")
    return (*batch, w.sizes[1] * groups if transposed else w.sizes[0], *spatial)


def _last(*xs: TensorType) -> bool:
    return any(suggests_channels_last(x.sizes, x.strides) for x in xs)


def _takes_last(
    x: TensorType, w: TensorType, stride: Any, dilation: Any, transposed: bool, out_padding: Any, groups: int
) -> bool:
    """False where the kernel that ATen picks is contiguous only: its own 3-d ones on the CPU, float64 on CUDA."""
    if x.device.type == "cuda":
        return x.dtype is not torch.float64
    return w.rank != 5 or _by_onednn(x, w, stride, dilation, transposed, out_padding, groups)


def _by_onednn(
    x: TensorType, w: TensorType, stride: Any, dilation: Any, transposed: bool, out_padding: Any, groups: int
) -> bool:
    """Whether ATen gives a CPU convolution to oneDNN."""
    n = [number(k, f"the memory format of a 3-d convolution of symbolic sizes {x}") for k in (*x.sizes, *w.sizes)]
    if transposed and (any(p >= s for p, s in zip(out_padding, stride)) or (groups > 1 and n[1] == groups)):
        return False
    if x.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if x.dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    strided = any(s != 1 for s in (*stride, *dilation))
    worth = strided or n[0] >= 16 or n[-1] != 1 or n[-2] != 1 or torch.get_num_threads() > 1
    big = groups > 1 or (n[-1] > 3 and n[-2] > 3) or n[0] > 1 or n[0] * n[1] * n[2] * n[3] > 20480
    return x.dtype is torch.float32 and worth and big


def _formed(x: TensorType, sizes: Sequence[IntLike], last: bool) -> TensorType:
    """A result in channels_last or contiguous; one of rank 3 is computed as rank 4 with a height of 1."""
    n = tuple(sizes)
    if len(n) == 3:
        return squeeze(_formed(x, (n[0], n[1], 1, n[2]), last), 2)
    return fresh(x, n, strides=channels_last(n) if last else contiguous(n))


def _chooses_last(x: TensorType, w: TensorType, *settings: Any) -> bool:
    if w.rank == 3:
        x = x if is_contiguous(x.sizes, x.strides) else fresh(x)
        x, w = unsqueeze(x, 2), unsqueeze(w, 2)
    return _last(x, w) and _takes_last(x, w, *settings)


@rule("convolution _convolution convolution_overrideable")
def convolution(
    x: TensorType, w: TensorType, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, op: Any, g: int,
    *rest: Any
) -> TensorType:  # fmt: skip
    if b is not None:
        agree(b.sizes[0], w.sizes[1] * g if transposed else w.sizes[0], f"a bias {b} for the weight {w}")
    last = _chooses_last(x, w, stride, dilation, transposed, op, g)
    return _formed(x, conv_sizes(x, w, stride, padding, dilation, transposed, op, g), last)


@rule("convolution_backward convolution_backward_overrideable")
def convolution_backward(g: TensorType, x: TensorType, w: TensorType, bias_sizes: Any, *rest: Any) -> Any:
    stride, _padding, dilation, transposed, out_padding, groups, mask = rest
    last = _chooses_last(x, w, stride, dilation, transposed, out_padding, groups)
    channels = w.sizes[1] * groups if transposed else w.sizes[0]
    out = (_formed(x, x.sizes, last), _formed(w, w.sizes, last), fresh(g, (channels,)))
    return tuple(t if keep else None for t, keep in zip(out, mask))


def _pooled(n: IntLike, k: int, s: int, p: int, d: int, ceil: bool) -> IntLike:
    out = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
    if ceil and ask("<=", n + p, (out - 1) * s, "whether a pooling window ends outside is not known"):
        out = out - 1
    return out


def pool_sizes(x: TensorType, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    """The sizes after pooling over the last ``rank`` dims; scalars and 1-lists count for each dim."""

    def spread(v: Any) -> list[int]:
        each: list[int] = [v] if isinstance(v, int) else list(v)
        return each * rank if len(each) == 1 else each

    k = spread(kernel)
    s = spread(stride) if stride is not None and stride != [] and stride != () else k
    p, d = spread(padding), spread(dilation)
    spatial = [_pooled(x.sizes[i - rank], k[i], s[i], p[i], d[i], ceil) for i in range(rank)]
    return (*x.sizes[: x.rank - rank], *spatial)


@rule("conv_tbc")
def conv_tbc(x: TensorType, w: TensorType, b: TensorType, pad: int = 0) -> TensorType:
    """[time, batch, channels] by weights [width, channels, out channels]."""
    return fresh(x, (x.sizes[0] + 2 * pad - w.sizes[0] + 1, x.sizes[1], w.sizes[2]))


@rule("conv_tbc_backward")
def conv_tbc_backward(g: TensorType, x: TensorType, w: TensorType, b: TensorType, pad: int) -> Any:
    return tuple([fresh(t, t.sizes) for t in (x, w, b)])


@rule("max_pool2d_with_indices")
def max_pool2d(x: TensorType, k: Any, s: Any = (), p: Any = 0, d: Any = 1, ceil: bool = False) -> Any:
    n = pool_sizes(x, 2, k, s, p, d, ceil)
    return formatted(x, n), formatted(x, n, torch.int64)


@rule("max_pool3d_with_indices")
def max_pool3d(x: TensorType, k: Any, s: Any = (), p: Any = 0, d: Any = 1, ceil: bool = False) -> Any:
    n = pool_sizes(x, 3, k, s, p, d, ceil)
    return formatted(x, n), formatted(x, n, torch.int64)


@rule("max_pool2d_with_indices_backward max_pool3d_with_indices_backward")
def max_pool_backward(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return formatted(x, x.sizes)


@rule("avg_pool2d")
def avg_pool2d(x: TensorType, k: Any, s: Any = (), p: Any = 0, ceil: bool = False, *rest: Any) -> TensorType:
    return formatted(x, pool_sizes(x, 2, k, s, p, 1, ceil))


@rule("avg_pool3d")
def avg_pool3d(x: TensorType, k: Any, s: Any = (), p: Any = 0, ceil: bool = False, *rest: Any) -> TensorType:
    return fresh(x, pool_sizes(x, 3, k, s, p, 1, ceil))


@rule("avg_pool3d_backward _adaptive_avg_pool3d_backward")
def avg_pool3d_backward(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


@rule("avg_pool2d_backward")
def avg_pool_backward(g: TensorType, x: TensorType, *rest: Any) -> TensorType:
    return formatted(x, x.sizes)


@rule("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: TensorType, size: Sequence[IntLike]) -> TensorType:
    return formatted(x, (*x.sizes[:-2], *size))


@rule("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: TensorType, size: Sequence[IntLike]) -> TensorType:
    return fresh(x, (*x.sizes[:-3], *size))


@rule("_adaptive_avg_pool2d_backward")
def adaptive_avg_backward(g: TensorType, x: TensorType) -> TensorType:
    return formatted(x, x.sizes)


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(x: TensorType, size: Sequence[IntLike]) -> Any:
    n = (*x.sizes[:-2], *size)
    return formatted(x, n), formatted(x, n, torch.int64)


@rule("adaptive_max_pool2d_backward")
def adaptive_max_backward(g: TensorType, x: TensorType, index: TensorType) -> TensorType:
    return formatted(x, x.sizes)


@rule("pixel_shuffle")
def pixel_shuffle(x: TensorType, r: int) -> TensorType:
    agree(mod(x.sizes[-3], r * r), 0, f"pixel_shuffle expects channels divisible by {r * r}, got {x}")
    return formatted(x, (*x.sizes[:-3], x.sizes[-3] // (r * r), x.sizes[-2] * r, x.sizes[-1] * r))


@rule("pixel_unshuffle")
def pixel_unshuffle(x: TensorType, r: int) -> TensorType:
    for n in x.sizes[-2:]:
        agree(mod(n, r), 0, f"pixel_unshuffle expects height and width divisible by {r}, got {x}")
    return formatted(x, (*x.sizes[:-3], x.sizes[-3] * (r * r), x.sizes[-2] // r, x.sizes[-1] // r))

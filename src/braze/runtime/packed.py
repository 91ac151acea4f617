"""Convolutions and linear layers over weights that stay: packed for oneDNN once, not at every call.

An object of these classes is a library call of a frozen program (``backends.freeze``).  It keeps the packed weight with
the batch norm that follows folded in, and makes it anew when the sizes of its input or the version counter of any of
its weights change: in-place updates are seen, writes through ``.data`` are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_mkldnn = torch.ops.mkldnn
_reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight


def available() -> bool:
    """Whether this torch has oneDNN's fused operators."""
    ops = ("_convolution_pointwise", "_linear_pointwise", "_reorder_linear_weight")
    return bool(torch._C._has_mkldnn) and all(hasattr(_mkldnn, op) for op in ops)


def _stamp(x: torch.Tensor, weights: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    versions = tuple([None if w is None else (id(w), 0 if w.is_inference() else w._version) for w in weights])
    return (x.shape, versions)


class PackedConv:
    """``conv(x, w) [+ bias] [batch norm] [+ other] [activation]``; ``eps`` is the batch norm's, None without one;
    ``after`` the activation by oneDNN's name, with its numbers."""

    __name__ = "packed_conv"

    def __init__(
        self, stride: Any, padding: Any, dilation: Any, groups: int, eps: float | None, after: tuple[str, list[Any]]
    ) -> None:
        self.where = (list(padding), list(stride), list(dilation), groups)
        self.eps, self.after = eps, after
        self.stamp: tuple[Any, ...] = ()
        self.kept: Any = None  # the weights that the stamp names, so that their ids stay theirs
        self.weight: Any = None
        self.bias: torch.Tensor | None = None

    def __call__(
        self,
        x: torch.Tensor,
        other: torch.Tensor | None,
        w: torch.Tensor,
        b: torch.Tensor | None,
        *norm: torch.Tensor | None,
    ) -> torch.Tensor:
        stamp = _stamp(x, (w, b, *norm))
        if stamp != self.stamp:
            self._pack(x, w, b, norm)
            self.stamp, self.kept = stamp, (w, b, norm)
        out: torch.Tensor
        kind, numbers = self.after
        if other is None:
            out = _mkldnn._convolution_pointwise(x, self.weight, self.bias, *self.where, kind, numbers, "")
        else:
            last = None if kind == "none" else kind
            out = _mkldnn._convolution_pointwise.binary(
                x, other, self.weight, self.bias, *self.where, "add", None, last, numbers, None
            )
        return out

    def _pack(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, norm: Sequence[Any]) -> None:
        if self.eps is not None:
            gamma, beta, mean, var = norm
            scale = torch.rsqrt(var.double() + self.eps)
            scale = scale if gamma is None else scale * gamma
            shift = -mean * scale if b is None else (b - mean) * scale
            w = (w * scale.reshape(-1, 1, 1, 1)).to(w.dtype)
            b = (shift if beta is None else shift + beta).to(w.dtype)
        w = w.detach().contiguous().to_mkldnn()
        self.weight = _reorder(w, *self.where, list(x.shape))
        self.bias = None if b is None else b.detach()


class PackedLinear:
    """``x @ w.T [+ bias]`` of a matrix x."""

    __name__ = "packed_linear"

    def __init__(self) -> None:
        self.stamp: tuple[Any, ...] = ()
        self.kept: Any = None
        self.weight: Any = None

    def __call__(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        stamp = _stamp(x, (w,))
        if stamp != self.stamp:
            self.weight = _mkldnn._reorder_linear_weight(w.detach().contiguous(), x.shape[0])
            self.stamp, self.kept = stamp, w
        out: torch.Tensor = _mkldnn._linear_pointwise(x, self.weight, b, "none", [], "")
        return out

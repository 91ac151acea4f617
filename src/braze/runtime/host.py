"""What generated host programs call, besides kernels and vendor operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

empty_strided = torch.empty_strided
as_strided = torch.as_strided
_RESOLVED = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
for _name in ("AutogradCPU", "AutogradCUDA", "AutogradOther", "AutocastCPU", "AutocastCUDA"):
    _RESOLVED = _RESOLVED | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))
below_autograd = partial(torch._C._ExcludeDispatchKeyGuard, _RESOLVED)
"""A context below autograd and autocast: the trace has resolved both, and the caller's autocast must not cast again."""


def restrided(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``t`` in a layout with these strides (a copy, unless only the strides of size-1 dims differ)."""
    if any(n == 0 for n in t.shape) or all(n == 1 or a == b for n, a, b in zip(t.shape, t.stride(), strides)):
        return t
    return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)


def reused(t: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The memory of ``t``, which is no longer needed, as a tensor of another shape or dtype."""
    if t.dtype != dtype:
        start = t.storage_offset() * t.itemsize // dtype.itemsize
        return torch.empty(0, dtype=dtype, device=t.device).set_(t.untyped_storage(), start, sizes, strides)
    return torch.as_strided(t, sizes, strides, t.storage_offset())


def efficient_attention_backward(*args: Any, **kwargs: Any) -> Any:
    """The vendor's call. It reads dropout's seed and offset as host memory, except while it is recorded; a recorded
    forward has left them on the device."""
    seed, offset, dropout = args[7:10]
    if dropout and seed.is_cuda and not torch.cuda.is_current_stream_capturing():
        args = (*args[:7], seed.cpu(), offset.cpu(), *args[9:])
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(*args, **kwargs)


def onednn_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` by oneDNN (``mm`` goes to the BLAS that torch was built with)."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), None, "none", [], "")
    return out


def onednn_addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``bias + a @ b`` for a vector, by oneDNN."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")
    return out


NAMES: dict[str, Any] = {
    "onednn_mm": onednn_mm,
    "onednn_addmm": onednn_addmm,
    "efficient_attention_backward": efficient_attention_backward,
    "empty_strided": empty_strided,
    "as_strided": as_strided,
    "restrided": restrided,
    "reused": reused,
    "below_autograd": below_autograd,
}
"""The global names of every host program."""

"""Tensors from nothing, or from the sizes of another. The result's type says all but the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.ir import Node, TensorType

from ..builder import Builder, is_tensor
from ..elementwise import ANY, FLOATS
from ..registry import decomposes, register


def _constant(value: Any) -> Callable[..., Node]:
    def row(b: Builder, *args: Any, **kwargs: Any) -> Node:
        return b.full_like(b.out, value)

    return row


register("zeros zeros_like new_zeros zero _efficientzerotensor", _constant(0))
register("ones ones_like new_ones", _constant(1))
# The values of an empty tensor are unspecified: zeros, which fold away.
register(
    "empty.memory_format empty_like empty_strided empty_permuted new_empty new_empty_strided",
    _constant(0),
    any_dtype=True,
)


@decomposes("full full_like new_full fill.Scalar")
def full(b: Builder, shape: Any, *args: Any, **kwargs: Any) -> Node:
    return b.full_like(b.out, kwargs["fill_value"] if "fill_value" in kwargs else args[-1])


@decomposes("fill.Tensor")
def fill_tensor(b: Builder, self: Node, value: Node) -> Node:
    if value.val.device != self.val.device:
        value = b.to_device(value, self.val.device)
    return b.expand(b.convert(value, self.val.dtype), self.val.sizes)


@decomposes("scalar_tensor")
def scalar_tensor(b: Builder, s: Any, **kwargs: Any) -> Node:
    return b.full_like(b.out, s)


def _exact(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What ATen steps ranges in: double for floats on the CPU, float on other devices."""
    return torch.float64 if dtype == torch.float64 or device.type == "cpu" else torch.float32


@decomposes("arange arange.start arange.start_step")
def arange(b: Builder, *args: Any, **kwargs: Any) -> Any:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else kwargs.get("step", 1))
    want: TensorType = b.out
    (n,) = want.sizes
    if want.dtype not in ANY:
        return NotImplemented
    if want.dtype not in FLOATS and not isinstance(start, float) and not isinstance(step, float):
        return b.iota(n, want.device, start, step)
    if want.dtype not in FLOATS:
        start, step = int(start), int(step)
        return b.iota(n, want.device, start, step)
    return _steps(b, want, start, step)


def _steps(b: Builder, want: TensorType, start: Any, step: Any) -> Any:
    (n,) = want.sizes
    if all(isinstance(v, int) or float(v).is_integer() for v in (start, step)) and isinstance(n, int):
        if abs(start) + abs(step) * n < 2**24:  # whole numbers: exact in any float
            return b.convert(b.iota(n, want.device, int(start), int(step)), want.dtype)
    i = b.convert(b.iota(n, want.device), _exact(want.dtype, want.device))
    return b.add(b.mul(i, step), start)


@decomposes("linspace")
def linspace(b: Builder, start: Any, end: Any, steps: int, **kwargs: Any) -> Any:
    want: TensorType = b.out
    if want.dtype not in FLOATS or is_tensor(start) or is_tensor(end):
        return NotImplemented
    if steps < 2:
        return b.full_like(want, start)
    d = torch.float64 if want.dtype == torch.float64 else torch.float32
    step = (end - start) / (steps - 1)
    at = b.iota(steps, want.device)
    up = b.add(b.mul(b.convert(at, d), step), start)
    down = b.sub(end, b.mul(b.convert(b.iota(steps, want.device, steps - 1, -1), d), step))
    return b.where(b.lt(at, steps // 2), up, down)


@decomposes("eye eye.m")
def eye(b: Builder, n: Any, m: Any = None, **kwargs: Any) -> Any:
    want: TensorType = b.out
    same = b.eq(b.iota_along(want, 0), b.iota_along(want, 1))
    return b.convert(b.expand(same, want.sizes), want.dtype)

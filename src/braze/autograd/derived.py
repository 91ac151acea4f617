"""Operators that only derivative and batching rules call: forward mode's zeros without memory, casts of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from ..fake import FakeTensor
from .record import Recorder, handles

aten = torch.ops.aten


@handles("_efficientzerotensor.default")
def _zeros(rec: Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """A tensor that has no memory, which only PyTorch's own kernels know: zeros that have."""
    val = out.val
    rec.define(out, rec.call(aten.full.default, list(val.sizes), 0, dtype=val.dtype, device=val.device))


@handles("_to_copy.default")
def _cast(rec: Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """A batching rule casts a number to what its other operand is."""
    if type(args[0]) is FakeTensor:
        rec.pure(op, args, kwargs, out)
    else:
        val = out.val
        rec.define(out, rec.call(aten.full.default, [], rec.lower(args[0]), dtype=val.dtype, device=val.device))

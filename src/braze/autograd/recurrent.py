"""oneDNN's LSTM layer, whose kernel keeps what its backward needs only under grad mode."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from ..prims.graded import graded
from .record import Recorder, handles


@handles("mkldnn_rnn_layer.default")
def _layer(rec: Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    lowered = [rec.lower(a) for a in args]
    val = [x.val for x in out]
    if torch.is_grad_enabled():
        rec.define(out, rec.emit(graded(op), tuple(lowered), {}, tuple(val)))
    else:
        rec.define(out[:3], rec.emit(op, tuple(lowered), {}, (*val[:3], None)))

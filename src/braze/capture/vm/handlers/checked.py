"""Functions that look at the values of a tensor only to refuse some: with the look as a call of the graph.

On the CPU alone: on a GPU eager itself does not look, or the look would make the program wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from braze.prims.require import require

from ..registry import HANDLERS
from ..values.base import NONE, Const, Value
from ..values.statics import FunctionValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer

Tensor = torch.Tensor


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """``torch.nn.functional.gaussian_nll_loss`` of a variance that is a tensor."""
    require((var >= 0).logical_or(var != var).all(), "ValueError", "var has negative entry/entries")
    if var.size() != input.size():
        if input.size()[:-1] == var.size():
            var = torch.unsqueeze(var, -1)
        elif input.ndim != var.ndim or sum(n for m, n in zip(input.size(), var.size()) if m != n) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(reduction + " is not valid")
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss: Tensor = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss += 0.5 * math.log(2 * math.pi)
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss


def one_hot(tensor: Tensor, num_classes: int) -> Tensor:
    """``torch.nn.functional.one_hot`` of int64 classes, whose number is given."""
    if tensor.numel():
        require((tensor >= 0).all(), "RuntimeError", "Class values must be non-negative.")
        require((tensor < num_classes).all(), "RuntimeError", "Class values must be smaller than num_classes.")
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).to(torch.int64)


def _cpu_variance(input: Value = NONE, target: Value = NONE, var: Value = NONE, *rest: Value, **options: Value) -> Any:
    return var


def _classes(self: Value = NONE, num_classes: Value = NONE) -> Any:
    known = isinstance(num_classes, Const) and type(num_classes.raw) is int and num_classes.raw > 0
    return self if known else None


def _stand_in(function: Any, plain: Any, looked_at: Callable[..., Any], dtypes: Any) -> None:
    """Inline ``plain`` for ``function`` where what it looks at is a tensor on the CPU of one of these dtypes."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            x = looked_at(*args, **kwargs)
        except TypeError:
            x = None
        if isinstance(x, TensorValue):
            fake = x.fake(vm)
            if fake.device.type == "cpu" and fake.dtype in dtypes:
                return vm.inline_function(FunctionValue(plain), args, kwargs)
        return vm.record(function, args, kwargs)

    HANDLERS[function] = handler


_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_stand_in(F.gaussian_nll_loss, gaussian_nll_loss, _cpu_variance, _FLOATS)
_stand_in(F.one_hot, one_hot, _classes, (torch.int64,))

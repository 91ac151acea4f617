"""Dtypes that operators refuse: a trace raises eager's error at the call, where the program may catch it.

Shape rules do not look at dtypes that make no sense. For the operators and kinds of dtypes below, which some device
refuses, one trial on a small tensor of ones tells, once for each set of types; its error is the program's.

    x - True    # x: f32[3]:  aten::sub with a bool operand is tried, and raises what eager raises
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from ..ir import TensorType

BOOL, INTEGER, FLOAT, COMPLEX = "bool", "integer", "float", "complex"
_NUMERIC = "floor_divide remainder fmod atan2 hypot logaddexp logaddexp2 nextafter copysign heaviside xlogy gcd lcm"
_ACTIVATIONS = "gelu silu leaky_relu softplus elu hardtanh hardsigmoid hardswish mish relu _softmax _log_softmax"
_ROUND = "floor ceil round trunc frac sign erf erfc lgamma digamma"
_STATISTICS = "mean var std var_mean std_mean linalg_vector_norm logcumsumexp"
_BITS = "bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__"
_SHIFTS = "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__"
_ORDERED = (
    "lt gt le ge maximum minimum fmin fmax amax amin max min argmax argmin sort median mode aminmax cummax cummin"
)
_TRIED: dict[str, str] = {
    BOOL: f"sub rsub neg abs pow argmax argmin median trace {_NUMERIC} {_ACTIVATIONS} {_ROUND} {_STATISTICS} {_SHIFTS}",
    INTEGER: f"hypot logaddexp logaddexp2 nextafter frac {_ACTIVATIONS} {_STATISTICS}",
    FLOAT: f"gcd lcm {_BITS} {_SHIFTS}",
    COMPLEX: f"{_NUMERIC} {_ACTIVATIONS} {_ROUND} {_BITS} {_SHIFTS} {_ORDERED} clamp",
}
_KINDS: dict[str, frozenset[str]] = {}
for _kind, _names in _TRIED.items():
    for _name in _names.split():
        _KINDS[_name] = _KINDS.get(_name, frozenset()) | {_kind}

_NUMBERS = {bool: BOOL, float: FLOAT, complex: COMPLEX}


def trial_of(op: OpOverload) -> Callable[[Any, Any], None] | None:
    """``trial(args, kwargs)`` for an operator of the table, given types for tensors; None for any other.

    It raises what the operator raises for the dtypes of its operands.
    """
    namespace, _, name = op._schema.name.partition("::")
    kinds = _KINDS.get(name) or _KINDS.get(name.rstrip("_"))
    if namespace != "aten" or kinds is None or any(a.kwarg_only and a.is_out for a in op._schema.arguments):
        return None

    operands = [i for i, a in enumerate(op._schema.arguments) if str(a.type) in ("Tensor", "number")]

    def trial(args: Any, kwargs: Any) -> None:
        if any(i < len(args) and _kind_of(args[i]) in kinds for i in operands):
            op(*map(_small, args), **{k: _small(v) for k, v in kwargs.items()})

    return trial


def _kind_of(a: Any) -> str:
    if isinstance(a, TensorType):
        dtype = a.dtype
        if dtype is torch.bool or dtype.is_complex or dtype.is_floating_point:
            return BOOL if dtype is torch.bool else COMPLEX if dtype.is_complex else FLOAT
        return INTEGER
    return _NUMBERS.get(type(a), "")


def _small(a: Any) -> Any:
    """A tensor of ones for a type, its dims cut to 2."""
    if not isinstance(a, TensorType):
        return a
    sizes = [n if type(n) is int and n < 2 else 2 for n in a.sizes]
    return torch.ones(sizes, dtype=a.dtype, device=a.device if a.device.type != "meta" and _there(a.device) else "cpu")


def _there(device: torch.device) -> bool:
    return device.type == "cpu" or device.type == "cuda" and torch.cuda.is_available()

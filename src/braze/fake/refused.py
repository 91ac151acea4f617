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

_INDICES = (torch.int64, torch.int32, torch.bool, torch.uint8)
_WIDE, _MASK, _LONG = (torch.int64, torch.int32), (torch.bool,), (torch.int64,)
# operands that take few dtypes: (names of the arguments, the dtypes that need no trial)
_CHOOSY: dict[str, tuple[str, tuple[torch.dtype, ...]]] = {
    **dict.fromkeys("index _unsafe_index index_put _unsafe_index_put _index_put_impl".split(), ("indices", _INDICES)),
    **dict.fromkeys("embedding".split(), ("indices", _WIDE)),
    **dict.fromkeys("index_select gather scatter scatter_add scatter_reduce index_add".split(), ("index", _LONG)),
    **dict.fromkeys("index_fill index_copy index_reduce take put".split(), ("index", _LONG)),
    **dict.fromkeys("nll_loss_forward nll_loss2d_forward".split(), ("target", _LONG)),
    **dict.fromkeys("masked_fill masked_scatter".split(), ("mask", _MASK)),
    "where": ("condition", _MASK),
}

_NUMBERS = {bool: BOOL, float: FLOAT, complex: COMPLEX}


def trial_of(op: OpOverload) -> Callable[[Any, Any], None] | None:
    """``trial(args, kwargs)`` for an operator of the table, given types for tensors; None for any other.

    It raises what the operator raises for the dtypes of its operands.
    """
    namespace, _, name = op._schema.name.partition("::")
    kinds = _KINDS.get(name) or _KINDS.get(name.rstrip("_"))
    if namespace != "aten" or any(a.kwarg_only and a.is_out for a in op._schema.arguments):
        return None
    choosy = _CHOOSY.get(name) or _CHOOSY.get(name.rstrip("_"))
    if choosy is not None:
        return _choosy_trial(op, *choosy)
    if kinds is None:
        return None

    operands = [i for i, a in enumerate(op._schema.arguments) if str(a.type) in ("Tensor", "number")]

    def trial(args: Any, kwargs: Any) -> None:
        if any(i < len(args) and _kind_of(args[i]) in kinds for i in operands):
            op(*map(_small, args), **{k: _small(v) for k, v in kwargs.items()})

    return trial


def _choosy_trial(op: OpOverload, operand: str, fine: tuple[torch.dtype, ...]) -> Callable[[Any, Any], None] | None:
    """A trial where an index or a mask has an unusual dtype. Its items are 0, which is in range everywhere."""
    at = next((i for i, a in enumerate(op._schema.arguments) if a.name == operand), -1)
    if at < 0:
        return None

    def trial(args: Any, kwargs: Any) -> None:
        given = args[at] if at < len(args) else kwargs.get(operand)
        types = [t for t in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(t, TensorType)]
        if all(t.dtype in fine for t in types):
            return
        small = [_small(a) for a in args]
        if at < len(args):
            small[at] = [_zeros(t) for t in given] if isinstance(given, (list, tuple)) else _zeros(given)
        op(*small, **{k: _small(v) for k, v in kwargs.items()})

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


def _zeros(a: Any) -> Any:
    return torch.zeros_like(_small(a)) if isinstance(a, TensorType) else a


def _there(device: torch.device) -> bool:
    return device.type == "cpu" or device.type == "cuda" and torch.cuda.is_available()

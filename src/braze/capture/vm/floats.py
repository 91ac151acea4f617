"""Torch calls that are given a float of the graph (:class:`FloatValue`) where they take a number.

    x.mul_(lr)                    ->      x.mul_(lr_tensor)
    x.add_(g, alpha=-lr)          ->      x.add_(g * -lr_tensor)
    x.addcdiv_(m, d, value=-s)    ->      x.add_(m * -s_tensor / d)
    _foreach_…(xs, …)             ->      the same, tensor by tensor

A row gives None for a call that it does not know; then the float's value is compiled in, with a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .values.base import FALSE, NONE, Const, Value
from .values.floats import FloatValue, in_optimizer
from .values.sequences import SequenceValue, TupleValue
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from .tracer import Tracer

Args = list[Value]
Kwargs = dict[str, Value]
Row = Callable[["Tracer", Any, Args, Kwargs], "Value | None"]


def holds_float(v: Value, depth: int = 2) -> bool:
    """Whether an argument is, or holds, a float of the graph."""
    if isinstance(v, FloatValue):
        return v.pinned is None
    if depth and isinstance(v, SequenceValue) and v.source is None:
        return any(holds_float(x, depth - 1) for x in v._items or ())
    return False


def record_float(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value:
    """``vm.record`` of a call with floats of the graph among its arguments."""
    row = ROWS.get(getattr(target, "__name__", ""))
    if row is not None:
        out = row(vm, target, args, kwargs)
        if out is not None:
            return out
    pinned = [_pin(vm, a) for a in args]
    return vm.record(target, pinned, {k: _pin(vm, a) for k, a in kwargs.items()})


def _pin(vm: Tracer, v: Value) -> Value:
    if isinstance(v, FloatValue):
        return Const(v.as_const(vm))
    if isinstance(v, SequenceValue) and holds_float(v):
        return v.with_items([_pin(vm, x) for x in v.items(vm)])
    return v


def operand(vm: Tracer, f: Value, like: TensorValue) -> Value:
    """The float as a tensor operand beside ``like`` that does not change the result's dtype."""
    if not isinstance(f, FloatValue):
        return f
    if f.pinned is not None:
        return Const(f.pinned)
    t, fake = f.tensor(vm), like.fake(vm)
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        if fake.ndim:
            return t
        dtype = fake.dtype
    else:
        dtype = torch.get_default_dtype()
    return vm.record(torch.Tensor.to, [t, Const(dtype)], {})


def _tensors(*values: Value) -> list[TensorValue]:
    return [v for v in values if isinstance(v, TensorValue)]


def binary(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """``op(a, b)``, or ``a.add_(b, alpha=f)``."""
    if len(args) != 2 or set(kwargs) - {"alpha"} or not _tensors(*args):
        return None
    a, b = args
    alpha = kwargs.get("alpha")
    if alpha is not None:
        if not isinstance(b, TensorValue):
            return None
        return vm.record(target, [a, scaled(vm, b, alpha)], {})
    like = _tensors(a, b)[0]
    return vm.record(target, [operand(vm, a, like), operand(vm, b, like)], {})


def scaled(vm: Tracer, x: TensorValue, f: Value) -> Value:
    """``x * f``."""
    return vm.record(operator.mul, [x, operand(vm, f, x)], {})


def addcmul(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """``x + value * a * b`` and ``x + value * a / b``."""
    if len(args) != 3 or set(kwargs) != {"value"} or len(_tensors(*args)) != 3:
        return None
    x, a, b = args
    assert isinstance(a, TensorValue)
    by = operator.truediv if "div" in target.__name__ else operator.mul
    term = vm.record(by, [scaled(vm, a, kwargs["value"]), b], {})
    add = torch.Tensor.add_ if target.__name__.endswith("_") else torch.Tensor.add
    return vm.record(add, [x, term], {})


def lerp(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """``lerp(x, y, weight)``: the form with a tensor weight, which must have the tensors' dtype and device."""
    weight = kwargs.get("weight", args[2] if len(args) == 3 else NONE)
    if not isinstance(weight, FloatValue) or len(_tensors(*args[:2])) != 2:
        return None
    x = args[0]
    assert isinstance(x, TensorValue)
    fake = x.fake(vm)
    to: dict[str, Value] = {"dtype": Const(fake.dtype), "device": Const(fake.device)}
    return vm.record(target, [*args[:2], vm.record(torch.Tensor.to, [weight.tensor(vm)], to)], {})


def power(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
    return binary(vm, target, args, kwargs) if not kwargs else None


def foreach(name: str) -> Row:
    """The calls on lists, tensor by tensor."""
    inplace = name.endswith("_")
    method = getattr(torch.Tensor, name)
    single = ROWS[name]
    word = {"addcmul": "value", "addcdiv": "value", "lerp": "weight"}.get(name.rstrip("_"))

    def row(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
        if not args or not isinstance(args[0], SequenceValue):
            return None
        first = args[0].items(vm)
        columns = [a.items(vm) if isinstance(a, SequenceValue) else [a] * len(first) for a in args]
        named = {k: v.items(vm) if isinstance(v, SequenceValue) else [v] * len(first) for k, v in kwargs.items()}
        named = {word if k in ("scalars", "scalar") and word else k: v for k, v in named.items()}
        if any(len(c) != len(first) for c in [*columns, *named.values()]):
            return None
        outs: list[Value] = []
        for i in range(len(first)):
            mine = [c[i] for c in columns]
            keys = {k: v[i] for k, v in named.items()}
            if word == "value" and len(mine) == 4:
                keys["value"] = mine.pop()
            if "scalar" in keys:
                mine.append(keys.pop("scalar"))
            if "scalars" in keys:
                mine.append(keys.pop("scalars"))
            out = single(vm, method, mine, keys)
            if out is None:
                if i:
                    raise AssertionError(f"{name}: the tensors of one list differ")
                return None
            outs.append(out)
        return NONE if inplace else TupleValue(outs)

    return row


def fused(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """An optimizer's fused step: the overload that takes the rate as a tensor (float32 on a GPU, where it is read)."""
    lr = kwargs.get("lr")
    first = args[0].items(vm) if args and isinstance(args[0], SequenceValue) else []
    if not isinstance(lr, FloatValue) or not first or not isinstance(first[0], TensorValue):
        return None
    if any(holds_float(v) for k, v in kwargs.items() if k != "lr"):
        return None
    rate: Value = lr.tensor(vm)
    device = first[0].fake(vm).device
    if device.type != "cpu":
        rate = vm.record(torch.Tensor.to, [rate, Const(device), Const(torch.float32)], {})
    return vm.record(target, args, {**kwargs, "lr": rate})


def batch_norm(vm: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """Batch normalisation whose momentum is computed (a cumulative average): the batch's statistics come from a call on
    empty ones, and are mixed in by the float's tensor."""
    at = 3  # of the running mean
    if target is torch.nn.functional.batch_norm:
        names = "input running_mean running_var weight bias training momentum eps".split()
        given = {
            "weight": NONE,
            "bias": NONE,
            "training": FALSE,
            "eps": Const(1e-5),
            **dict(zip(names, args)),
            **kwargs,
        }
        args, kwargs, at = [given[n] for n in names], {}, 1
    if len(args) < 8 or kwargs or any(map(holds_float, (*args[:6], *args[7:]))):
        return None
    momentum, statistics = args[6], _tensors(*args[at : at + 2])
    if not args[5].truth(vm) or len(statistics) != 2:
        return vm.record(target, [*args[:6], Const(0.0), *args[7:]], {})
    fresh = _tensors(*[vm.record(torch.zeros_like, [v], {}) for v in statistics])
    out = vm.record(target, [*args[:at], *fresh, *args[at + 2 : 6], Const(1.0), *args[7:]], {})
    for kept, new in zip(statistics, fresh):
        old = scaled(vm, kept, vm.binary("-", Const(1.0), momentum))
        vm.record(torch.Tensor.copy_, [kept, vm.record(operator.add, [scaled(vm, new, momentum), old], {})], {})
    return out


_EXACT = frozenset("pow mul add sub truediv _foreach_pow _foreach_mul _foreach_add _foreach_sub _foreach_div".split())


def widened(vm: Tracer, target: Any, args: Args) -> Args:
    """The arguments of an optimizer's arithmetic, step counters as float64: what eager computes in Python's floats."""
    if getattr(target, "__name__", "") not in _EXACT or not in_optimizer(vm):
        return args
    return [_wide(vm, a) for a in args]


def _wide(vm: Tracer, v: Value) -> Value:
    if isinstance(v, SequenceValue):
        return v.with_items([_wide(vm, x) for x in v.items(vm)])
    if isinstance(v, TensorValue) and not v.fake(vm).ndim and v.fake(vm).dtype == torch.float32:
        return vm.record(torch.Tensor.double, [v], {})
    return v


_BINARY = """
add sub mul div add_ sub_ mul_ div_ iadd isub imul itruediv truediv truediv_ __add__ __radd__ __sub__ __rsub__ __mul__
__rmul__ __truediv__ __rtruediv__ __iadd__ __isub__ __imul__ __itruediv__ true_divide divide multiply subtract maximum
"""
ROWS: dict[str, Row] = {
    **dict.fromkeys(_BINARY.split(), binary),
    **dict.fromkeys("pow pow_ ipow __pow__ __rpow__ __ipow__".split(), power),
    **dict.fromkeys("addcmul addcmul_ addcdiv addcdiv_".split(), addcmul),
    **dict.fromkeys("lerp lerp_".split(), lerp),
    "batch_norm": batch_norm,
    **dict.fromkeys("_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_".split(), fused),
}
for _name in "add sub mul div pow addcmul addcdiv lerp".split():
    ROWS[f"_foreach_{_name}"] = foreach(_name)
    ROWS[f"_foreach_{_name}_"] = foreach(f"{_name}_")

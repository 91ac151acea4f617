"""Python floats that are inputs of the graph, or computed by it: 0-d float64 tensors inside, floats outside.

A learning rate that a scheduler changes, a temperature, or ``step.item()`` must not be compiled in. Such a float is a
:class:`FloatValue`; arithmetic on it is arithmetic of 0-d float64 tensors, which is Python's own (division by zero
gives an infinity instead of ZeroDivisionError). What only a number can do (a branch, a size) asks for its value: that
pins the inputs that it came from by guards, and breaks the graph where it came from a tensor.
"""

from __future__ import annotations

import math
import operator
import os
from typing import TYPE_CHECKING, Any

import torch

from ..signals import Restart, unsupported
from .base import Const, Value
from .tensor import TensorValue

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer

_OPTIM = os.path.join(os.path.dirname(torch.__file__), "optim") + os.sep


def in_optimizer(vm: Tracer) -> bool:
    """Whether the code at hand is torch.optim's."""
    return bool(vm.frames) and vm.frames[-1].code.code.co_filename.startswith(_OPTIM)


ARITHMETIC: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


TENSOR_FORMS: dict[Any, Any] = {math.sqrt: torch.sqrt}
EXTREMES: dict[Any, Any] = {max: operator.gt, min: operator.lt}
"""``max(a, b)`` is b where b > a, and a everywhere else (a NaN, too)."""


def is_symbolic(v: Value) -> bool:
    """A symbolic integer: not a constant, and yet a number."""
    return isinstance(v, Const) and not v.is_const()


class FloatValue(Value):
    """A float that the compiled code reads or computes in each call.

    ``source`` is where an existing one is read, ``raw`` its value now. One that is computed has ``function`` and
    ``args``; one that a tensor holds has neither. ``tensor`` is the 0-d float64 tensor of the graph, once needed.
    """

    __slots__ = ("raw", "function", "args", "_tensor", "pinned")

    def __init__(
        self,
        source: Source | None = None,
        raw: float | None = None,
        function: Any = None,
        args: tuple[Value, ...] = (),
        tensor: TensorValue | None = None,
    ) -> None:
        self.source, self.raw, self.function, self.args = source, raw, function, args
        self._tensor = tensor
        self.pinned: Any = None

    def __repr__(self) -> str:
        return f"FloatValue({self.source or self.args or self._tensor})"

    def pytype(self, vm: Tracer) -> type:
        vm.guards.type_(self.source, float)
        return float

    @property
    def known(self) -> bool:
        """Whether the value can be had while tracing, at the price of guards."""
        if self.function is not None:
            return all(a.known for a in self.args if isinstance(a, FloatValue))
        return self.source is not None

    def is_const(self) -> bool:
        return self.pinned is not None

    def as_const(self, vm: Tracer) -> Any:
        if self.pinned is None:
            if not self.known:
                if in_optimizer(vm) and not vm.plan.capturable:
                    vm.plan.capturable = True
                    raise Restart
                unsupported("a Python number from a tensor", "keep the value a tensor, or read it outside")
            if self.function is None:
                vm.guards.const(self.source, self.raw)
                self.pinned = self.raw
            else:
                self.pinned = vm.fold(self.function, [Const(a.as_const(vm)) for a in self.args]).as_const(vm)
        return self.pinned

    def key(self, vm: Tracer) -> Any:
        return self.as_const(vm)

    def truth(self, vm: Tracer) -> bool:
        return bool(self.compared(vm, operator.ne, 0.0))

    def compared(self, vm: Tracer, function: Any, other: float, swapped: bool = False) -> bool:
        """``function(self, other)``: of an input, only the outcome is guarded."""
        if self.function is not None or self.source is None or self.pinned is not None:
            value = self.as_const(vm)
            return bool(function(other, value) if swapped else function(value, other))
        outcome = bool(function(other, self.raw) if swapped else function(self.raw, other))
        vm.guards.type_(self.source, float)
        name = function.__name__
        text = f"{name}({other!r}, {{}})" if swapped else f"{name}({{}}, {other!r})"
        vm.guards.const(self.source.call(_comparison(function, other, swapped), text), outcome)
        return outcome

    # -- arithmetic ----
    def combine(self, vm: Tracer, op: str, a: Value, b: Value) -> Value | None:
        """``a op b`` of floats and numbers, one of which is this; None where the graph cannot do it."""
        function = ARITHMETIC.get(op.removesuffix("=") if op != "**=" else "**")
        if function is None:
            return None
        for x in (a, b):
            if isinstance(x, Const) and type(x.raw) in (int, float):
                x.as_const(vm)
            elif not isinstance(x, FloatValue) and not is_symbolic(x):
                return None
        if all(x.is_const() for x in (a, b)):
            return None
        return FloatValue(function=function, args=(a, b))

    def tensor(self, vm: Tracer) -> TensorValue:
        """The 0-d float64 tensor that holds the value in the graph."""
        if self._tensor is None:
            if self.function is None:
                self._tensor = vm.add_float(self)
            else:
                args = [self._operand(vm, a) for a in self.args]
                if self.function in EXTREMES:
                    beyond = vm.record(EXTREMES[self.function], args[::-1], {})
                    out = vm.record(torch.where, [beyond, *args[::-1]], {})
                else:
                    out = vm.record(TENSOR_FORMS.get(self.function, self.function), args, {})
                assert isinstance(out, TensorValue)
                self._tensor = out
        return self._tensor

    def _operand(self, vm: Tracer, a: Value) -> Value:
        if isinstance(a, FloatValue):
            return a.tensor(vm)
        if is_symbolic(a):
            return vm.record(torch.full, [vm.new_tuple([]), a], {"dtype": Const(torch.float64)})
        return Const(float(a.as_const(vm)))

    # -- leaving ----
    def parts(self, vm: Tracer) -> list[Value]:
        if self.pinned is not None or self.source is not None:
            return []
        return list(self.args) if self.function is not None else [self.tensor(vm)]

    def rebuild(self, rb: Rebuilder) -> None:
        if self.pinned is not None:
            rb.load_const(self.pinned)
        elif self.function is not None:
            rb.call(self.function, list(self.args))
        else:
            rb.call(torch.Tensor.item, [self.tensor(rb.vm)])


_COMPARISONS: dict[Any, Any] = {}


def _comparison(function: Any, other: float, swapped: bool) -> Any:
    """One function object for each question, so that guards on it are one."""
    key = (function, repr(other), swapped)
    if key not in _COMPARISONS:
        _COMPARISONS[key] = (lambda v: function(other, v)) if swapped else (lambda v: function(v, other))
    return _COMPARISONS[key]

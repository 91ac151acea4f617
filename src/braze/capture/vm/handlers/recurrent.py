"""One step of a recurrent network, written out where sizes are symbolic: its C++ asks for every size as a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from braze.ir import Expr

from ..registry import HANDLERS
from ..values.base import NONE, Const, Value
from ..values.sequences import TupleValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer


def _symbolic(vm: Tracer, args: list[Value]) -> bool:
    found: list[Value] = []
    for a in args:
        found += a.items(vm) if isinstance(a, TupleValue) else [a]
    return any(isinstance(n, Expr) for v in found if isinstance(v, TensorValue) for n in v.fake(vm).val.sizes)


class _Step:
    """Shorthands to record calls."""

    def __init__(self, vm: Tracer) -> None:
        self.vm = vm

    def call(self, function: Any, *args: Value) -> Value:
        return self.vm.record(function, list(args), {})

    def gates(self, x: Value, weight: Value, bias: Value, n: int) -> list[Value]:
        return self.vm.unpack(self.call(torch.chunk, self.call(F.linear, x, weight, bias), Const(n), Const(1)))


def _gru(s: _Step, x: Value, h: Value, wi: Value, wh: Value, bi: Value, bh: Value) -> Value:
    i, g = s.gates(x, wi, bi, 3), s.gates(h, wh, bh, 3)
    reset = s.call(torch.sigmoid, s.call(torch.add, g[0], i[0]))
    update = s.call(torch.sigmoid, s.call(torch.add, g[1], i[1]))
    new = s.call(torch.tanh, s.call(torch.add, i[2], s.call(torch.mul, g[2], reset)))
    return s.call(torch.add, s.call(torch.mul, s.call(torch.sub, h, new), update), new)


def _lstm(s: _Step, x: Value, state: Value, wi: Value, wh: Value, bi: Value, bh: Value) -> Value:
    h, c = s.vm.unpack(state)
    both = s.call(torch.add, s.call(F.linear, h, wh, bh), s.call(F.linear, x, wi, bi))
    i, f, g, o = s.vm.unpack(s.call(torch.chunk, both, Const(4), Const(1)))
    kept = s.call(torch.mul, s.call(torch.sigmoid, f), c)
    new = s.call(torch.add, kept, s.call(torch.mul, s.call(torch.sigmoid, i), s.call(torch.tanh, g)))
    return TupleValue([s.call(torch.mul, s.call(torch.sigmoid, o), s.call(torch.tanh, new)), new])


def _simple(act: Any) -> Any:
    def step(s: _Step, x: Value, h: Value, wi: Value, wh: Value, bi: Value, bh: Value) -> Value:
        return s.call(act, s.call(torch.add, s.call(F.linear, h, wh, bh), s.call(F.linear, x, wi, bi)))

    return step


def _register(function: Any, step: Any) -> None:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or len(args) < 4 or not _symbolic(vm, args):
            return vm.record(function, args, kwargs)
        out: Value = step(_Step(vm), *args, *[NONE] * (6 - len(args)))
        return out

    HANDLERS[function] = handler


_register(torch.gru_cell, _gru)
_register(torch.lstm_cell, _lstm)
_register(torch.rnn_tanh_cell, _simple(torch.tanh))
_register(torch.rnn_relu_cell, _simple(torch.relu))

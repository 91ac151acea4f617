"""``GradScaler.step``: an update that is skipped where a gradient overflowed, without a branch on a tensor.

In eager the scaler reads ``found_inf`` and calls the optimizer or not. Here the optimizer's step is always in the
graph, and each tensor that it writes becomes ``torch.where(found_inf, what it was, what it is)``, which costs nothing
once the kernels are fused. A step that changes anything else than tensors (one that makes its state) breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp import GradScaler

from ..registry import handles
from ..signals import unsupported
from ..values.base import NONE, Const, Value
from ..values.mappings import DictValue
from ..values.tensor import TensorValue
from .gradients import no_grad

if TYPE_CHECKING:
    from ..tracer import Tracer

_HINT = "call scaler.step(optimizer) outside of the compiled function"


@handles(GradScaler._maybe_opt_step)
def maybe_step(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``_maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs)``."""
    _, optimizer, state, *rest = args
    if rest or kwargs:
        unsupported("GradScaler.step() with arguments for the optimizer's step", _HINT)
    found = vm.unpack(state.get_item(vm, Const("found_inf_per_device")).get_attr(vm, "values").call(vm, [], {}))
    before = {v: v.fake(vm)._version for v in vm.by_fake.values()}
    start = len(vm.graph.nodes)
    with vm.effects.watched() as touched:
        out = optimizer.get_attr(vm, "step").call(vm, [], {})
    if not vm.is_none(out) or not all(_as_before(vm, v, known) for v, known in touched.items()):
        unsupported("an optimizer's step under a GradScaler that makes or changes more than tensors", _HINT)
    old = set(vm.graph.nodes[:start])
    written = [v for v in vm.by_fake.values() if v.fake(vm)._version != before.get(v, 0)]
    written = [v for v in written if v.source is not None or v.node(vm) in old]
    skip = _any_of(vm, found)
    for v in written:
        if v.fake(vm).device != skip.fake(vm).device:
            unsupported("GradScaler.step() of an optimizer that keeps tensors on another device", _HINT)
        with no_grad(vm):
            kept = vm.record(torch.where, [skip, _value_before(vm, v, start), v], {})
            vm.record(torch.Tensor.copy_, [v, kept], {})
    return NONE


def _any_of(vm: Tracer, found: list[Value]) -> TensorValue:
    """Whether any of these is not zero: a bool tensor."""
    flags = [vm.record(torch.ne, [f, Const(0)], {}) for f in found]
    for other in flags[1:]:
        flags[0] = vm.record(torch.logical_or, [flags[0], other], {})
    if not flags or not isinstance(flags[0], TensorValue):
        unsupported("GradScaler.step() without gradients", _HINT)
    return flags[0]


def _as_before(vm: Tracer, v: Value, known: dict[Any, Value]) -> bool:
    """Whether a written dict holds what it held: counters are stored again after ``+= 1``, flags are set that were."""
    if not isinstance(v, DictValue) or v.raw is None or v.deleted:
        return False
    for k, new in v.known.items():
        old = known.get(k)
        if new is old or k not in v.written:
            continue
        if old is None and isinstance(k, str) and k in v.raw and new.is_const():
            old = vm.wrap(v.raw[k], v.child(k))
        if old is None or not (old.is_const() and new.is_const()):
            return False
        if type(old.as_const(vm)) is not type(new.as_const(vm)) or old.as_const(vm) != new.as_const(vm):
            return False
    return True


def _value_before(vm: Tracer, v: TensorValue, start: int) -> TensorValue:
    """A copy of a tensor, put into the graph before the step (at node ``start``), or where it becomes an input."""
    nodes = vm.graph.nodes
    n, node = len(nodes), v.node(vm)
    out = vm.record(torch.Tensor.clone, [vm.record(torch.Tensor.detach, [v], {})], {})
    new = nodes[n:]
    del nodes[n:]
    at = max(start, nodes.index(node) + 1)
    nodes[at:at] = new
    assert isinstance(out, TensorValue)
    return out

"""Numbers of tensors that were made from constants and sizes alone: computed while tracing.

n = torch.div(x.size(1), 2, rounding_mode="trunc")    # x: f32[4, 8]
x.view(4, n, 2)                                       # n is 4: no need of data
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from braze.ir import Expr, Node, TensorType

from .values.base import Const, Value
from .values.sequences import SequenceValue
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from .tracer import Tracer

_SMALL = 64  # items of the tensors on the way
_DEEP = 32  # calls on the way
_METHODS = (
    "__add__ __radd__ add __sub__ __rsub__ sub __mul__ __rmul__ mul __truediv__ __rtruediv__ div __floordiv__ "
    "__rfloordiv__ floor_divide __mod__ remainder fmod __neg__ neg abs __abs__ __pow__ __rpow__ pow ceil floor round "
    "trunc sqrt rsqrt log log2 log10 exp long int float double half bool to type clone detach contiguous reshape view "
    "squeeze unsqueeze flatten __getitem__ sum prod max min maximum minimum amax amin mean cumsum clamp clip "
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ eq ne lt le gt ge logical_not logical_and logical_or any all numel "
    "unbind select flip sort argmax argmin __and__ __or__ __xor__ __invert__ __lshift__ __rshift__"
).split()
_FUNCTIONS = "tensor as_tensor scalar_tensor full zeros ones arange div stack cat broadcast_to where".split()
PURE: frozenset[Any] = frozenset(
    f
    for owner, names in ((torch.Tensor, _METHODS), (torch, [*_METHODS, *_FUNCTIONS]))
    for name in names
    if (f := getattr(owner, name, None)) is not None
)


def known_tensor(vm: Tracer, t: TensorValue) -> torch.Tensor | None:
    """The real tensor, where nothing but constants and sizes (which guards then fix) went into it."""
    if t._node is None or t.source is not None or t.fake(vm).requires_grad:
        return None
    wanted = _ancestors(t._node)
    if wanted is None:
        return None
    versions = {id(v._node): v._fake for v in vm.by_fake.values() if v._fake is not None}
    if any(fake is not None and fake._version for node in wanted if (fake := versions.get(id(node))) is not None):
        return None  # written in place
    with _disable_current_modes(), torch.no_grad():
        real: torch.Tensor = _evaluate(vm, t._node, {})
        return real


def known_number(vm: Tracer, t: TensorValue) -> Const | None:
    """The number in a tensor of one element, where it is known."""
    if any(n != 1 for n in t.fake(vm).shape):
        return None
    real = known_tensor(vm, t)
    if real is None:
        return None
    with _disable_current_modes():
        return Const(real.item())


def with_numbers(vm: Tracer, v: Value) -> Value:
    """An argument, with the integer tensors of known value in it (sizes given by tensors) as numbers."""
    if isinstance(v, TensorValue) and not v.fake(vm).dtype.is_floating_point and not v.fake(vm).shape:
        return known_number(vm, v) or v
    if isinstance(v, SequenceValue):
        items = v.items(vm)
        new = [with_numbers(vm, x) for x in items]
        if any(a is not b for a, b in zip(items, new)):
            return vm.new_tuple(new)
    return v


def _ancestors(node: Node) -> list[Node] | None:
    seen: dict[Node, None] = {}
    todo = [node]
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        if n.op != "call" or not _pure(n.target) or not _little(n.val) or len(seen) == _DEEP:
            return None
        seen[n] = None
        todo += _nodes((n.args, tuple(n.kwargs.values())))
    return list(seen)


def _pure(target: Any) -> bool:
    try:
        return target in PURE or getattr(target, "__module__", None) == "_operator"
    except TypeError:
        return False


def _little(val: Any) -> bool:
    if isinstance(val, (tuple, list)):
        return all(map(_little, val))
    if not isinstance(val, TensorType) or val.device.type != "cpu":
        return False
    n = 1
    for size in val.sizes:
        if isinstance(size, Expr):
            return False
        n *= size
    return n <= _SMALL


def _nodes(a: Any) -> Iterator[Node]:
    if isinstance(a, Node):
        yield a
    elif isinstance(a, (tuple, list)):
        for x in a:
            yield from _nodes(x)


def _evaluate(vm: Tracer, a: Any, known: dict[Node, Any]) -> Any:
    if isinstance(a, Node):
        if a not in known:
            args = [_evaluate(vm, x, known) for x in a.args]
            known[a] = a.target(*args, **{k: _evaluate(vm, x, known) for k, x in a.kwargs.items()})
        return known[a]
    if isinstance(a, Expr):
        return vm.sizes.number(a)
    if isinstance(a, (tuple, list)):
        return type(a)([_evaluate(vm, x, known) for x in a])
    return a

"""Numbers of tensors that were made from constants and sizes alone: computed while tracing.

n = torch.div(x.size(1), 2, rounding_mode="trunc")    # x: f32[4, 8]
x.view(4, n, 2)                                       # n is 4: no need of data
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from braze.capture.sizes import LIMIT
from braze.ir import Expr, Node, TensorType, leaves

from .values.base import Const, Value
from .values.sequences import SequenceValue, SliceValue
from .values.symbolic import value_of
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from braze.capture.source import Source

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


def input_number(vm: Tracer, t: TensorValue) -> Value | None:
    """The integer in a tensor of one element that follows from one small input alone: a symbol, read before the graph.

    x[:lengths.max()]    # lengths: i64[32]; the graph has a size n0 that is read from it before each call

    None for others, after a write to an input, and where an earlier capture of the frame needed the number itself.
    """
    if t.fake(vm).dtype not in _INTEGERS or t._node is None:
        return None
    found = vm.numbers.get(t._node)
    read = _reader(vm, t, "the number")
    if read is None:
        return None
    if found is None:
        source, raw = read
        found = vm.sizes.number_read(source, LIMIT if raw is None else int(raw))
        if found is None:
            return None
        vm.numbers[t._node] = found
    return value_of(vm, found)


def input_truth(vm: Tracer, t: TensorValue) -> bool | None:
    """Whether a tensor of one element that follows from one small input alone is true, with a guard on the outcome.

    None for others, and where the outcomes of several branches have changed: the frame breaks there.
    """
    read = _reader(vm, t, "the outcome")
    if read is None or read[1] is None:
        return None
    source, outcome = read[0].call(bool, "{}"), bool(read[1])
    if not vm.sizes.policy.outcome(source.name(), outcome):
        return None
    vm.guards.const(source, outcome)
    return outcome


def _reader(vm: Tracer, t: TensorValue, what: str) -> tuple[Source, Any] | None:
    """Where the number in a tensor of one element is read from an input, and its value now (None: it cannot be)."""
    if any(n != 1 for n in t.fake(vm).shape) or vm.sizes.policy.dynamic is False or vm.sizes.settled:
        return None
    given = [v for v in vm.inputs if isinstance(v, TensorValue) and _readable(v)]
    inputs = {v._node: v for v in given if v._node is not None}
    assert t._node is not None
    wanted = _ancestors(t._node, inputs)
    read_from = [n for n in wanted or () if n in inputs]
    if wanted is None or len(read_from) != 1 or _written(vm, wanted, inputs[read_from[0]]):
        return None
    (leaf,) = read_from
    text = "{}.item()" if leaf is t._node else f"{what} {t._node.name} of {{}}"
    where, read = inputs[leaf].source, Reader(t._node, leaf)
    assert where is not None
    with _disable_current_modes():
        return where.call(read, text), read(inputs[leaf].raw)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_READ = 1 << 16  # items of the tensors that are computed before the graph


def _readable(v: TensorValue) -> bool:
    raw = v.raw
    if raw is None or v.source is None or type(raw) is not torch.Tensor or raw.device.type != "cpu":
        return False
    return raw.dtype in (*_INTEGERS, torch.bool) and raw.numel() <= _READ


def _written(vm: Tracer, wanted: list[Node], leaf: TensorValue) -> bool:
    """Whether the trace has written to one of the tensors, or to memory that ``leaf`` lies in. (Else: guarded.)"""
    nodes, apart = set(wanted), []
    for v in vm.by_fake.values():
        if v._fake is None or not v._fake._version:
            continue
        if v._node in nodes or v.data_of is not None:
            return True
        if v.source is not None:
            if v.raw is None or _memory(v.raw) == _memory(leaf.raw):
                return True
            apart.append(v.source)
    for source in apart:
        vm.guards.apart(source, leaf.source, _memory)
    return False


def _memory(t: Any) -> int:
    return t.untyped_storage().data_ptr()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Reader:
    """Computes the number at ``node`` of a graph from the tensor at ``leaf``; None where that cannot be."""

    node: Node
    leaf: Node

    def __call__(self, value: Any) -> Any:
        try:
            return (value if self.node is self.leaf else _compute(self.node, {self.leaf: value})).item()
        except Exception:
            return None


def _compute(a: Any, known: dict[Node, Any]) -> Any:
    if isinstance(a, Node):
        if a not in known:
            args = [_compute(x, known) for x in a.args]
            known[a] = a.target(*args, **{k: _compute(x, known) for k, x in a.kwargs.items()})
        return known[a]
    return type(a)([_compute(x, known) for x in a]) if isinstance(a, (tuple, list)) else a


def with_numbers(vm: Tracer, v: Value) -> Value:
    """An argument, with the integer tensors of known value in it (indices, sizes given by tensors) as numbers."""
    if isinstance(v, TensorValue) and not v.fake(vm).dtype.is_floating_point and not v.fake(vm).shape:
        return known_number(vm, v) or input_number(vm, v) or v
    if isinstance(v, SliceValue):
        parts = (v.start, v.stop, v.step)
        made = [with_numbers(vm, x) for x in parts]
        return SliceValue(*made) if any(a is not b for a, b in zip(parts, made)) else v
    if isinstance(v, SequenceValue):
        items = v.items(vm)
        new = [with_numbers(vm, x) for x in items]
        if any(a is not b for a, b in zip(items, new)):
            return vm.new_tuple(new)
    return v


def _ancestors(node: Node, inputs: Container[Node] = ()) -> list[Node] | None:
    """The calls that a value comes from, if all are pure and small and none but ``inputs`` is an input of the graph."""
    seen: dict[Node, None] = {}
    room = _READ if inputs else _SMALL
    todo = [node]
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        if not _little(n.val, room) or len(seen) == _DEEP:
            return None
        if n in inputs:
            seen[n] = None
            continue
        if (
            n.op != "call"
            or not _pure(n.target)
            or inputs
            and any(isinstance(x, Expr) for x in leaves((n.args, n.kwargs)))
        ):
            return None
        seen[n] = None
        todo += _nodes((n.args, tuple(n.kwargs.values())))
    return list(seen)


def _pure(target: Any) -> bool:
    try:
        return target in PURE or getattr(target, "__module__", None) == "_operator"
    except TypeError:
        return False


def _little(val: Any, room: int) -> bool:
    if isinstance(val, (tuple, list)):
        return all(_little(x, room) for x in val)
    if not isinstance(val, TensorType) or val.device.type != "cpu":
        return False
    n = 1
    for size in val.sizes:
        if not isinstance(size, Expr):
            n *= size
        elif room == _SMALL:
            return False
    return n <= room


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

"""Tensors: a node of the graph and a fake tensor that knows its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.fake import FakeTensor
from braze.ir import Node

from ..signals import unsupported
from .base import NONE, Const, Value

if TYPE_CHECKING:
    from braze.capture.source import Source

    from ..rebuild import Rebuilder
    from ..tracer import Tracer

_BRANCH = "compute both sides and select with torch.where, or move the decision out of the compiled function"
_VALIDATED = "make the distribution with validate_args=False, or check its arguments outside of the compiled function"


class TensorValue(Value):
    """A tensor. An existing one becomes a graph input when it is first used; then ``node`` and ``fake`` are set.

    ``grad`` is its ``.grad`` as the trace has it (None: not looked at yet), ``grad_before`` what it was at the start;
    ``sets_requires_grad`` what an existing tensor's flag becomes; ``retains`` says that ``retain_grad()`` was called;
    ``data_of`` is the tensor whose ``.data`` this is; ``sets_data`` what the ``.data`` of an existing tensor becomes
    where the trace ends, before which nothing may look at the tensor again.
    """

    __slots__ = (
        "_node", "_fake", "raw", "cls", "grad", "grad_before", "sets_requires_grad", "sets_data", "retains", "data_of",
    )  # fmt: skip

    def __init__(
        self,
        node: Node | None,
        fake: FakeTensor | None,
        cls: type = torch.Tensor,
        raw: torch.Tensor | None = None,
        source: Source | None = None,
    ) -> None:
        self.source = source
        self._node, self._fake, self.cls, self.raw = node, fake, cls, raw
        self.grad: Value | None = None
        self.grad_before: Value | None = None
        self.sets_requires_grad: Value | None = None
        self.retains = False
        self.data_of: TensorValue | None = None
        self.sets_data: Value | None = None

    def __repr__(self) -> str:
        return f"TensorValue({self._node or self.source})"

    def holds_tensor(self) -> bool:
        return True

    def node(self, vm: Tracer) -> Node:
        if self._node is None:
            vm.add_input(self)
            assert self._node is not None
        if self._node in vm.enclosed:
            unsupported("a tensor that leaves a transform of torch.func by another way than its results")
        return self._node

    def fake(self, vm: Tracer) -> FakeTensor:
        if self._fake is None:
            vm.add_input(self)
            assert self._fake is not None
        return self._fake

    def pytype(self, vm: Tracer) -> type:
        if self._node is None:
            vm.guards.type_(self.source, self.cls)
        return self.cls

    def truth(self, vm: Tracer) -> bool:
        known = vm.known_number(self)
        if known is not None:
            return bool(known.raw)
        outcome = vm.input_truth(self)
        if outcome is not None:
            return outcome
        file = vm.frames[-1].code.code.co_filename.replace("\\", "/") if vm.frames else ""
        checks = "/torch/distributions/" in file
        unsupported("a branch on the value of a tensor", _VALIDATED if checks else _BRANCH)

    def get_attr(self, vm: Tracer, name: str) -> Value:
        return vm.tensor_get(self, name)

    def set_attr(self, vm: Tracer, name: str, value: Value) -> None:
        vm.tensor_set(self, name, value)

    def get_item(self, vm: Tracer, key: Value) -> Value:
        return vm.tensor_item(self, key)

    def set_item(self, vm: Tracer, key: Value, value: Value) -> None:
        vm.set_tensor_item(self, key, value)

    def first_size(self, vm: Tracer) -> Value:
        """``len(tensor)``."""
        shape = self.fake(vm).shape
        if not shape:
            vm.raise_(TypeError, "len() of a 0-d tensor")
        return vm.wrap(shape[0], None)

    def length(self, vm: Tracer) -> int:
        return int(self.first_size(vm).as_const(vm))

    def contains(self, vm: Tracer, item: Value) -> bool:
        return vm.record(torch.Tensor.__contains__, [self, item], {}).truth(vm)

    def iterate(self, vm: Tracer) -> Value:
        if not self.fake(vm).shape:
            vm.raise_(TypeError, "iteration over a 0-d tensor")
        return vm.record(torch.Tensor.unbind, [self, Const(0)], {}).iterate(vm)

    def key(self, vm: Tracer) -> Any:
        return self

    def del_attr(self, vm: Tracer, name: str) -> None:
        if name == "grad":
            vm.tensor_set(self, name, NONE)
        else:
            unsupported(f"deleting the attribute {name!r} of a tensor")

    @property
    def changed(self) -> bool:
        """Whether attributes of an existing tensor differ from before."""
        return self.grad is not self.grad_before or self.sets_requires_grad is not None or self.sets_data is not None

    def parts(self, vm: Tracer) -> list[Value]:
        data = [self.sets_data] if self.sets_data is not None else []
        if self.grad is None or self.source is not None and self.grad is self.grad_before:
            return data
        return [*data, self.grad]

    def rebuild(self, rb: Rebuilder) -> None:
        if self.grad is None or self.grad is NONE:
            rb.load_output(self)
        else:
            rb.remember(self, lambda: rb.load_output(self))
            rb.later(lambda: rb.store_attr(self, "grad", self.grad))

    def replay(self, rb: Rebuilder) -> None:
        if self.sets_data is not None:
            rb.store_attr(self, "data", self.sets_data)
        if self.sets_requires_grad is not None:
            rb.store_attr(self, "requires_grad", self.sets_requires_grad)
        if self.grad is not self.grad_before:
            rb.store_attr(self, "grad", self.grad)

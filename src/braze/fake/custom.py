"""User operators: the shape rule is the fake implementation that was registered (``torch.library.register_fake``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.fake_impl import set_ctx_getter
from torch._library.simple_registry import singleton
from torch._ops import OpOverload

from ..ir import TensorType, map_leaves
from .registry import DataDependent, Rule
from .tensor import FakeTensor, fake_from

Run = Callable[[Callable[[], Any]], Any]  # calls its argument under a mode that records nothing


def declared_rule(op: OpOverload, run: Run) -> Rule | None:
    """The registered fake implementation as a rule, or None. The implementation runs on tracing tensors.

    One that asks for a size that depends on data (``torch.library.get_ctx``) raises DataDependent.
    """
    name: str = op._schema.name
    if name.startswith(("aten::", "prims::")):
        return None
    entry = singleton._data.get(name) or singleton._data.get(f"{name}.{op._overloadname}")
    kernel = entry.fake_impl.kernel if entry is not None else None
    if kernel is None:
        return None

    def no_context() -> Any:
        raise DataDependent(f"{op} gives a size that depends on the values of a tensor")

    def rule(*args: Any, **kwargs: Any) -> Any:
        fakes = map_leaves((list(args), kwargs), lambda x: fake_from(x) if isinstance(x, TensorType) else x)
        with torch.no_grad(), set_ctx_getter(no_context):
            out = run(lambda: kernel(*fakes[0], **fakes[1]))
        out = list(out) if isinstance(out, tuple) else out
        return map_leaves(out, lambda x: x.val.with_(requires_grad=False) if isinstance(x, FakeTensor) else x)

    return rule

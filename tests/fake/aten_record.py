"""Record the ATen calls of eager code, on real tensors and on tracing ones, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze import ir
from braze.fake import FakeMode, FakeTensor, fake_like

Call = tuple[str, tuple[str, ...]]


def describe(x: Any, device: Any = None) -> str:
    """dtype, sizes, strides (those that matter), offset and device of a tensor; other values as they are."""
    if not isinstance(x, torch.Tensor):
        return repr(x)
    t = x.val if isinstance(x, FakeTensor) else ir.type_of(x)
    if isinstance(x, FakeTensor):
        shape, strides = tuple(x.shape), tuple(x.stride())
        assert (shape, strides, x.dtype, x.device) == (t.sizes, t.strides, t.dtype, t.device), f"{t} but {x.shape}"
    strides = "-" if 0 in t.sizes else list(t.strides)  # the strides of no elements mean nothing
    return f"{t.dtype} {list(t.sizes)} {strides} +{t.offset} {device or t.device}"


def outputs(out: Any) -> tuple[str, ...]:
    flat = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(describe(x) for x in ir.leaves(list(flat)))


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self.calls = calls

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((str(func), outputs(out)))
        return out


def record_eager(fn: Callable[..., Any], inputs: Sequence[Any], calls: list[Call]) -> Any:
    """``fn(*inputs)`` on real tensors; appends its ATen calls, with the types of their results, to ``calls``."""
    with _Recorder(calls):
        return fn(*inputs)


def eager_calls(fn: Callable[..., Any], inputs: Sequence[Any]) -> list[Call]:
    """The ATen calls of ``fn(*inputs)`` on real tensors."""
    calls: list[Call] = []
    record_eager(fn, inputs, calls)
    return calls


def fake_calls(fn: Callable[..., Any], inputs: Sequence[Any]) -> list[Call]:
    """The same on tracing tensors of the inputs' types."""
    calls: list[Call] = []
    fakes = [fake_like(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    with FakeMode(lambda op, args, kwargs, out: calls.append((str(op), outputs(out))), lift=fake_like):
        fn(*fakes)
    return calls


def functional(module: torch.nn.Module, loss: Callable[[Any], torch.Tensor]) -> tuple[Callable[..., Any], list[Any]]:
    """``(f, tensors)``: f swaps its arguments in for the module's parameters and buffers and takes the gradients."""
    slots = [(m, k, d) for m in module.modules() for d in (m._parameters, m._buffers) for k in d if d[k] is not None]
    tensors = [d[k] for _, k, d in slots]

    def run(*args: Any) -> None:
        old = [d[k] for _, k, d in slots]
        try:
            for (_, k, d), x in zip(slots, args):
                d[k] = x
            total = loss(module(*args[len(slots) :]))
            total.backward()
        finally:
            for (_, k, d), x in zip(slots, old):
                d[k] = x

    return run, tensors

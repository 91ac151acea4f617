"""The tracing tensor: sizes, strides, dtype and device of a tensor that does not exist."""

from __future__ import annotations

from typing import Any

import torch

from .. import ir
from ..errors import Unsupported
from ..ir import TensorType
from ..ir.decisions import Decisions
from .registry import DataDependent
from .symint import Decide, refuse, to_symint

_make_wrapper: Any = torch.Tensor._make_wrapper_subclass
_strided = torch.strided

# Lets tensors typed "cuda" take part in autograd on a machine without CUDA; does nothing where CUDA exists.
# Without it such a tensor aborts the process in the autograd engine's device guard.
getattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: None)()


class FakeTensor(torch.Tensor):
    """A wrapper subclass without data. ``val`` is its type, ``node`` is free for whoever records the trace.

    Only usable inside a :class:`~braze.fake.FakeMode`; an operator outside one raises Unsupported.
    """

    __slots__ = ("val", "node")
    val: TensorType
    node: Any

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise Unsupported(f"{func} on a traced tensor outside of its trace")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"FakeTensor({self.val})"

    def tolist(self) -> Any:
        raise DataDependent("the values of a tensor are read (tolist)")

    def numpy(self, *, force: bool = False) -> Any:
        raise DataDependent("the values of a tensor are read (numpy)")

    def data_ptr(self) -> int:
        raise Unsupported("the address of a traced tensor is read (data_ptr)")

    def untyped_storage(self) -> Any:
        raise Unsupported("the storage of a traced tensor is read")

    @property
    def data(self) -> torch.Tensor:
        """The same memory without autograd history, and with a version counter of its own: autograd sees no writes."""
        out = wrap(self.val.with_(requires_grad=False))
        if self.node is not None:
            out.node = self.node.beside()
        return out

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, FakeTensor):
            raise Unsupported("assigning a real tensor to the .data of a traced tensor")
        with torch._C._DisableTorchDispatch():
            _set_data(self, new)
        self.val = new.val


_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def wrap(t: TensorType, requires_grad: bool = False, decide: Decide = refuse) -> FakeTensor:
    """A tracing tensor of type ``t``; Expr sizes become SymInts that ask ``decide``."""
    try:
        x: FakeTensor = _make_wrapper(
            FakeTensor, t.sizes, t.strides, t.offset, None, t.dtype, _strided, t.device, False, requires_grad
        )
    except TypeError:  # an Expr among them
        if isinstance(decide, Decisions):
            t = decide.sized(t)
        sizes = [to_symint(n, decide) for n in t.sizes]
        strides = [to_symint(n, decide) for n in t.strides]
        offset = to_symint(t.offset, decide)
        x = _make_wrapper(FakeTensor, sizes, strides, offset, None, t.dtype, _strided, t.device, False, requires_grad)
    x.val = t
    x.node = None
    return x


def fake_from(t: TensorType, param: bool = False, decide: Decide = refuse) -> FakeTensor:
    """A fresh leaf of that type; ``param`` makes it pass ``isinstance(x, torch.nn.Parameter)``.

    ``decide(op, a, b)`` answers questions about symbolic sizes that their ranges leave open; by default Unsupported.
    """
    x = wrap(t, t.requires_grad, decide)
    if param:
        x._is_param = True
    return x


def fake_like(real: torch.Tensor) -> FakeTensor:
    """A fake with a real tensor's type, ``requires_grad`` and Parameter-ness. Unsupported for other than strided."""
    if real.layout is not _strided or real.is_quantized or real.is_nested:
        raise Unsupported(f"a tensor of layout {real.layout}{' (quantized)' if real.is_quantized else ''}")
    if real.is_conj() or real.is_neg():
        raise Unsupported("a lazily conjugated or negated input", hint="call .resolve_conj() or .resolve_neg() first")
    return fake_from(ir.type_of(real), isinstance(real, torch.nn.Parameter))


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: FakeTensor) -> FakeTensor:
        out = fake_from(x.val.with_(requires_grad=False))
        out.node = x.node
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def with_history(leaf: FakeTensor) -> FakeTensor:
    """The same memory with an autograd history of its own; not a view, so it may be overwritten."""
    with torch.enable_grad():
        out: FakeTensor = _Identity.apply(leaf)
    return out


def type_of(x: torch.Tensor) -> TensorType:
    """The type of a fake or real tensor, with its present ``requires_grad``."""
    if not isinstance(x, FakeTensor):
        return ir.type_of(x)
    t = x.val
    return t if t.requires_grad == x.requires_grad else t.with_(requires_grad=x.requires_grad)

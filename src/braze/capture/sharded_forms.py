"""DTensors at the edges of a graph: a graph takes and gives their local parts.

Inside, calls are the program's own, on DTensors; tracing them goes through torch's dispatch of DTensors, so that what
is compiled is the arithmetic on local parts with functional collectives between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


class Whole:
    """``whole(local)``: the DTensor of this spec of which ``local`` is this rank's part, an input of a graph.

    Its gradient is handed on as eager has it, partial sums unreduced where their local parts have the input's shape:
    ``placements`` says what it is, known when the backward has been traced. ``part(x)`` is the local part of the
    caller's DTensor, whose gradient becomes that DTensor.
    """

    __name__ = "whole"

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.placements: tuple[Any, ...] = tuple(spec.placements)

    def __call__(self, local: Tensor) -> Any:
        return _Whole.apply(local, self)

    def part(self, x: Any) -> Tensor:
        with torch.enable_grad():
            out: Tensor = _Part.apply(x, self)
        return out


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, of: Whole) -> Any:
        from torch.distributed.tensor import DTensor

        ctx.of, ctx.shape = of, local.shape
        return DTensor(local.view_as(local), of.spec, requires_grad=local.requires_grad)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if grad._local_tensor.shape != ctx.shape:  # of an embedding's rows: autograd takes gradients of equal shape
            grad = grad.redistribute(placements=ctx.of.spec.placements)
        ctx.of.placements = tuple(grad.placements)
        return grad._local_tensor, None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, of: Whole) -> Tensor:
        ctx.of = of
        local: Tensor = x._local_tensor
        if hasattr(local, "trigger_wait"):
            local = local.trigger_wait()
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        from torch.distributed.tensor import DTensor

        spec, placements = ctx.of.spec, ctx.of.placements
        if placements == spec.placements:
            return DTensor(grad, spec, requires_grad=grad.requires_grad), None
        mesh, shape, stride = spec.mesh, spec.tensor_meta.shape, spec.tensor_meta.stride
        return DTensor.from_local(grad, mesh, placements, run_check=False, shape=shape, stride=stride), None


class Waited:
    """``part(x)``: the result of a collective that eager has not waited for yet, complete."""

    @staticmethod
    def part(x: Any) -> Tensor:
        with torch.enable_grad():
            out: Tensor = _Waited.apply(x)
        return out


class _Waited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        out: Tensor = x.trigger_wait()
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def from_local(
    local: Tensor, mesh: Any, placements: Any, sizes: Any = None, strides: Any = None, grads: Any = None
) -> Any:
    """``DTensor.from_local`` without a check."""
    from torch.distributed.tensor import DTensor

    more = {} if grads is None else {"grad_placements": grads}
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=sizes, stride=strides, **more)


def redistribute(x: Any, mesh: Any = None, placements: Any = None, dtypes: dict[str, Any] | None = None) -> Any:
    """``DTensor.redistribute``. ``async_op`` is for eager: a graph waits late by itself."""
    return x.redistribute(mesh, placements, **(dtypes or {}))


def to_local(x: Any, grads: Any = None) -> Tensor:
    """``DTensor.to_local``."""
    out: Tensor = x.to_local(grad_placements=grads)
    return out


def full_tensor(x: Any, grads: Any = None) -> Tensor:
    """``DTensor.full_tensor``."""
    out: Tensor = x.full_tensor(grad_placements=grads)
    return out


def local_part(x: Any) -> Tensor:
    """``x.to_local()``, with its history also under no_grad: what a graph gives for a DTensor."""
    with torch.enable_grad():
        out: Tensor = x.to_local()
    return out


@dataclass(frozen=True)
class Rewrapped:
    """An output of a graph as the DTensor that it is."""

    mesh: Any
    placements: tuple[Any, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, local: Tensor) -> Any:
        with torch.enable_grad():
            return from_local(local, self.mesh, self.placements, torch.Size(self.sizes), self.strides)

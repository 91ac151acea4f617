"""A compiled backward as a chain of autograd nodes, so that gradients leave it as soon as they are computed.

One autograd node would return all gradients at its end, and DistributedDataParallel could start its all-reduces only
then.  Under DDP the compiled function therefore becomes several nodes, one for each stage of its backward's host
program (a generator, :mod:`braze.inductor.codegen.stages`)::

    parameters whose gradients come in the last stage -> Later(2) -> token -> Later(1) -> token -> First -> results

Each node's backward runs the program up to the end of its stage and returns that stage's gradients.  The engine runs
AccumulateGrad nodes before any other, so the reducer's hooks (and every other hook on a parameter) fire between stages,
in ordinary autograd: ``no_sync``, communication hooks, unused parameters, ``autograd.grad`` need nothing more.  The
forward is one call, as ever; the graph is still one graph, fused across stages.

Two threads must not run one graph's backward at once (they may for an unstaged function).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..ir import Signature

Run = Callable[..., Any]
FIRST_BUCKET = 1 << 20  # bytes of DDP's first bucket, unless its cap is smaller
BUCKET = 25 << 20


def active_ddp() -> Any:
    """The DDP module whose forward is running, or None."""
    return DistributedDataParallel._active_ddp_module


@dataclass(frozen=True)
class Parts:
    """What the one node is made of: ``forward(ctx, *inputs)``, the backward's thunk, ``restore(ctx, grads)`` (the
    backward's arguments) and ``again(ctx, grads)`` (all gradients, differentiable)."""

    forward: Run
    backward: Callable[[], Run]
    restore: Run
    again: Run
    signature: Signature


class _Call:
    """One call's state, shared by its nodes."""

    __slots__ = ("inputs", "running", "plan")

    def __init__(self, inputs: Sequence[Any] | None, plan: _Plan) -> None:
        self.inputs, self.plan = inputs, plan
        self.running: Iterator[list[Any]] | None = None

    def gradients(self, stage: int) -> list[Any]:
        """Run one stage: a gradient for each input of its node."""
        plan = self.plan
        assert self.running is not None
        given = next(self.running)
        ready = dict(zip(plan.outputs[stage], given))
        given.clear()  # the engine takes over a gradient only when nobody else holds it
        for i in plan.thin[stage]:
            ready[i] = _laid_out(ready[i], *plan.layouts[i])
        out = [ready.pop(i, None) for i in plan.inputs[stage]]
        if stage + 1 == len(plan.outputs):
            self.running = None
        return out


@dataclass(frozen=True)
class _Plan:
    """``outputs[k]``: the gradients (numbered as the inputs) of stage k, as the program yields them; ``inputs[k]``: the
    inputs of its node; ``thin[k]``: those of its gradients that have dims of size 1, for which ``layouts`` says the
    parameter's sizes and strides: the reducer warns of any stride that differs."""

    parts: Parts
    program: Run
    outputs: list[tuple[int, ...]]
    inputs: list[list[int]]
    thin: list[list[int]]
    layouts: dict[int, tuple[torch.Size, tuple[int, ...]]]
    token_grad: torch.Tensor


def _laid_out(g: Any, sizes: torch.Size, strides: tuple[int, ...]) -> Any:
    """The gradient with the parameter's strides where they differ in dims of size 1 alone."""
    if g is None or g.shape != sizes or g.stride() == strides:
        return g
    same = all(n == 1 or a == b for n, a, b in zip(sizes, g.stride(), strides))
    return g.as_strided(sizes, strides) if same else g


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, token: Any, *own: Any) -> Any:
        ctx.call = call
        inputs, call.inputs = call.inputs, None
        assert inputs is not None
        return call.plan.parts.forward(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        call, plan = ctx.call, ctx.call.plan
        if torch.is_grad_enabled():
            every = plan.parts.again(ctx, grads)
            call.running = iter([[every[i] for i in stage] for stage in plan.outputs])
        else:
            call.running = plan.program(plan.parts.restore(ctx, grads))
        del grads
        return (None, plan.token_grad, *call.gradients(0))


class _Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, stage: int, token: Any, *own: Any) -> Any:
        ctx.call, ctx.stage = call, stage
        return torch.empty_like(call.plan.token_grad)

    @staticmethod
    def backward(ctx: Any, token_grad: Any) -> Any:
        call: _Call = ctx.call
        last = ctx.stage + 1 == len(call.plan.inputs)
        return (None, None, None if last else token_grad, *call.gradients(ctx.stage))


class Staging:
    """Makes the staged form of one compiled pair when it first runs under DDP, and keeps it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._plan: _Plan | None = None
        self._tried = False

    def apply(self, ddp: Any, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The call's results, or None where the pair has a single stage (or a backward that cannot be staged)."""
        if not self._tried:
            self._tried = True
            self._plan = self._make(ddp, inputs)
        plan = self._plan
        if plan is None:
            return None
        call = _Call(inputs, plan)
        token = None
        for stage in range(len(plan.inputs) - 1, 0, -1):
            token = _Later.apply(call, stage, token, *[inputs[i] for i in plan.inputs[stage]])
        out: tuple[Any, ...] = _First.apply(call, token, *[inputs[i] for i in plan.inputs[0]])
        return out

    def _make(self, ddp: Any, inputs: Sequence[Any]) -> _Plan | None:
        backward = self._parts.backward()
        cap = int(getattr(ddp, "bucket_bytes_cap", BUCKET))
        if not hasattr(backward, "stages"):
            return None
        program, outputs = backward.stages(min(FIRST_BUCKET, cap), cap)
        if len(outputs) == 1:
            return None
        later = [[i for i in stage if self._parts.signature.input_grads[i]] for stage in outputs[1:]]
        if not all(later):
            return None
        taken = {i for stage in later for i in stage}
        first = [i for i in range(len(inputs)) if i not in taken]
        device = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda), torch.device("cpu"))
        leaves = {i: x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.is_leaf and 1 in x.shape}
        layouts = {i: (x.shape, x.stride()) for i, x in leaves.items() if x.requires_grad}
        thin = [[i for i in stage if i in layouts] for stage in outputs]
        return _Plan(self._parts, program, outputs, [first, *later], thin, layouts, torch.empty(0, device=device))

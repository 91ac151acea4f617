"""Fused programs of ordinary torch functions: traced with their gradients, decomposed, lowered and fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.autograd import partition, trace_joint
from braze.inductor.fuse import DeviceTraits, fuse, plan
from braze.inductor.loops import Kernel, Program, interpret_program, lower, verify_program
from braze.ir import Graph, interpret, type_of
from braze.prims import decompose


def graphs(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], grads: bool = True) -> tuple[Graph, Graph]:
    """The primitive graphs of the forward and backward pass."""
    types = [type_of(t).with_(requires_grad=grads and t.dtype.is_floating_point) for t in inputs]
    split = partition(trace_joint(fn, types))
    return decompose(split.forward), decompose(split.backward)


def fused(graph: Graph, traits: DeviceTraits | None = None) -> Program:
    """Lowered, fused, planned, and checked."""
    return verify_program(plan(verify_program(fuse(verify_program(lower(graph)), traits))))


def kernels(program: Program) -> list[Kernel]:
    return [s for s in program.steps if isinstance(s, Kernel)]


def sample(graph: Graph, seed: int = 0) -> list[torch.Tensor]:
    """Values for a graph's inputs, of their types."""
    torch.manual_seed(seed)
    out = []
    for n in graph.inputs:
        t = n.val
        if t.dtype.is_floating_point:
            value = torch.rand(t.sizes, dtype=torch.float64).add(0.5).to(t.dtype)
        elif t.dtype == torch.bool:
            value = torch.rand(t.sizes) > 0.3
        else:
            value = torch.randint(0, 2, t.sizes, dtype=t.dtype)
        out.append(torch.empty_strided(t.sizes, t.strides, dtype=t.dtype).copy_(value))
    return out


def check(graph: Graph, program: Program, inputs: Sequence[torch.Tensor], rtol: float = 1e-5) -> None:
    """The program gives what the graph means, in the promised strides."""
    torch.manual_seed(5)
    want = interpret(graph, inputs)
    torch.manual_seed(5)
    got = interpret_program(program, [t.clone() if not t.is_contiguous() else t for t in inputs])
    for w, g, node in zip(want, got, graph.outputs):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=rtol, atol=rtol, equal_nan=True)
            strides = zip(g.shape, g.stride(), node.val.strides)
            assert all(n == 1 or a == b for n, a, b in strides), (g.stride(), node.val)

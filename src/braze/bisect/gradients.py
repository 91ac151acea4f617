"""The stage ``autograd``: a captured graph under eager, against its traced forward and backward graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from braze.autograd import AotGraphs, channels_last, partition, trace_joint
from braze.autograd.masks import drop_full_masks
from braze.ir import Graph, TensorType, interpret, load_python
from braze.runtime.autograd_node import make_autograd_callable

from .stages import Inputs, copies, difference


def trace(graph: Graph, types: Any = None) -> AotGraphs:
    """The functional forward and backward graphs of a captured graph."""
    graph = drop_full_masks(graph)
    return partition(channels_last(trace_joint(graph, list(types or [n.val for n in graph.inputs]))))


def trainable(graph: Graph) -> Graph:
    """The graph, its floating inputs asking for gradients: those of a part stand for what was computed before it."""
    for n in graph.inputs:
        if isinstance(n.val, TensorType):
            n.val = replace(n.val, requires_grad=n.val.dtype.is_floating_point)
    return graph


def gradients_differ(graph: Graph, inputs: Inputs) -> str:
    """How outputs and gradients of the traced pair differ from eager's, "" when they agree or are random."""
    aot = trace(graph)
    if aot.signature.random:  # compiled random numbers are others than eager's
        return ""
    wanted = [isinstance(n.val, TensorType) and n.val.requires_grad for n in graph.inputs]
    got = _with_gradients(_interpreted(aot, graph), inputs, wanted)
    return _apart(got, _with_gradients(load_python(graph), inputs, wanted))


def _interpreted(aot: AotGraphs, graph: Graph) -> Callable[..., Any]:
    """The pair of graphs, call by call, as a differentiable function."""
    backward = aot.backward
    late = (lambda: lambda *inputs: interpret(backward, inputs)) if backward is not None else None
    made: Callable[..., Any] = make_autograd_callable(
        lambda *inputs: interpret(aot.forward, inputs), late, aot.signature, load_python(graph)
    )
    return made


def _apart(got: list[Any], want: list[Any]) -> str:
    """Differences that are more than rounding beside the largest gradient."""
    largest = max((float(t.abs().max()) for t in want if t.numel() and t.dtype.is_floating_point), default=0.0)
    return difference(got, want, lambda k: 1e-5 * largest)


def _with_gradients(run: Callable[..., Any], values: Inputs, wanted: list[bool]) -> list[Any]:
    """Outputs, and the gradients of their sum with respect to every input that wants one."""
    inputs = [x.requires_grad_(w) if isinstance(x, torch.Tensor) else x for x, w in zip(copies(values), wanted)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = _flat(run(*[x.clone() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]))
    roots = [t for t in out if t.requires_grad]
    asked = [x for x, w in zip(inputs, wanted) if w]
    grads = torch.autograd.grad(roots, asked, [torch.ones_like(t) for t in roots], allow_unused=True) if roots else ()
    return [*(t.detach() for t in out), *(g for g in grads if g is not None)]


def _flat(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for v in tree for t in _flat(v)] if isinstance(tree, (tuple, list)) else []

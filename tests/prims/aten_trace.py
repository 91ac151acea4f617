"""Records the ATen calls of eager code on real tensors as a graph, with the values that eager gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from braze.ir import Graph, Node, map_leaves, type_of


class Mutates(Exception):
    """The program mutates a tensor below autograd: this recorder does not functionalise."""


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.nodes: dict[int, tuple[Node, torch.Tensor]] = {}

    def node(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self.nodes:
            self.nodes[id(x)] = (self.graph.const(x, type_of(x)), x)
        return self.nodes[id(x)][0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise Mutates(str(func))
        out = func(*args, **kwargs)
        val = map_leaves(out, lambda t: type_of(t) if isinstance(t, torch.Tensor) else t)
        val = tuple(val) if isinstance(val, list) else val
        node = self.graph.call(func, map_leaves(tuple(args), self.node), map_leaves(kwargs, self.node), val)
        if isinstance(out, torch.Tensor):
            self.nodes[id(out)] = (node, out)
        elif isinstance(out, (tuple, list)):
            for i, t in enumerate(out):
                if isinstance(t, torch.Tensor):
                    self.nodes[id(t)] = (self.graph.getitem(node, i), t)
        return out


def record(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[Graph, Any]:
    """The graph of ``fn(*inputs)`` and its results."""
    graph = Graph()
    rec = _Recorder(graph)
    for i, x in enumerate(inputs):
        rec.nodes[id(x)] = (graph.input(f"x{i}", type_of(x)), x)
    with rec:
        out = fn(*inputs)
    graph.outputs = tree_map(rec.node, out)
    first = [n for n in graph.nodes if n.op == "const"]
    graph.nodes = graph.inputs + first + [n for n in graph.nodes if n.op == "call"]
    return graph, out

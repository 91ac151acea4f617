"""Run a graph on real (or fake) values, node by node: the executable meaning of every graph level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from .expr import Expr, evaluate, symbol_of
from .graph import Graph, Node, map_leaves, node_args, nodes_in
from .pause import modes_kept, switches_modes


def interpret(graph: Graph, inputs: Sequence[Any], observe: Callable[[Node, Any], None] | None = None) -> Any:
    """The graph's outputs for these inputs; ``observe(node, value)`` sees every value.

    Values are dropped after their last use. ``Prim`` targets are callables on real tensors, so one interpreter serves
    all levels. Symbolic sizes take their values from the inputs that are symbols. Raises ValueError when the number of
    inputs is wrong, and whatever a call raises.
    """
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
    last: dict[Node, Node] = {}
    for n in graph.nodes:
        for a in node_args(n):
            last[a] = n
    keep = set(nodes_in(graph.outputs))
    env: dict[Node, Any] = dict(zip(graph.inputs, inputs))
    sizes = size_values(graph, inputs)

    def real(tree: Any) -> Any:
        return map_leaves(
            tree,
            lambda x: env[x] if isinstance(x, Node) else evaluate(x, sizes) if sizes and isinstance(x, Expr) else x,
        )

    with modes_kept() if switches_modes(graph) else nullcontext():
        for n in graph.nodes:
            if n.op == "const":
                env[n] = n.target
            elif n.op == "call":
                env[n] = n.target(*real(n.args), **real(n.kwargs))
                for a in set(node_args(n)):
                    if last[a] is n and a not in keep:
                        del env[a]
            if observe is not None:
                observe(n, env[n])
    return real(graph.outputs)


def size_values(graph: Graph, inputs: Sequence[Any]) -> dict[str, Any]:
    """Symbol's name -> its value, from the inputs that are symbols."""
    found = {s.name: x for n, x in zip(graph.inputs, inputs) if (s := symbol_of(n.val)) is not None}
    return found

"""Dead code elimination.

a = x + 1; b = x * 2; return (b,)      ->      b = x * 2; return (b,)
"""

from __future__ import annotations

from ..ir import Graph, Node, nodes_in
from .rewrite import build, operands


def eliminate_dead_code(graph: Graph) -> Graph:
    """The graph without calls and constants that no output and no effect needs. Inputs stay."""
    live: set[Node] = set(nodes_in(graph.outputs))
    kept = []
    for n in reversed(graph.nodes):
        if n.op == "input":
            continue
        if n in live or n.tags.get("effect"):
            kept.append(n)
            live.update(operands(n))
    kept.reverse()
    return build(graph.name, graph.inputs, kept, graph.outputs)

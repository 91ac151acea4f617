"""The invariants of a graph, checked. Raises AssertionError naming the node that breaks one."""

from __future__ import annotations

from .expr import Expr, symbol_of
from .graph import Graph, Node, node_args, nodes_in


def verify(graph: Graph) -> Graph:
    """Definition before use, unique names, inputs first and listed, a ``val`` on all tensors; returns the graph."""
    seen: set[Node] = set()
    names: set[str] = set()
    for n in graph.nodes:
        assert n.op in ("input", "const", "call"), f"{graph.name}: {n.name} has op {n.op!r}"
        assert n.name not in names, f"{graph.name}: the name {n.name} is used twice"
        for a in node_args(n):
            assert a in seen, f"{graph.name}: {n.name} reads {a.name} before it is defined"
        if n.op == "input" and isinstance(n.val, Expr):
            s = symbol_of(n.val)
            assert s is not None and s.name == n.name, f"{graph.name}: the size {n.name} has the value {n.val}"
        if n.op == "call":
            assert callable(n.target), f"{graph.name}: {n.name} calls {n.target!r}, which is not callable"
        names.add(n.name)
        seen.add(n)
    assert graph.inputs == [n for n in graph.nodes if n.op == "input"], f"{graph.name}: inputs out of order"
    for a in nodes_in(graph.outputs):
        assert a in seen, f"{graph.name}: output {a.name} is not in the graph"
    return graph

"""What the passes share: operands, and building a graph out of another's nodes.

Passes give a new :class:`Graph`. Nodes whose call did not change are shared between the old graph and the new one:
nobody changes a node after its trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..ir import Graph, Node, map_leaves, node_args

SIMPLE = (int, float, bool, str, type(None))


def operands(node: Node) -> list[Node]:
    """``ir.node_args``, with a short way for the usual flat arguments."""
    out: list[Node] = []
    for a in node.args:
        if type(a) is Node:
            out.append(a)
        elif type(a) is list or type(a) is tuple:
            for b in a:
                if type(b) is Node:
                    out.append(b)
                elif type(b) not in SIMPLE:
                    return node_args(node)
    if node.kwargs:
        for a in node.kwargs.values():
            if type(a) is Node or type(a) is list or type(a) is tuple:
                return node_args(node)
    return out


def replaced(node: Node, env: Mapping[Node, Node]) -> Node:
    """``node`` with its operands looked up in ``env`` (absent: unchanged); itself when none changed."""
    if not any(a in env for a in operands(node)):
        return node
    args, kwargs = map_leaves((node.args, node.kwargs), lambda x: env.get(x, x) if type(x) is Node else x)
    out = Node(node.name, node.op, node.target, args, kwargs, node.val, node.loc)
    out.tags = node.tags
    return out


def substituted(tree: Any, env: Mapping[Node, Node]) -> Any:
    """A nested structure with nodes looked up in ``env``; absent ones stay."""
    return map_leaves(tree, lambda x: env.get(x, x) if type(x) is Node else x)


def build(name: str, inputs: Iterable[Node], nodes: Iterable[Node], outputs: Any) -> Graph:
    """A graph of existing nodes: ``inputs`` first, then the others of ``nodes`` in order."""
    out = Graph(name)
    out.inputs = list(inputs)
    out.nodes = out.inputs + [n for n in nodes if n.op != "input"]
    out.outputs = outputs
    out._names = {n.name: 0 for n in out.nodes}
    return out

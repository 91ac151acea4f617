"""What the passes share: operands, and building a graph out of another's nodes.

Passes give a new :class:`Graph`. Nodes whose call did not change are shared between the old graph and the new one:
nobody changes a node after its trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch._ops import OpOverload

from ..fake import rule_for
from ..ir import Graph, Node, leaves, map_leaves, node_args

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
    changed = False
    args: list[Any] = []
    for a in node.args:
        kind = type(a)
        if kind is Node:
            b = env.get(a)
            if b is not None:
                changed, a = True, b
        elif kind is list or kind is tuple or kind is slice:
            b = _inside(a, env)
            if b is not a:
                changed, a = True, b
        args.append(a)
    kwargs = node.kwargs
    if kwargs and any(type(v) in (Node, list, tuple) for v in kwargs.values()):
        named = substituted(kwargs, env)
        if any(x is not y for x, y in zip(leaves(named), leaves(kwargs))):
            changed, kwargs = True, named
    if not changed:
        return node
    out = Node(node.name, node.op, node.target, tuple(args), kwargs, node.val, node.loc)
    out.tags = node.tags
    return out


def _inside(x: Any, env: Mapping[Node, Node]) -> Any:
    """A nested argument with nodes looked up; the same object when none changed."""
    if type(x) is not slice:
        for y in x:
            if type(y) not in SIMPLE:
                break
        else:
            return x
    out = substituted(x, env)
    return out if any(a is not b for a, b in zip(leaves(out), leaves(x))) else x


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


class Emitter:
    """Appends calls to a graph, with names that the rest of the old graph does not use."""

    def __init__(self, graph: Graph) -> None:
        self.out = Graph(graph.name)
        self.out._names = {n.name: 0 for n in graph.nodes}

    def __call__(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        types, named = map_leaves((args, kwargs), lambda x: x.val if isinstance(x, Node) else x)
        return self.out.call(op, args, kwargs, rule_for(op)(*types, **named))

"""Common subexpressions are computed once.

    a = x.to(bf16); b = x.to(bf16); return a @ b      ->      a = x.to(bf16); return a @ a

Draws of a seed, effects, and operators that are random inside (dropout in a fused attention) are left alone.  Outputs
that become one node are told apart again by ``unalias``.
"""

from __future__ import annotations

import operator
from typing import Any

from torch._ops import OpOverload

from ..ir import Graph, Node
from ..prims.functionalised import Functionalised
from ..prims.rng import philox_seed
from .rewrite import build, replaced, substituted
from .schema import op_info


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """The graph with equal calls on equal operands merged into the first."""
    env: dict[Node, Node] = {}
    seen: dict[Any, Node] = {}
    nodes = []
    for n in graph.nodes:
        if n.op != "call":
            nodes.append(n)
            continue
        new = replaced(n, env) if env else n
        if _pure(new):
            key = (new.target, _key(new.args), _key(new.kwargs) if new.kwargs else None)
            first = seen.setdefault(key, new)
            if first is not new:
                env[n] = first
                continue
        if new is not n:
            env[n] = new
        nodes.append(new)
    return build(graph.name, graph.inputs, nodes, substituted(graph.outputs, env))


def _pure(node: Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    if isinstance(target, Functionalised):
        target = target.op
    elif not isinstance(target, OpOverload):
        return target is not philox_seed
    if target.namespace not in ("aten", "prims"):
        return False  # a user's operator may do anything
    info = op_info(target)
    return not (info.random or info.effect or node.tags.get("effect"))


def _key(x: Any) -> Any:
    kind = type(x)
    if kind is Node:
        return id(x)
    if kind is tuple or kind is list:
        return (kind, *map(_key, x))
    if kind is dict:
        return tuple((k, _key(v)) for k, v in x.items())
    if kind is float:
        return (kind, repr(x))  # tells 0.0 from -0.0
    try:
        hash(x)
    except TypeError:
        return (kind, id(x))
    return (kind, x)
